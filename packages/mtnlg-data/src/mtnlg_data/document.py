"""A document and how it lies on disk: Parquet, zstd-3, one schema through every stage that handles text.

Shards as the stages over all sources see them: every document has one number, whatever order the shards came in.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .console import Failure
from .engine import checksum, manifest_path
from .files import aside, sha256
from .tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .engine import Summary, Unit


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


class Made(NamedTuple):
    """A unit's output as other units refer to it: the file, and the key that stands for its content.

    A unit that held the other whole would carry all the shards that one is made of to every worker.
    """

    path: Path
    key: str

    @classmethod
    def by(cls, unit: Unit) -> Made:
        """What this unit makes."""
        return cls(unit.output, unit.key)


class Shard(NamedTuple):
    """One Parquet file of documents; its row r is document ``first + r`` of all."""

    path: Path
    first: int
    rows: int
    checksum: str


def numbered(paths: Iterable[Path]) -> list[Shard]:
    """The shards in the order of their file names, which must differ. Raises ``Failure`` naming a file that is none."""
    shards: list[Shard] = []
    first = 0
    for path in sorted(paths, key=lambda path: path.name):
        if shards and shards[-1].path.name == path.name:
            raise Failure(f"{path}: {shards[-1].path} has the same file name; rename one of the two")
        rows = _rows(path)
        shards.append(Shard(path, first, rows, checksum(path) if manifest_path(path).exists() else sha256(path)))
        first += rows
    return shards


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except FileNotFoundError:
        raise Failure(f"{path}: no such shard") from None
    except pa.ArrowInvalid as error:
        raise Failure(f"{path}: not a Parquet file of documents: {error}") from None


def rows_of(path: Path, rows: NDArray[np.int64], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """These rows (ascending) of a shard, a row group at a time, each with how many of them came before.

    Row groups that hold none of them are not read.
    """
    with DocumentFile(path) as file:
        begins = np.concatenate([[0], np.cumsum(file.rows, dtype=np.int64)])
        cuts = np.searchsorted(rows, begins)
        for group in np.flatnonzero(np.diff(cuts)):
            wanted = rows[cuts[group] : cuts[group + 1]] - begins[group]
            yield int(cuts[group]), file.read(int(group), columns).take(pa.array(wanted))


class Tallies:
    """One ``Tally`` a source, for units whose shard may hold several."""

    def __init__(self) -> None:
        self._by_source: dict[str, Tally] = {}

    def __getitem__(self, source: str) -> Tally:
        """The tally of this source, begun where there is none."""
        if source not in self._by_source:
            self._by_source[source] = Tally(source)
        return self._by_source[source]

    def summary(self) -> Summary:
        """All of them as JSON, for a unit's manifest."""
        parts = [self._by_source[source].summary() for source in sorted(self._by_source)]
        return {
            "sources": {source: tally for part in parts for source, tally in part["sources"].items()},
            "errors": [error for part in parts for error in part["errors"]],
            "shown": [document for part in parts for document in part["shown"]],
        }


def in_order(summaries: Iterable[Summary], order: Sequence[str]) -> list[str]:
    """The sources of these units' tallies: those of ``order`` first, in that order, then the others by name."""
    found = {source for summary in summaries for source in summary["sources"]}
    return [*order, *sorted(found.difference(order))]
