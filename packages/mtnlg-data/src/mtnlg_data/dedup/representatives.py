"""Pairs → components → the ledger of what is removed, and for the sake of which document.

Of each component the document from the best source stays (paper.md 4.3); among several of that source the one whose
id hashes lowest, so that neither shards nor order decide.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.engine import key_of
from mtnlg_data.files import aside

from .union_find import components, forest, unite
from .verify import duplicates, gather, jaccard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

#: ``jaccard`` is between the document and its kept twin: below the threshold where a chain of others joins the two.
LEDGER = pa.schema(
    [
        pa.field("document", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("kept", pa.string(), nullable=False),
        pa.field("kept_source", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
        pa.field("component", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("kept_shard", pa.string(), nullable=False),
        pa.field("kept_row", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Group:
    """Unit: one group of clusters → what of it is removed, a part of the ledger, component by component."""

    number: int
    files: Sequence[Path]  # of the candidates of all shards
    batches: bytes  # int32[n, 2]: the file and the number in it of each record batch of this group
    verified: str  # a digest of all that the ledger depends on
    threshold: float
    rounds: int
    seed: int
    priority: Sequence[str]
    shards: Sequence[Shard]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("group", self.number, self.verified)


def judge(unit: Group) -> Summary:
    """Run one unit."""
    by_file: dict[int, list[int]] = {}
    for file, batch in np.frombuffer(unit.batches, np.int32).reshape(-1, 2).tolist():
        by_file.setdefault(file, []).append(batch)
    found = gather([(unit.files[file], numbers) for file, numbers in by_file.items()], unit.output.parent)
    parent = forest(len(found.numbers))
    unite(parent, duplicates(found, unit.threshold, unit.rounds, unit.seed))
    places, component = components(parent)
    names, sources = (column.take(pa.array(places)) for column in (found.ids, found.sources))
    kept = representatives(names.to_pylist(), sources.to_pylist(), component, unit.priority)
    removed = np.flatnonzero(kept[component] != np.arange(len(places)))
    twins = kept[component[removed]]
    pairs = np.stack([places[removed], places[twins]], axis=1)
    similarities = jaccard(pairs, found.sets)
    columns = [
        *(column.take(pa.array(which)) for which in (removed, twins) for column in (names, sources)),
        pa.array(similarities, pa.float32()),
        component[removed],
        *(column for end in pairs.T for column in _places(unit.shards, found.numbers[end])),
    ]
    with aside(unit.output) as partial:
        pq.write_table(pa.table(columns, LEDGER), partial, compression="zstd", compression_level=3)
    return {"components": len(kept), "removed": len(removed)}


def representatives(
    ids: Sequence[str], sources: Sequence[str], component: NDArray[np.int64], priority: Sequence[str]
) -> NDArray[np.int64]:
    """Of each component which of the documents stays; sources without a priority come last, all alike."""
    rank = {source: place for place, source in enumerate(priority)}
    kept: dict[int, tuple[tuple[int, bytes, str], int]] = {}
    for place, (name, source, number) in enumerate(zip(ids, sources, component.tolist(), strict=True)):
        claim = ((rank.get(source, len(rank)), _hash(name), name), place)
        kept[number] = min(kept.get(number, claim), claim)
    return np.array([kept[number][1] for number in range(len(kept))], np.int64)


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _places(shards: Sequence[Shard], documents: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Shard (its file's name) and row of every document."""
    firsts = np.array([shard.first for shard in shards], np.int64)
    shard = np.searchsorted(firsts, documents, side="right") - 1
    names = pa.array([shard.path.name for shard in shards])
    return names.take(pa.array(shard)), documents - firsts[shard]
