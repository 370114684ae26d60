"""Source readers, one per format: WARC and ARC, JSON lines, the Pile, Parquet, Arrow (data sets of Hugging Face).

No reader raises because of a file's content. A record that cannot be read is yielded as ``Dropped``, and reading
resumes after it where the format allows (at the next WARC record, line or row group); a file that ends in mid-record
yields one ``Dropped`` for the rest. Only a file that the system cannot open or read raises (``OSError``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mtnlg_data.transfer.url_files import RemoteFile

from .arrow import read_arrow
from .jsonl import read_jsonl, read_pile
from .parquet import read_parquet, row_groups
from .parts import Part
from .record import Dropped, Kind, Record, SourceFile, check_regular, name_below
from .warc import can_cut, read_warc
from .zstd_frames import has_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MAX_RECORD_BYTES",
    "Dropped",
    "Kind",
    "Part",
    "Record",
    "SourceFile",
    "check_regular",
    "cut_file",
    "is_hidden",
    "name_below",
    "read_records",
]

MAX_RECORD_BYTES = 1 << 24
STREAMS = {".gz", ".xz", ".bz2"}


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder that it is in, is hidden: what a command keeps beside files that it fetched is."""
    return any(part.startswith(".") for part in name.split("/"))


def read_records(file: SourceFile, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Record | Dropped]:
    """Yield the records of a file, or of its part; a record longer than ``max_bytes`` is dropped unread."""
    match file.kind:
        case "warc":
            return read_warc(file.here, max_bytes, file.part)
        case "jsonl":
            return read_jsonl(file.here, file.field, max_bytes, file.part)
        case "pile":
            return read_pile(file.here, None if file.subset is None else {file.subset}, max_bytes, file.part)
        case "parquet":
            return read_parquet(file.here, file.field, max_bytes, file.part)
        case "arrow":
            return read_arrow(file.here, file.field, max_bytes, file.part)


def cut_file(file: SourceFile, parts: int) -> list[SourceFile]:
    """The file as so many parts, or as itself where they cannot be read apart: at a URL, or compressed as one stream.

    Tables have no more parts than row groups.
    """
    if parts > 1 and not isinstance(file.path, RemoteFile):
        suffix = file.here.suffix
        match file.kind:
            case "parquet":
                parts = min(parts, row_groups(file.here))
            case "warc" if not can_cut(file.here, parts):
                parts = 1
            case "jsonl" | "pile" if suffix in STREAMS or (suffix == ".zst" and not has_frames(file.here, parts)):
                parts = 1
        return [replace(file, part=Part(number, parts)) for number in range(parts)]
    return [file]
