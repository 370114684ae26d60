"""Verified pairs → components → the removed documents, and the one kept for each.

In each component the document from the best source stays (paper.md 4.3); of several from that source, the one with the
lowest hash of its key, so that the result does not depend on shards or order. (Of equal hashes, the first document's.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .runs import LIBRARY_BYTES, MERGE_COPIES, RUN_BYTES, CorpusUnit, Exchanged, write_runs
from .union_find import components, new_forest, unite
from .verify import GROUP_BYTES, Candidates, gather_candidates, jaccard, verify_pairs

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary


@dataclass(frozen=True)
class GroupUnit(CorpusUnit):
    """Unit: one group of clusters → the removed documents, each with the one that is kept and their similarity."""

    candidates: Exchanged
    threshold: float
    rounds: int
    seed: int
    output: Path

    @property
    def memory(self) -> int:
        """The candidates of a group of the usual size, and a merge of them."""
        return LIBRARY_BYTES + MERGE_COPIES * RUN_BYTES + 2 * GROUP_BYTES


def deduplicate_group(unit: GroupUnit) -> Summary:
    """Verify one group's pairs, choose each component's representative and write what is removed."""
    candidates = gather_candidates(unit.candidates.read(unit.number), unit.candidates.folder)
    parent = new_forest(len(candidates.documents))
    for pairs in verify_pairs(candidates, unit.threshold, unit.rounds, unit.seed):
        unite(parent, pairs)
    rows, component = components(parent)
    kept = rows[choose_representatives(candidates, rows, component)][component]
    pairs = np.stack([rows, kept], axis=1)[kept != rows]
    removed, twins = candidates.documents[pairs].T
    with write_runs(unit.output) as runs:
        score = jaccard(pairs, candidates.sets).astype(np.float32)
        runs.add(unit.corpus.keys(removed), {"kept": np.ascontiguousarray(twins), "score": score})
    return {"removed": len(removed)}


def choose_representatives(
    candidates: Candidates, rows: NDArray[np.int64], component: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Index in ``rows`` of the candidate that each component keeps; components are numbered from 0."""
    documents, ranks, orders = candidates.documents[rows], candidates.ranks[rows], candidates.orders[rows]
    order = np.lexsort((documents, orders, ranks, component))
    return order[np.searchsorted(component[order], np.arange(component.max(initial=-1) + 1))]
