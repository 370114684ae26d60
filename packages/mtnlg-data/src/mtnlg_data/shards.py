"""Shards as the stages over all sources see them: every document has one number, whatever order the shards came in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .console import Failure
from .document import DocumentFile
from .engine import checksum, manifest_path
from .files import sha256
from .funnel import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .engine import Summary, Unit


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
