"""JSON lines and the Pile, plain or compressed (.gz, .zst, .xz, .bz2): one object per line, its text under a key.

The Pile (arXiv 2101.00027) is JSON lines with the document's subset under ``meta.pile_set_name``; eleven of its
subsets are in MT-NLG's corpus.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import zlib
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol

import orjson
import zstandard

from .parts import WHOLE, Part, find_part, mapped
from .record import Dropped, Record, json_metadata, name_fields
from .zstd_frames import FRAME, FrameLines, ZstdFrames, check_frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from typing_extensions import Buffer


URL_KEYS = ("url", "uri")
BUFFER_BYTES = 1 << 17
EXACT_INTEGERS = float(1 << 63)
#: Limit of decompression: this many bytes plus a multiple of the file's size. Text usually expands about fourfold.
ALWAYS_ALLOWED_BYTES = 1 << 30
MAX_EXPANSION_RATIO = 256
COMPRESSED = {".gz", ".zst", ".xz", ".bz2"}
#: First bytes of what is often named like plain JSON lines; none begins a line of JSON.
FOREIGN = {
    b"\x1f\x8b": "gzip: name it .gz",
    b"\x28\xb5\x2f\xfd": "zstd: name it .zst",
    b"\xfd7zXZ": "xz: name it .xz",
    b"BZh": "bzip2: name it .bz2",
    b"\x04\x22\x4d\x18": "lz4: compress it with gzip, zstd, xz or bzip2",
    b"\xff\x06\x00\x00sNaPpY": "snappy: compress it with gzip, zstd, xz or bzip2",
    b"PK\x03\x04": "zip: unpack it",
    b"PAR1": "Parquet: name it .parquet, and its kind parquet",
    b"\xff\xfe": "UTF-16: JSON lines are UTF-8",
    b"\xfe\xff": "UTF-16: JSON lines are UTF-8",
}
DECOMPRESSION_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def read_jsonl(path: Path, field: str, max_bytes: int, part: Part = WHOLE) -> Iterator[Record | Dropped]:
    """Yield the objects of a file, or of the lines that begin in a part; the text is the string under ``field``."""
    for item in read_objects(path, max_bytes, part):
        if isinstance(item, Dropped):
            yield item
            continue
        number, row = item
        text = row.pop(field, None)
        if isinstance(text, str):
            url = next((row[key] for key in URL_KEYS if isinstance(row.get(key), str)), None)
            yield Record(number, text, url, id=_take_id(row), metadata=json_metadata(row))
        else:
            others = [key for key, value in row.items() if isinstance(value, str)]
            hint = f" but under {name_fields(others)}" if others else ""
            yield Dropped("no_text", _place(path, number, part), f"no string under {field!r}{hint}")


def read_pile(
    path: Path, subsets: Collection[str] | None, max_bytes: int, part: Part = WHOLE
) -> Iterator[Record | Dropped]:
    """Yield the documents of these subsets (None: all); those of other subsets are skipped and not counted."""
    for item in read_objects(path, max_bytes, part):
        if isinstance(item, Dropped):
            yield item
            continue
        number, row = item
        meta = row.get("meta")
        name = meta.get("pile_set_name") if isinstance(meta, dict) else None
        subset = name if isinstance(name, str) else None
        if subsets is not None and subset not in subsets:
            continue
        text = row.pop("text", None)
        if isinstance(text, str):
            yield Record(number, text, subset=subset, id=_take_id(row), metadata=json_metadata(row))
        else:
            yield Dropped("no_text", _place(path, number, part), "no string under 'text'", subset)


def _place(path: Path, number: int, part: Part) -> str:
    return f"{path.name}: line {number + 1}{part.place}"


def _take_id(row: dict[str, Any]) -> str | None:
    """The record's id, if it has one; only a number also stays in the row, since its type would be lost."""
    given = row.get("id")
    if isinstance(given, str):
        return row.pop("id") or None
    return str(given) if isinstance(given, int | float) and not isinstance(given, bool) else None


def read_objects(path: Path, max_bytes: int, part: Part = WHOLE) -> Iterator[tuple[int, dict[str, Any]] | Dropped]:
    """Yield the objects of a part with their line numbers, from 0. Blank lines count but yield nothing."""
    if (form := _foreign_format(path)) is None:
        yield from _read_lines(path, max_bytes, part)
    elif part.number == 0:
        yield Dropped("unreadable", path.name, f"is {form}", ends_file=True)


def _read_lines(path: Path, max_bytes: int, part: Part) -> Iterator[tuple[int, dict[str, Any]] | Dropped]:
    number = -1
    rest = f"the rest of the {'file' if part == WHOLE else 'part'} is lost"
    with open_lines(path, part) as file:
        while True:
            number += 1
            where = _place(path, number, part)
            try:
                line = file.readline(max_bytes + 1)
                too_long = len(line) > max_bytes
                while len(line) > max_bytes and not line.endswith(b"\n"):
                    line = file.readline(max_bytes + 1)
            except DecompressionBombError as error:
                yield Dropped("bomb", where, f"{error}; {rest}", ends_file=True)
                return
            except DECOMPRESSION_ERRORS as error:
                if getattr(error, "errno", None):
                    raise
                yield Dropped("unreadable", where, f"{error}; {rest}", ends_file=True)
                return
            if not line:
                return
            if too_long:
                yield Dropped("too_large", where, f"longer than {max_bytes} bytes")
            elif not line.isspace():
                yield _parse_line(line, number, where)


