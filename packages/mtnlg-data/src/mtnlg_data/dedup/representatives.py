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
    unite(parent, verify_pairs(candidates, unit.threshold, unit.rounds, unit.seed))
    places, component = components(parent)
    names = (candidates.ids, candidates.document_keys, candidates.sources)
    ids, keys, sources = (column.take(pa.array(places)) for column in names)
    kept = choose_representatives(keys.to_pylist(), sources.to_pylist(), component, unit.priority)
    removed = np.flatnonzero(kept[component] != np.arange(len(places)))
    twins = kept[component[removed]]
    pairs = np.stack([places[removed], places[twins]], axis=1)
    columns = [
        *(column.take(pa.array(removed)) for column in (ids, keys, sources)),
        pa.repeat(REASON, len(removed)),
        pa.array(jaccard(pairs, candidates.sets), pa.float32()),
        *(column.take(pa.array(twins)) for column in (ids, keys, sources)),
        component[removed],
        *(column for side in pairs.T for column in _shards_and_rows(unit.shards, candidates.documents[side])),
    ]
    with atomic_path(unit.output) as partial:
        pq.write_table(pa.table(columns, LEDGER_SCHEMA), partial, compression="zstd", compression_level=3)
    return {"components": len(kept), "removed": len(removed)}


def choose_representatives(
    keys: Sequence[str], sources: Sequence[str], component: NDArray[np.int64], priority: Sequence[str]
) -> NDArray[np.int64]:
    """Index of the document that each component keeps; sources outside ``priority`` share the last rank."""
    rank = {source: place for place, source in enumerate(priority)}
    best: dict[int, tuple[tuple[int, bytes, str], int]] = {}
    for index, (key, source, number) in enumerate(zip(keys, sources, component.tolist(), strict=True)):
        entry = ((rank.get(source, len(rank)), _key_hash(key), key), index)
        best[number] = min(best.get(number, entry), entry)
    return np.array([best[number][1] for number in range(len(best))], np.int64)


def _key_hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _shards_and_rows(shards: Sequence[Shard], documents: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Shard file name and row of each document."""
    firsts = np.array([shard.first for shard in shards], np.int64)
    shard = np.searchsorted(firsts, documents, side="right") - 1
    names = pa.array([shard.path.name for shard in shards])
    return names.take(pa.array(shard)), documents - firsts[shard]
