"""JSON lines, plain or compressed with gzip or zstandard: one object a line, its text under a key.

The Pile's format: JSON lines, zstandard, the subset that a document belongs to under ``meta.pile_set_name``.

Layout and subset names as published with the Pile (arXiv 2101.00027); eleven of its subsets are in MT-NLG's corpus.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

import orjson
import zstandard

from .record import Dropped, Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from typing_extensions import Buffer


URL_KEYS = ("url", "uri")
BUFFER = 1 << 17
#: What a compressed file may expand to: a bound of the file, not of time. Text expands to some four times its size.
EXPANDS_FREELY = 1 << 30
MOST_EXPANSION = 256


def read_jsonl(path: Path, field: str, largest: int) -> Iterator[Record | Dropped]:
    """The objects of a file; the text is the string under ``field``."""
    for item in read_objects(path, largest):
        if isinstance(item, Dropped):
            yield item
            continue
        number, row = item
        text = row.get(field)
        if isinstance(text, str):
            yield Record(number, text, next((row[key] for key in URL_KEYS if isinstance(row.get(key), str)), None))
        else:
            yield Dropped("no_text", f"{path.name}: line {number + 1}", f"no string under {field!r}")


def read_objects(path: Path, largest: int) -> Iterator[tuple[int, dict[str, Any]] | Dropped]:
    """The objects of a file with their line numbers, counted from 0. Blank lines are no lines of data."""
    number = -1
    with open_lines(path) as file:
        while True:
            number += 1
            where = f"{path.name}: line {number + 1}"
            try:
                line = file.readline(largest + 1)
                too_long = len(line) > largest
                while len(line) > largest and not line.endswith(b"\n"):
                    line = file.readline(largest + 1)
            except BombError as error:
                yield Dropped("bomb", where, f"{error}; the rest of the file is lost")
                return
            except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
                if getattr(error, "errno", None):
                    raise
                yield Dropped("unreadable", where, f"{error}; the rest of the file is lost")
                return
            if not line:
                return
            if too_long:
                yield Dropped("too_large", where, f"longer than {largest} bytes")
            elif not line.isspace():
                yield _parsed(line, number, where)


def _parsed(line: bytes, number: int, where: str) -> tuple[int, dict[str, Any]] | Dropped:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Dropped("not_json", where, str(error))
    return (number, row) if isinstance(row, dict) else Dropped("not_json", where, "not an object")


@contextmanager
def open_lines(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of lines by its suffix: .gz, .zst, or anything else as it is. Reading may raise ``BombError``."""
    with path.open("rb") as raw:
        most = EXPANDS_FREELY + MOST_EXPANSION * os.fstat(raw.fileno()).st_size
        if path.suffix == ".gz":
            yield io.BufferedReader(_Expanding(gzip.GzipFile(fileobj=raw), most), BUFFER)
        elif path.suffix == ".zst":
            stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            yield io.BufferedReader(_Expanding(stream, most), BUFFER)
        else:
            yield raw


class BombError(Exception):
    """A compressed file that expands beyond all reason."""


class _Stream(Protocol):
    """What gzip's and zstandard's readers have in common."""

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer as far as it goes."""


class _Expanding(io.RawIOBase):
    """A decompressed stream that breaks off with ``BombError`` once it has grown to so many bytes."""

    def __init__(self, stream: _Stream, most: int) -> None:
        self._stream = stream
        self._left = most
        self._most = most

    def readable(self) -> bool:
        """As a stream to be read must say."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill the buffer as far as the stream reaches at once."""
        count = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise BombError(f"expands to more than {self._most} bytes, {MOST_EXPANSION} times the file")
        return count


def read_pile(path: Path, subsets: Collection[str] | None, largest: int) -> Iterator[Record | Dropped]:
    """The documents of these subsets (of all where ``subsets`` is None); those of others are not counted."""
    for item in read_objects(path, largest):
        if isinstance(item, Dropped):
            yield item
            continue
        number, row = item
        meta = row.get("meta")
        name = meta.get("pile_set_name") if isinstance(meta, dict) else None
        subset = name if isinstance(name, str) else None
        if subsets is not None and subset not in subsets:
            continue
        if isinstance(row.get("text"), str):
            yield Record(number, row["text"], subset=subset)
        else:
            yield Dropped("no_text", f"{path.name}: line {number + 1}", "no string under 'text'", subset)
