"""Documents and shards: the Parquet files (zstd-3) that every text stage reads and writes.

A shard is one Parquet file of documents, ``schema.SCHEMA``; any other Parquet file with texts is read as one too.
Stages over all sources number the documents consecutively across the shards, sorted by file name (``number_shards``),
so a document's number does not depend on the order of the arguments.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .console import Failure
from .engine import checksum, manifest_path
from .files import atomic_path, regular, sha256
from .schema import (
    SCHEMA,
    Document,
    FileColumns,
    arrow_damage,
    document_columns,
    repeating_columns,
    stored_columns,
    stored_schema,
)
from .text.arrays import small_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int64s


#: Limits of a row group, which is what a reader holds in memory: rows, or characters of texts and metadata, whichever
#: comes first.
ROWS_PER_GROUP = 4096
CHARACTERS_PER_GROUP = 1 << 22
#: Bytes of memory per character of a row group: as read, as strings, as changed, as written, and what libraries retain
#: of earlier groups.
GROUP_COPIES = 28
#: Size of a Parquet page, the unit that zstd compresses: larger than a row group, which makes files a tenth smaller.
BYTES_PER_PAGE = 1 << 25
SHARD_STEM = re.compile(r"(.+)-\d{5,}(\.\d{3,})?")


def group_memory(characters: int, text: int) -> int:
    """Bytes that a stage holds for a row group: ``characters`` per document on average, ``text`` characters in all."""
    return GROUP_COPIES * min(ROWS_PER_GROUP * characters, CHARACTERS_PER_GROUP, text)


class DamagedShard(Failure):
    """A shard's bytes differ from those that were written; its arguments are the path and the reason."""

    def __str__(self) -> str:
        """One line with path and reason."""
        path, reason = self.args
        out = path.parent.parent
        command = (
            f"mtnlg-data run {recipe} --out {out}" if (recipe := out / "recipe.toml").exists() else "what wrote it"
        )
        return f"{path}: damaged: {reason}; remove it, and rerun {command}"


@contextmanager
def named_damage(path: Path) -> Iterator[None]:
    """Raise ``DamagedShard`` where Arrow cannot read the Parquet file."""
    try:
        with arrow_damage():
            yield
    except pa.ArrowException as error:
        raise DamagedShard(path, str(error).partition("\n")[0]) from None


def shard_name(source: str, number: int, part: int = 0) -> str:
    """File name of a shard, unique over all sources: part ``part`` (most files have one) of file ``number``."""
    return f"{source}-{number:05d}.parquet" if part == 0 else f"{source}-{number:05d}.{part:03d}.parquet"


def shard_source(shard: Path) -> str:
    """The source in a shard's file name; the whole stem of a file that is named differently."""
    stem = SHARD_STEM.fullmatch(shard.stem)
    return stem[1] if stem else shard.stem


def _size(document: Document) -> int:
    """Approximate characters of text and metadata."""
    metadata = document.metadata or ""
    return len(document.text) + (len(metadata) if isinstance(metadata, str) else metadata.size)


def replace_columns(batch: pa.RecordBatch, columns: Mapping[str, object]) -> pa.RecordBatch:
    """The batch with the values of these columns replaced."""
    for name, values in columns.items():
        place = batch.schema.get_field_index(name)
        field = batch.schema.field(place)
        array = values if isinstance(values, pa.Array) else pa.array(values, field.type)
        batch = batch.set_column(place, field, array)
    return batch


