"""Source readers, one per format: WARC and ARC, JSON lines, the Pile, Parquet, Arrow (data sets of Hugging Face).

No reader raises because of a file's content. A record that cannot be read is yielded as ``Dropped``, and reading
resumes after it where the format allows (at the next WARC record, line or row group); a file that ends in mid-record
yields one ``Dropped`` for the rest. Only a file that the system cannot open or read raises (``OSError``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arrow import read_arrow
from .jsonl import read_jsonl, read_pile
from .parquet import read_parquet
from .record import Dropped, Kind, Record, SourceFile, check_regular, name_below
from .warc import read_warc

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_RECORD_BYTES", "Dropped", "Kind", "Record", "SourceFile", "check_regular", "name_below", "read_records"]

MAX_RECORD_BYTES = 1 << 24


def read_records(file: SourceFile, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Record | Dropped]:
    """Yield the records of a file; a record longer than ``max_bytes`` is dropped unread."""
    match file.kind:
        case "warc":
            return read_warc(file.here, max_bytes)
        case "jsonl":
            return read_jsonl(file.here, file.field, max_bytes)
        case "pile":
            return read_pile(file.here, None if file.subset is None else {file.subset}, max_bytes)
        case "parquet":
            return read_parquet(file.here, file.field, max_bytes)
        case "arrow":
            return read_arrow(file.here, file.field, max_bytes)
