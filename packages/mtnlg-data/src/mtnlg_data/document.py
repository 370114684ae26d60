"""A document and how it lies on disk: Parquet, zstd-3, one schema through every stage that handles text."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from .console import Failure
from .engine import checksum, manifest_path
from .files import aside, sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
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
#: A row group is what a reader holds: so many rows, or so many characters of text where those are fewer rows.
ROWS_A_GROUP = 4096
CHARACTERS_A_GROUP = 1 << 22


class Document(NamedTuple):
    """One row of ``SCHEMA``."""

    id: str
    source: str
    text: str
    url: str | None = None
    language: str | None = None
    score: float | None = None


class Damaged(Failure):
    """A shard whose bytes are not those that were written. Whoever can make it again may catch this."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, what)
        self.path = path
        self._what = what

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.path}: damaged: {self._what}"


def shard_name(source: str, number: int, part: int = 0) -> str:
    """What the shards of a source are called, so that their names are unique over all sources.

    ``part`` counts the shards of one file, the ``number``-th of its source; most have one.
    """
    return f"{source}-{number:05d}.parquet" if part == 0 else f"{source}-{number:05d}.{part:03d}.parquet"


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


class DocumentWriter:
    """Takes documents one by one or in batches and writes them in row groups; made by ``writing_documents``."""

    def __init__(self, file: pq.ParquetWriter) -> None:
        self.documents = 0
        self.characters = 0  # of the documents that came one by one
        self._file = file
        self._rows: list[Document] = []
        self._in_rows = 0
        self._pending: list[pa.RecordBatch | pa.Table] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, document: Document) -> None:
        """Append one."""
        self._rows.append(document)
        self._in_rows += len(document.text)
        self.characters += len(document.text)
        if len(self._rows) == ROWS_A_GROUP or self._in_rows >= CHARACTERS_A_GROUP:
            self._batch_rows()

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append these, of ``SCHEMA``."""
        self.documents += batch.num_rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= ROWS_A_GROUP or self._pending_bytes >= CHARACTERS_A_GROUP:
            self.flush()

    def flush(self) -> None:
        """End the row group here."""
        self._batch_rows()
        if self._pending:
            table = pa.concat_tables(
                part if isinstance(part, pa.Table) else pa.Table.from_batches([part], SCHEMA) for part in self._pending
            )
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
            self._file.write_table(table, row_group_size=ROWS_A_GROUP)

    def _batch_rows(self) -> None:
        rows, self._rows, self._in_rows = self._rows, [], 0
        if rows:
            self.write(_batch(rows))


@contextmanager
def writing_documents(path: Path) -> Iterator[DocumentWriter]:
    """Replace ``path`` by the documents that are written meanwhile."""
    with aside(path) as partial, pq.ParquetWriter(partial, SCHEMA, compression="zstd", compression_level=3) as file:
        writer = DocumentWriter(file)
        yield writer
        writer.flush()


def write_documents(path: Path, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Replace ``path`` by these documents (of ``SCHEMA``), streaming; returns how many."""
    with writing_documents(path) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.documents


class DocumentFile:
    """A shard open for reading, a row group at a time.

    Raises ``Damaged`` where it is none, or not the one of its manifest: to hash a shard costs little beside what its
    readers do with it, and a disk that lost some of it tells nobody else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if manifest_path(path).exists() and checksum(path) != sha256(path):
            raise Damaged(path, "its SHA-256 is not that of its manifest")
        with self._checked():
            self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        self.rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file."""
        self._file.close()

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """One row group, or these columns of it."""
        with self._checked():
            table = self._file.read_row_group(group, columns=None if columns is None else list(columns))
        return table.combine_chunks().to_batches()[0]

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise Damaged(self._path, str(error).partition("\n")[0]) from None


def read_documents(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The documents of one shard in order, a row group at a time; see ``DocumentFile``."""
    with DocumentFile(path) as file:
        for group, rows in enumerate(file.rows):
            if rows:
                yield file.read(group, columns)
