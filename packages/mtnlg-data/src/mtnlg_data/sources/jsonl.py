"""JSON lines and the Pile, plain or compressed (.gz, .zst, .xz, .bz2): one object per line, its text under a key.

The Pile (arXiv 2101.00027) is JSON lines with the document's subset under ``meta.pile_set_name``; eleven of its
subsets are in MT-NLG's corpus. A plain file is read in parts; a compressed one is one unit of work, however large.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import mmap
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson
import zstandard

from mtnlg_data.files import open_regular, regular
from mtnlg_data.settings import setting
from mtnlg_data.transfer.url_files import read_beginning

from .corpus import DATASETS
from .reader import COMPRESSED, WHOLE, Part, Reader, reader
from .record import Dropped, Record, json_metadata, name_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

URL_KEYS = ("url", "uri")
BUFFER_BYTES = 1 << 17
EXACT_INTEGERS = float(1 << 63)
#: Limit of decompression: this many bytes plus a multiple of the file's size. Text usually expands about fourfold.
ALWAYS_ALLOWED_BYTES = 1 << 30
MAX_EXPANSION_RATIO = 256
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
#: The largest window that zstd allows; ``zstd --long=31`` writes it, and decompression takes as much memory.
WINDOW_BYTES = 1 << 31
#: Compressed bytes of zstd decoded at a time. Four may hold 128 KiB, so this bounds what is held decoded.
CHUNK_BYTES = 1 << 12


class Lines(Reader):
    """Files of JSON lines."""

    version = 1

    def parts(self, path: Path, most: int) -> int:
        """As many as wanted of a plain file."""
        return 1 if path.suffix in COMPRESSED else most

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the objects of a file, or of the lines that begin in a part; the text is the string under ``field``.

        The Pile's name of a subset is that of any object. Those that are not wanted are skipped and not counted.
        """
        field = getattr(self, "field", "text")
        for item in read_objects(path, max_bytes, part):
            if isinstance(item, Dropped):
                yield item
                continue
            number, row = item
            meta, text = row.get("meta"), row.pop(field, None)
            subset = meta.get("pile_set_name") if isinstance(meta, dict) else None
            if isinstance(text, str):
                url = next((row[key] for key in URL_KEYS if isinstance(row.get(key), str)), None)
                record: Record | Dropped = Record(
                    number, text, url, subset=subset, id=_take_id(row), metadata=json_metadata(row)
                )
            else:
                others = [key for key, value in row.items() if isinstance(value, str)]
                hint = f" but under {name_fields(others)}" if others else ""
                record = Dropped("no_text", _place(path, number, part), f"no string under {field!r}{hint}", subset)
            if self.wants(record):
                yield record


@reader("jsonl", [f"*.{stem}{suffix}" for stem in ("jsonl", "ndjson", "json") for suffix in ("", *sorted(COMPRESSED))])
class Jsonl(Lines):
    """JSON lines with their text under a key of one's own."""

    field: str = setting("text", "Key or column of the text (jsonl, parquet, arrow).", min_length=1)


