"""Links → clusters of candidates, in groups that fit into memory.

Documents that are connected by shared band keys form a cluster, and a duplicate is always in the same cluster as its
twin. So clusters are verified independently, in groups of about ``GROUP_BYTES``, one process per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_open

from .bands import read_links
from .union_find import find_roots, linked_nodes, new_forest, unite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary

    from .bands import SignatureRun

GROUP_BYTES = 1 << 29
CANDIDATE_OVERHEAD_BYTES = 512  # a candidate's names and numbers in memory, approximately


@dataclass(frozen=True)
class ClusterUnit(Unit):
    """Unit: all links → int64[2, candidates]: document numbers, ascending, and the place of each.

    Places number the candidates cluster by cluster, clusters by their first document.
    """

    links: Sequence[Path]
    bands: str  # digest of what the links depend on
    runs: Sequence[SignatureRun]
    documents: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("clusters", self.bands, GROUP_BYTES)


def cluster_documents(unit: ClusterUnit) -> Summary:
    """Write all candidates' places; ``groups`` of the summary is the place where each group ends."""
    parent = new_forest(unit.documents)
    for path in unit.links:
        for links in read_links(path):
            unite(parent, links)
    documents = linked_nodes(parent)
    roots = find_roots(parent, documents)
    del parent
    order = np.argsort(roots, kind="stable")
    roots = roots[order]
    is_first = np.ones(len(roots), np.bool_)
    is_first[1:] = roots[1:] != roots[:-1]
    del roots
    begins = np.flatnonzero(is_first)
    ends = group_ends(begins, _candidate_bytes(unit.runs, documents)[order])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    with atomic_open(unit.output) as file:
        for column in (documents, places):
            file.write(column.data)
    return {"candidates": len(documents), "clusters": len(begins), "groups": ends.tolist()}


def group_ends(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where groups end, for clusters that begin at these places: a group ends with the cluster that fills it.

    ``sizes`` is the bytes of each candidate, by place.
    """
    groups_before = np.concatenate([[0], np.cumsum(sizes)])[begins] // GROUP_BYTES
    return np.append(begins[1:][groups_before[1:] != groups_before[:-1]], len(sizes))[: len(sizes)]


def _candidate_bytes(runs: Sequence[SignatureRun], documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Upper bound of each candidate's memory in its group."""
    sizes = np.empty(len(documents), np.int64)
    cuts = np.searchsorted(documents, [run.first for run in runs] + [np.iinfo(np.int64).max])
    for run, begin, end in zip(runs, cuts[:-1], cuts[1:], strict=True):
        sizes[begin:end] = run.counts[documents[begin:end] - run.first].astype(np.int64) * 8
    return sizes + 8 * runs[0].bands + CANDIDATE_OVERHEAD_BYTES if runs else sizes


def read_places(path: Path, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Candidates among documents ``first`` up to ``last``, exclusive: document numbers, ascending, and places."""
    documents, places = np.memmap(path, np.int64, "r").reshape(2, -1)
    part = slice(*np.searchsorted(documents, [first, last]))
    return np.array(documents[part]), np.array(places[part])