def _foreign_format(path: Path) -> str | None:
    """What a file is that is named like plain text, and what is to be done; None if nothing is known against it."""
    if path.suffix in COMPRESSED:
        return None
    with path.open("rb") as file:
        begin = file.read(max(map(len, FOREIGN)))
    return next((form for magic, form in FOREIGN.items() if begin.startswith(magic)), None)


def _parse_line(line: bytes, number: int, where: str) -> tuple[int, dict[str, Any]] | Dropped:
    line = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            # Python's json writes and reads NaN and Infinity; orjson refuses what else it reads beyond JSON.
            row = orjson.loads(orjson.dumps(json.loads(line.decode())))
        except (TypeError, ValueError, RecursionError):
            return Dropped("not_json", where, str(error), ends_file=not line.endswith(b"\n"))
    if not isinstance(row, dict):
        return Dropped("not_json", where, "not an object; each line must be one")
    if any(abs(value) >= EXACT_INTEGERS for value in row.values() if type(value) is float):
        with suppress(ValueError):  # of more digits than Python reads
            row = json.loads(line)  # orjson reads integers beyond 64 bits as floats
    return number, row


@contextmanager
def open_lines(path: Path, part: Part = WHOLE) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed by its suffix: .gz, .zst, .xz, .bz2, else plain; or a part's lines.

    Only plain and .zst files have parts.

    Reads raise ``DecompressionBombError`` beyond ``ALWAYS_ALLOWED_BYTES`` + ``MAX_EXPANSION_RATIO`` x the file's size.
    """
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        limit = ALWAYS_ALLOWED_BYTES + MAX_EXPANSION_RATIO * os.fstat(raw.fileno()).st_size
        stream: _Readable | None = None
        match path.suffix:
            case ".zst" if part.parts > 1:
                stream = _open_frames(path, raw, part, stack)
            case _ if part.parts > 1:
                yield io.BufferedReader(ByteRange(raw, *_line_range(raw, part)), BUFFER_BYTES)
                return
            case ".gz":
                stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
            case ".zst":
                stream = ZstdFrames(raw)
            case ".xz":
                stream = stack.enter_context(lzma.LZMAFile(raw))
            case ".bz2":
                stream = stack.enter_context(bz2.BZ2File(raw))
        yield raw if stream is None else io.BufferedReader(_LimitedStream(stream, limit), BUFFER_BYTES)


def _line_range(file: BinaryIO, part: Part) -> tuple[int, int]:
    """The bytes of the lines that begin in a part of a plain file."""
    with mapped(file) as content:
        begin, end = part.of(len(content))
        if begin == end:
            return end, end
        first = content.find(b"\n", begin - 1, end) + 1 if begin else 0
        if begin and not first:
            return end, end
        return first, content.find(b"\n", end - 1) + 1 or len(content)


def _open_frames(path: Path, file: io.BufferedReader, part: Part, stack: ExitStack) -> FrameLines:
    """The lines of the frames that begin in a part of a .zst file."""
    with mapped(file) as content:
        size, (first, last) = len(content), find_part(content, part, FRAME, check_frame)
    following = stack.enter_context(path.open("rb"))
    ends = (ByteRange(file, first, last), ByteRange(following, last, size if first < last else last))
    frames, rest = (ZstdFrames(io.BufferedReader(span, BUFFER_BYTES)) for span in ends)
    return FrameLines(frames, rest, cut_first=first > 0)


class ByteRange(io.RawIOBase):
    """Reads these bytes of a file."""

    def __init__(self, file: io.BufferedReader, first: int, last: int) -> None:
        file.seek(first)
        self._file = file
        self._left = last - first

    def readable(self) -> bool:
        """Always true; ``io.BufferedReader`` asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Read into the buffer, to the end of the range."""
        with memoryview(buffer) as view:
            count = self._file.readinto(view[: self._left])
        self._left -= count
        return count


class DecompressionBombError(Exception):
    """A compressed file expands beyond the limit."""


class _Readable(Protocol):
    """The common interface of the decompressing readers."""

    def readinto1(self, buffer: Buffer, /) -> int: ...


class _LimitedStream(io.RawIOBase):
    """A decompressed stream that raises ``DecompressionBombError`` after ``limit`` bytes."""

    def __init__(self, stream: _Readable, limit: int) -> None:
        self._stream = stream
        self._remaining = limit
        self._limit = limit

    def readable(self) -> bool:
        """Always true; ``io.BufferedReader`` asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Read into the buffer and count the bytes against the limit."""
        count = self._stream.readinto1(buffer)  # ``readinto`` would lose what it has read where it meets an error
        self._remaining -= count
        if self._remaining < 0:
            raise DecompressionBombError(
                f"expands to more than {self._limit} bytes, {MAX_EXPANSION_RATIO} times the file"
            )
        return count
