"""Verified pairs → components → the removed documents, and the one kept for each.

In each component the document from the best source stays (paper.md 4.3); of several from that source, the one with the
lowest hash of its key, so that the result does not depend on shards or order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_path
from mtnlg_data.tally import DROPPED_SCHEMA

from .union_find import components, new_forest, unite
from .verify import gather_candidates, jaccard, verify_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

REASON = "duplicate"
#: ``score`` is the Jaccard similarity of the document and its kept twin, below the threshold where other documents
#: connect the two.
LEDGER_SCHEMA = pa.schema(
    [
        *DROPPED_SCHEMA,
        pa.field("kept", pa.string(), nullable=False),
        pa.field("kept_key", pa.string(), nullable=False),
        pa.field("kept_source", pa.string(), nullable=False),
        pa.field("component", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("kept_shard", pa.string(), nullable=False),
        pa.field("kept_row", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class GroupUnit(Unit):
    """Unit: one group of clusters → the removed documents, its part of the ledger, component by component."""

    number: int
    files: Sequence[Path]  # the candidates of every shard
    batches: bytes  # int32[n, 2]: file, and batch in the file, of each record batch of this group
    ledger: str  # digest of everything that the ledger depends on
    threshold: float
    rounds: int
    seed: int
    priority: Sequence[str]
    shards: Sequence[Shard]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("group", self.number, self.ledger)


def deduplicate_group(unit: GroupUnit) -> Summary:
    """Verify one group's pairs, choose each component's representative and write what is removed."""
    batches_by_file: dict[int, list[int]] = {}
    for file, batch in np.frombuffer(unit.batches, np.int32).reshape(-1, 2).tolist():
        batches_by_file.setdefault(file, []).append(batch)
    batches = [(unit.files[file], numbers) for file, numbers in batches_by_file.items()]
    candidates = gather_candidates(batches, unit.output.parent)
    parent = new_forest(len(candidates.documents))
    for pairs in verify_pairs(candidates, unit.threshold, unit.rounds, unit.seed):
        unite(parent, pairs)
    places, component = components(parent)
    rows = candidates.rows[places]
    _, keys, sources = candidates.names.take(pa.array(rows)).columns
    kept = choose_representatives(keys, sources, component, unit.priority)
    del keys, sources
    removed = np.flatnonzero(kept[component] != np.arange(len(places)))
    twins = kept[component[removed]]
    pairs = np.stack([places[removed], places[twins]], axis=1)
    columns = [
        *candidates.names.take(pa.array(rows[removed])).columns,
        pa.repeat(REASON, len(removed)),
        pa.array(jaccard(pairs, candidates.sets), pa.float32()),
        *candidates.names.take(pa.array(rows[twins])).columns,
        component[removed],
        *(column for side in pairs.T for column in _shards_and_rows(unit.shards, candidates.documents[side])),
    ]
    with atomic_path(unit.output) as partial:
        pq.write_table(pa.table(columns, LEDGER_SCHEMA), partial, compression="zstd", compression_level=3)
    return {"components": len(kept), "removed": len(removed)}


def choose_representatives(
    keys: pa.ChunkedArray, sources: pa.ChunkedArray, component: NDArray[np.int64], priority: Sequence[str]
) -> NDArray[np.int64]:
    """Index of the document that each component keeps; sources outside ``priority`` share the last rank.

    Components are numbered from 0. Of keys with one hash the lowest stays.
    """
    ranks = pc.fill_null(pc.index_in(sources, pa.array(priority, pa.string())), len(priority)).to_numpy()
    hashes = np.fromiter((_key_hash(key.as_py()) for key in keys), np.uint64, len(keys))
    order = np.lexsort((hashes, ranks, component))
    begins = np.searchsorted(component[order], np.arange(component.max(initial=-1) + 1))
    kept = order[begins]
    following = order[np.minimum(begins + 1, len(order) - 1)]
    alike = (component[following] == component[kept]) & (ranks[following] == ranks[kept])
    for number in np.flatnonzero(alike & (hashes[following] == hashes[kept]) & (following != kept)).tolist():
        first = kept[number]
        same = (component == number) & (ranks == ranks[first]) & (hashes == hashes[first])
        kept[number] = min(np.flatnonzero(same).tolist(), key=lambda index: keys[index].as_py())
    return kept


def _key_hash(key: str) -> int:
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _shards_and_rows(shards: Sequence[Shard], documents: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Shard file name and row of each document."""
    firsts = np.array([shard.first for shard in shards], np.int64)
    shard = np.searchsorted(firsts, documents, side="right") - 1
    names = pa.array([shard.path.name for shard in shards])
    return names.take(pa.array(shard)), documents - firsts[shard]
