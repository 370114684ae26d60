"""Where documents come from: one reader a format, each yielding whole records and naming the broken ones.

No reader raises because of what a file holds. A record that cannot be read is yielded as ``Dropped`` and the reader
goes on behind it where the format has a place to go on from (a WARC record, a line, a row group); a file that breaks
off for good yields one ``Dropped`` for what is missing. Only what the system cannot open or read raises (``OSError``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .jsonl import read_jsonl, read_pile
from .parquet import read_parquet
from .record import Dropped, Kind, Record, SourceFile
from .warc import read_warc

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LARGEST", "Dropped", "Kind", "Record", "SourceFile", "read_records"]

LARGEST = 1 << 24


def read_records(file: SourceFile, largest: int = LARGEST) -> Iterator[Record | Dropped]:
    """The records of one file; one longer than ``largest`` bytes is dropped unread."""
    match file.kind:
        case "warc":
            return read_warc(file.path, largest)
        case "jsonl":
            return read_jsonl(file.path, file.field, largest)
        case "pile":
            return read_pile(file.path, None if file.subset is None else {file.subset}, largest)
        case "parquet":
            return read_parquet(file.path, file.field, largest)
