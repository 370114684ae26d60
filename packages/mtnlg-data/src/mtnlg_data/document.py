"""A document and how it lies on disk: Parquet, zstd-3, one schema through every stage that handles text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .files import aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: ``id`` names a document for good: source, file and place in it, so that no draw or tie depends on order or shards.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("language", pa.string()),
        pa.field("score", pa.float32()),
    ]
)
ROWS_A_GROUP = 4096
CHARACTERS_A_GROUP = 16_000_000


class Document(NamedTuple):
    """One row of ``SCHEMA``."""

    id: str
    source: str
    text: str
    url: str | None = None
    language: str | None = None
    score: float | None = None


def shard_name(source: str, number: int) -> str:
    """What the shards of a source are called, so that their names are unique over all sources."""
    return f"{source}-{number:05d}.parquet"


def source_of(shard: Path) -> str:
    """The source whose documents a shard holds, by its name."""
    return shard.stem.rpartition("-")[0]


def batches(documents: Iterable[Document]) -> Iterator[pa.RecordBatch]:
    """Gather documents into record batches of at most a row group, by number and by length."""
    rows: list[Document] = []
    characters = 0
    for document in documents:
        rows.append(document)
        characters += len(document.text)
        if len(rows) == ROWS_A_GROUP or characters >= CHARACTERS_A_GROUP:
            yield _batch(rows)
            rows, characters = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: list[Document]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA
    )


def write_documents(path: Path, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Replace ``path`` by these documents (of ``SCHEMA``), streaming; returns how many."""
    count = 0
    with aside(path) as partial, pq.ParquetWriter(partial, SCHEMA, compression="zstd", compression_level=3) as writer:
        for batch in batches:
            writer.write(batch, row_group_size=ROWS_A_GROUP)
            count += batch.num_rows
    return count


def read_documents(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The documents of one shard in order, a row group at a time."""
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=ROWS_A_GROUP, columns=columns)