@reader("pile")
class Pile(Lines):
    """The Pile. A file feeds several sources, one per subset, and is read once for all of them."""

    shared = True
    subset: str | tuple[str, ...] | None = setting(
        None, "Of the Pile: the pile_set_name, or several, of the documents to read; all if not given."
    )

    @classmethod
    def source_defaults(cls, name: str) -> dict[str, object]:
        """The subset of a dataset of the paper."""
        return {"subset": DATASETS[name].subset} if name in DATASETS else {}

    @property
    def subsets(self) -> tuple[str, ...] | None:
        """The subsets that are wanted; None for all."""
        return (self.subset,) if isinstance(self.subset, str) else self.subset

    def wants(self, item: Record | Dropped) -> bool:
        """Whether a record is of a wanted subset."""
        return self.subsets is None or item.subset in self.subsets

    def together(self, others: Sequence[Reader]) -> Reader:
        """Read the subsets of all of these."""
        wanted = [other.subsets for other in (self, *others) if isinstance(other, Pile)]
        return Pile(subset=None if None in wanted else tuple(name for names in wanted for name in names or ()))


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
    number, size = -1, 0
    rest = f"the rest of the {'file' if part == WHOLE else 'part'} is lost"
    limit = ALWAYS_ALLOWED_BYTES + MAX_EXPANSION_RATIO * path.stat().st_size
    with open_lines(path) as file:
        end = None if part == WHOLE else _seek_part(file, part)
        while end is None or file.tell() < end:
            number += 1
            where = _place(path, number, part)
            try:
                line = file.readline(max_bytes + 1)
                size += len(line)
                too_long = len(line) > max_bytes
                while len(line) > max_bytes and not line.endswith(b"\n") and size <= limit:
                    line = file.readline(max_bytes + 1)
                    size += len(line)
            except DECOMPRESSION_ERRORS as error:
                if getattr(error, "errno", None):
                    raise
                yield Dropped("unreadable", where, f"{error}; {rest}", ends_file=True)
                return
            if not line:
                return
            if size > limit:
                what = f"expands to more than {limit} bytes, {MAX_EXPANSION_RATIO} times the file; {rest}"
                yield Dropped("bomb", where, what, ends_file=True)
                return
            if too_long:
                yield Dropped("too_large", where, f"longer than {max_bytes} bytes")
            elif not line.isspace():
                yield _parse_line(line, number, where)


def _foreign_format(path: Path) -> str | None:
    """What a file is that is named like plain text, and what is to be done; None if nothing is known against it."""
    if path.suffix in COMPRESSED:
        return None
    begin = read_beginning(path, max(map(len, FOREIGN)))
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


def open_lines(path: Path) -> io.BufferedIOBase:
    """Open a file for reading, decompressed by its suffix: .gz, .zst, .xz, .bz2, else plain."""
    match path.suffix:
        case ".gz":
            return gzip.open(regular(path))  # another buffer around it would lose what it holds when the stream breaks
        case ".zst":
            return io.BufferedReader(ZstdFrames(open_regular(path, follow=True)), BUFFER_BYTES)
        case ".xz":
            return lzma.open(regular(path))
        case ".bz2":
            return bz2.open(regular(path))
    return open_regular(path, follow=True)


def _seek_part(file: io.BufferedIOBase, part: Part) -> int:
    """Go to the first line that begins in a part of a plain file; returns where the part ends."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin, end = part.of(len(content))
        file.seek(content.find(b"\n", begin - 1, end) + 1 or end if begin else 0)
    return end


class ZstdFrames(io.RawIOBase):
    """Reads a .zst file of any number of frames. Raises ``ZstdError`` and ``EOFError`` where it is broken or cut.

    zstandard's own reader ends within a frame as if the file were complete: where the part before ends with a line,
    whatever the last frame held would be lost in silence.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = b""
        self._decoded = memoryview(b"")

    def readable(self) -> bool:
        """Always true; ``io.BufferedReader`` asks."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Buffer) -> int:
        """Decode the next bytes into the buffer; 0 at the end."""
        while not self._decoded and self._decode():
            pass
        with memoryview(buffer) as view:
            count = min(len(view), len(self._decoded))
            view[:count], self._decoded = self._decoded[:count], self._decoded[count:]
        return count

    def _decode(self) -> bool:
        """Decode another chunk; false at the end of the file."""
        chunk = self._compressed or self._file.read(CHUNK_BYTES)
        if not chunk and self._frame is not None:
            raise EOFError("the file ends within a zstd frame")
        if chunk:
            frame = self._frame or self._decompressor.decompressobj()
            self._decoded = memoryview(frame.decompress(chunk))
            self._frame, self._compressed = (None, frame.unused_data) if frame.eof else (frame, b"")
        return bool(chunk)
