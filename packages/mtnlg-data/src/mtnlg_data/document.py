"""Documents and shards: one Parquet schema (zstd-3) for every stage that handles text, its writer and readers.

A shard is one Parquet file of documents. Stages over all sources number the documents through all shards in the order
of the shards' file names (``number_shards``), so a document's number does not depend on the order of the arguments.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .console import Failure
from .engine import checksum, manifest_path
from .files import atomic_path, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .engine import Unit

#: ``id`` is source, file and position in the file. It never changes, so no draw or tie depends on order or shards.
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
ENGLISH = "en"  # in the column ``language``
#: Limits of a row group, which is what a reader holds in memory: rows, or characters of text, whichever comes first.
ROWS_PER_GROUP = 4096
CHARACTERS_PER_GROUP = 1 << 22


class Document(NamedTuple):
    """One row of ``SCHEMA``."""

    id: str
    source: str
    text: str
    url: str | None = None
    language: str | None = None
    score: float | None = None


class DamagedShard(Failure):
    """A shard's bytes are not those that were written; ``path`` lets the caller make it again."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self._reason = reason

    def __str__(self) -> str:
        """One line with path and reason."""
        return f"{self.path}: damaged: {self._reason}"


def shard_name(source: str, number: int, part: int = 0) -> str:
    """File name of a shard, unique over all sources: part ``part`` (most files have one) of file ``number``."""
    return f"{source}-{number:05d}.parquet" if part == 0 else f"{source}-{number:05d}.{part:03d}.parquet"


def shard_source(shard: Path) -> str:
    """The source in a shard's file name."""
    return shard.stem.rpartition("-")[0]


def batch_documents(documents: Iterable[Document]) -> Iterator[pa.RecordBatch]:
    """Group documents into record batches, each of at most one row group."""
    rows: list[Document] = []
    characters = 0
    for document in documents:
        rows.append(document)
        characters += len(document.text)
        if len(rows) == ROWS_PER_GROUP or characters >= CHARACTERS_PER_GROUP:
            yield _batch(rows)
            rows, characters = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: list[Document]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA
    )


class DocumentWriter:
    """Writes documents, one by one or in batches, in row groups; opened by ``writing_documents``."""

    def __init__(self, file: pq.ParquetWriter) -> None:
        self.documents = 0
        self.characters = 0  # of documents added one by one
        self._file = file
        self._rows: list[Document] = []
        self._row_characters = 0
        self._pending: list[pa.RecordBatch | pa.Table] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, document: Document) -> None:
        """Append one document."""
        self._rows.append(document)
        self._row_characters += len(document.text)
        self.characters += len(document.text)
        if len(self._rows) == ROWS_PER_GROUP or self._row_characters >= CHARACTERS_PER_GROUP:
            self._batch_rows()

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append a batch or table of ``SCHEMA``."""
        self.documents += batch.num_rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= ROWS_PER_GROUP or self._pending_bytes >= CHARACTERS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """End the row group: write everything that was appended."""
        self._batch_rows()
        if self._pending:
            table = pa.concat_tables(
                part if isinstance(part, pa.Table) else pa.Table.from_batches([part], SCHEMA) for part in self._pending
            )
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
            self._file.write_table(table, row_group_size=ROWS_PER_GROUP)

    def _batch_rows(self) -> None:
        rows, self._rows, self._row_characters = self._rows, [], 0
        if rows:
            self.write(_batch(rows))


@contextmanager
def writing_documents(path: Path) -> Iterator[DocumentWriter]:
    """A writer whose documents replace ``path`` when the block ends."""
    with (
        atomic_path(path) as partial,
        pq.ParquetWriter(partial, SCHEMA, compression="zstd", compression_level=3) as file,
    ):
        writer = DocumentWriter(file)
        yield writer
        writer.flush()


def write_documents(path: Path, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Replace ``path`` by these documents (of ``SCHEMA``), batch by batch; returns how many there are."""
    with writing_documents(path) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.documents


class DocumentFile:
    """A shard open for reading, one row group at a time.

    Raises ``DamagedShard`` if it is no Parquet file, or its SHA-256 is not that of its manifest. Hashing a shard costs
    little beside what its readers do with it, and is the only way to notice what a disk has lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if manifest_path(path).exists() and checksum(path) != sha256(path):
            raise DamagedShard(path, "its SHA-256 is not that of its manifest")
        with self._report_damage():
            self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        self.rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def __enter__(self) -> Self:
        """Return this file."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file."""
        self._file.close()

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Row group ``group``, all columns or these."""
        with self._report_damage():
            table = self._file.read_row_group(group, columns=None if columns is None else list(columns))
        return table.combine_chunks().to_batches()[0]

    @contextmanager
    def _report_damage(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise DamagedShard(self._path, str(error).partition("\n")[0]) from None


def read_documents(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The documents of a shard in order, one batch per row group. Raises ``DamagedShard`` as ``DocumentFile`` does."""
    with DocumentFile(path) as file:
        for group, rows in enumerate(file.rows):
            if rows:
                yield file.read(group, columns)


class UnitOutput(NamedTuple):
    """Output file and key of a unit, for the units that read it.

    A reader that held the whole unit instead would pickle all of that unit's inputs to every worker.
    """

    path: Path
    key: str

    @classmethod
    def of(cls, unit: Unit) -> UnitOutput:
        """The output of this unit."""
        return cls(unit.output, unit.key)


class Shard(NamedTuple):
    """A Parquet file of documents; its row r is document ``first + r`` of all shards."""

    path: Path
    first: int
    rows: int
    checksum: str


def number_shards(paths: Iterable[Path]) -> list[Shard]:
    """The shards in the order of their file names, their documents numbered from 0.

    Raises ``Failure`` if two file names are equal, or a path is no Parquet file.
    """
    shards: list[Shard] = []
    first = 0
    for path in sorted(paths, key=lambda path: path.name):
        if shards and shards[-1].path.name == path.name:
            raise Failure(f"{path}: {shards[-1].path} has the same file name; rename one of the two")
        rows = _row_count(path)
        shards.append(Shard(path, first, rows, checksum(path) if manifest_path(path).exists() else sha256(path)))
        first += rows
    return shards


def _row_count(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except FileNotFoundError:
        raise Failure(f"{path}: no such shard") from None
    except pa.ArrowInvalid as error:
        raise Failure(f"{path}: not a Parquet file of documents: {error}") from None


def read_rows(path: Path, rows: NDArray[np.int64], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(position in ``rows`` of the batch's first row, batch): these rows (ascending), one batch per row group.

    Row groups without any of the rows are not read.
    """
    with DocumentFile(path) as file:
        group_starts = np.concatenate([[0], np.cumsum(file.rows, dtype=np.int64)])
        cuts = np.searchsorted(rows, group_starts)
        for group in np.flatnonzero(np.diff(cuts)):
            rows_in_group = rows[cuts[group] : cuts[group + 1]] - group_starts[group]
            yield int(cuts[group]), file.read(int(group), columns).take(pa.array(rows_in_group))
