"""How many documents the files of a recipe hold, and how long they are, estimated from the beginnings of some of them.

Of each source as many as ``SAMPLED_FILES`` files are read, evenly spread, and of each of these the first
``SAMPLED_BYTES`` (of a Parquet or Arrow file ``SAMPLED_ROWS``; of one at a URL a copy is made). Records are extracted
as in a run.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.extract.text import PARSE_ERRORS, extract_record
from mtnlg_data.sources import Record, SourceFile, read_records
from mtnlg_data.transfer.url_files import read_beginning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_data.extract.text import ExtractSettings
    from mtnlg_data.recipe import Recipe
    from mtnlg_data.sources import Dropped

SAMPLED_FILES = 8
SAMPLED_BYTES = 2_000_000
SAMPLED_ROWS = 500


def estimate_corpus(recipe: Recipe) -> tuple[int, int]:
    """Number of documents after extraction and their mean length in characters.

    Raises ``Failure`` where a source has no file yet.
    """
    by_source: dict[str, list[SourceFile]] = {}
    for file in recipe.files():
        by_source.setdefault(file.source, []).append(file)
    documents = characters = 0.0
    for files in by_source.values():
        sampled = files[:: -(-len(files) // SAMPLED_FILES)]
        counts = [_count(file, recipe.extract) for file in sampled]
        scale = sum(map(_size, files)) / max(1.0, sum(size for _, _, size in counts))
        documents += scale * sum(count for count, _, _ in counts)
        characters += scale * sum(length for _, length, _ in counts)
    return round(documents), round(characters / documents) if documents >= 1 else 0


def _size(file: SourceFile) -> int:
    return file.stats[0]


def _count(file: SourceFile, settings: ExtractSettings) -> tuple[int, int, float]:
    """Documents and characters of the beginning of a file, and how many of its bytes that is."""
    if file.kind in {"parquet", "arrow"}:
        with TemporaryDirectory() as folder, file.local(Path(folder, "copy")) as local:
            items = list(islice(read_records(local, settings.largest), SAMPLED_ROWS))
            read = _size(file) * len(items) / max(len(items), _rows(local))
    else:
        items = list(_read_beginning(file))
        read = min(_size(file), SAMPLED_BYTES)
    lengths = [len(text) for item in items if isinstance(item, Record) and (text := _text(item, settings))]
    return len(lengths), sum(lengths), read


def _rows(file: SourceFile) -> int:
    if file.kind == "arrow":
        return sum(1 for _ in read_records(file))
    try:
        return int(pq.read_metadata(file.here).num_rows)
    except pa.ArrowException:
        return 0


def _read_beginning(file: SourceFile) -> Iterator[Record | Dropped]:
    with TemporaryDirectory() as folder:
        beginning = Path(folder, file.path.name)
        beginning.write_bytes(read_beginning(file.path, SAMPLED_BYTES))
        yield from read_records(replace(file, path=beginning))


def _text(record: Record, settings: ExtractSettings) -> str:
    try:
        extracted = extract_record(record, settings)
    except PARSE_ERRORS:
        return ""
    return "" if extracted.reason else extracted.text