class DocumentWriter:
    """Writes documents, one by one or in batches, in row groups; opened by ``writing_documents``."""

    def __init__(self, file: pq.ParquetWriter, schema: pa.Schema) -> None:
        self.documents = 0
        self.characters = 0  # of documents added one by one
        self._file = file
        self._schema = schema
        self._rows: list[Document] = []
        self._row_characters = 0
        self._pending: list[pa.RecordBatch | pa.Table] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, document: Document) -> None:
        """Append one document."""
        self._rows.append(document)
        self._row_characters += _size(document)
        self.characters += len(document.text)
        if len(self._rows) == ROWS_PER_GROUP or self._row_characters >= CHARACTERS_PER_GROUP:
            self._batch_rows()

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append a batch or table of documents, in a row group of its own if it does not fit into the last."""
        rows, size = self._pending_rows + batch.num_rows, self._pending_bytes + batch.nbytes
        if rows > ROWS_PER_GROUP or size > CHARACTERS_PER_GROUP:
            self.flush()
        self.documents += batch.num_rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes

    def flush(self) -> None:
        """End the row group: write everything that was appended."""
        self._batch_rows()
        if self._pending_rows:
            table = pa.concat_tables(
                part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in self._pending
            )
            self._file.write_table(stored_columns(table), row_group_size=ROWS_PER_GROUP)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _batch_rows(self) -> None:
        rows, self._rows, self._row_characters = self._rows, [], 0
        if rows:
            self.write(document_columns(rows, self._schema))


@contextmanager
def writing_documents(path: Path, schema: pa.Schema = SCHEMA) -> Iterator[DocumentWriter]:
    """A writer of documents with this schema, which replace ``path`` when the block ends."""
    with (
        atomic_path(path) as partial,
        pq.ParquetWriter(
            partial,
            stored_schema(schema),
            compression="zstd",
            compression_level=3,
            data_page_size=BYTES_PER_PAGE,
            use_dictionary=repeating_columns(schema),  # all columns have statistics: `why` searches by those of ids
        ) as file,
    ):
        writer = DocumentWriter(file, schema)
        yield writer
        writer.flush()


def write_documents(path: Path, documents: Iterable[Document | pa.RecordBatch | pa.Table]) -> int:
    """Replace ``path`` by these documents, or batches of them of one schema; returns the number of documents."""
    remaining = iter(documents)
    first = next(remaining, None)
    with writing_documents(path, SCHEMA if first is None or isinstance(first, Document) else first.schema) as writer:
        for part in () if first is None else chain([first], remaining):
            if isinstance(part, Document):
                writer.add(part)
            else:
                writer.write(part)
    return writer.documents


class DocumentFile:
    """A shard open for reading, one row group at a time.

    Raises ``DamagedShard`` if it is not a Parquet file or its SHA-256 differs from that in its manifest, and
    ``Failure`` if it has no texts. Hashing costs little beside the work of the readers, and only it detects damage by
    a disk; without ``verify`` the shard is not hashed.
    """

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        self._path = path
        if verify and manifest_path(path).exists() and checksum(path) != sha256(path):
            raise DamagedShard(path, "its SHA-256 is not that of its manifest")
        with named_damage(self._path):
            self._file = pq.ParquetFile(regular(path))
        self._columns = FileColumns(self._file.schema_arrow, path, shard_source(path))
        self.schema = self._columns.schema
        metadata = self._file.metadata
        self.rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._firsts = np.concatenate([[0], np.cumsum(self.rows, dtype=np.int64)]).tolist()

    def __enter__(self) -> Self:
        """Return this file."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file."""
        self._file.close()

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The documents of row group ``group``, with all columns or only ``columns``."""
        names = self.schema.names if columns is None else columns
        with named_damage(self._path):
            stored = self._columns.stored(names)
            table = self._file.read_row_group(group, columns=stored, use_threads=False)  # a task has one core
            if table.num_rows != self.rows[group]:
                raise pa.ArrowInvalid(f"row group {group} holds {table.num_rows} of {self.rows[group]} rows")
            batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
            return self._columns.documents(batches[0], self._firsts[group], names)

    def read_rows(self, rows: Int64s, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these ascending rows, one batch per row group; row groups without any of them are not read."""
        cuts = np.searchsorted(rows, self._firsts)
        for group in np.flatnonzero(np.diff(cuts)):
            rows_in_group = rows[cuts[group] : cuts[group + 1]] - self._firsts[group]
            yield self.read(int(group), columns).take(pa.array(rows_in_group))


def read_documents(
    path: Path, columns: Sequence[str] | None = None, *, batch_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The documents of a shard in order: a batch per row group, or several of about ``batch_bytes`` of text each.

    Raises ``DamagedShard`` as ``DocumentFile`` does.
    """
    with DocumentFile(path) as file:
        for group, rows in enumerate(file.rows):
            if rows:
                batch = file.read(group, columns)
                yield from [batch] if batch_bytes is None else small_batches(batch, batch_bytes)


def footer(path: Path) -> pq.FileMetaData:
    """The metadata in the footer of a Parquet file. Raises ``DamagedShard`` if it is not a Parquet file."""
    with named_damage(path):
        return pq.read_metadata(regular(path))


def file_schema(path: Path) -> pa.Schema:
    """The schema of a Parquet file. Raises ``DamagedShard`` if it is not a Parquet file."""
    return footer(path).schema.to_arrow_schema()


def text_bytes(path: Path) -> list[int]:
    """Uncompressed bytes of text in each row group of a shard, from its footer."""
    file = footer(path)
    text = FileColumns(file.schema.to_arrow_schema(), path, shard_source(path)).text
    (column,) = (column for column in range(file.num_columns) if file.schema.column(column).path == text)
    return [file.row_group(group).column(column).total_uncompressed_size for group in range(file.num_row_groups)]


class Shard(NamedTuple):
    """A Parquet file of documents; its row r is document ``first + r`` of all shards."""

    path: Path
    first: int
    rows: int
    checksum: str

    def fingerprint(self) -> object:
        """File name and checksum, which identify the content; callers add its place among the shards if it matters."""
        return [self.path.name, self.checksum]


def number_shards(paths: Iterable[Path]) -> list[Shard]:
    """The shards in the order of their file names, their documents numbered from 0.

    Raises ``Failure`` if two file names are equal, and ``DamagedShard`` if a path is no Parquet file.
    """
    shards: list[Shard] = []
    first = 0
    for path in sorted(paths, key=lambda path: path.name):
        if shards and shards[-1].path.name == path.name:
            raise Failure(f"{path}: {shards[-1].path} has the same file name; rename one of the two")
        rows = footer(path).num_rows
        shards.append(Shard(path, first, rows, checksum(path)))
        first += rows
    return shards


def read_rows(path: Path, rows: Int64s, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these rows of a shard as ``DocumentFile.read_rows`` does."""
    with DocumentFile(path) as file:
        yield from file.read_rows(rows, columns)
