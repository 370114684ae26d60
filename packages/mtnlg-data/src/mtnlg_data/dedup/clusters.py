"""Links → clusters of candidates, in groups that fit into memory.

Documents that are joined by a chain of shared keys form a cluster; a duplicate's twin is always in its own. So clusters
are verified apart from one another, by groups of about ``GROUP_BYTES``, each group in one place and one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.engine import key_of
from mtnlg_data.files import replacing

from .bands import links_in
from .union_find import forest, linked, roots, unite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary

    from .bands import Run

GROUP_BYTES = 1 << 29
OBJECTS_BYTES = 512  # what a candidate's names and numbers take in memory, about


@dataclass(frozen=True)
class Clusters:
    """Unit: the links of all parts → int64[2, candidates]: documents, ascending, and the place of each.

    Places count the candidates cluster by cluster, the clusters by their first documents.
    """

    links: Sequence[Path]
    linked: str  # a digest of the keys of the links' units
    runs: Sequence[Run]
    documents: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("clusters", self.linked, GROUP_BYTES)


class Placed(NamedTuple):
    """What ``cluster`` wrote."""

    numbers: NDArray[np.int64]
    places: NDArray[np.int64]


def cluster(unit: Clusters) -> Summary:
    """Run one unit; ``groups`` of the summary has the place at which each group ends."""
    parent = forest(unit.documents)
    for path in unit.links:
        for pairs in links_in(path):
            unite(parent, pairs)
    numbers = linked(parent)
    heads = roots(parent, numbers)
    del parent
    order = np.argsort(heads, kind="stable")
    heads = heads[order]
    is_first = np.ones(len(heads), np.bool_)
    is_first[1:] = heads[1:] != heads[:-1]
    del heads
    begins = np.flatnonzero(is_first)
    ends = group_ends(begins, _weights(unit.runs, numbers)[order])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    with replacing(unit.output) as file:
        for column in (numbers, places):
            file.write(column.data)
    return {"candidates": len(numbers), "clusters": len(begins), "groups": ends.tolist()}


def group_ends(begins: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cut clusters that begin at these places into groups: a group is full with the cluster that takes it there."""
    before = np.concatenate([[0], np.cumsum(weights)])[begins] // GROUP_BYTES
    return np.append(begins[1:][before[1:] != before[:-1]], len(weights))[: len(weights)]


def _weights(runs: Sequence[Run], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that each of these documents takes in its group, at most."""
    weights = np.empty(len(numbers), np.int64)
    cuts = np.searchsorted(numbers, [run.first for run in runs] + [np.iinfo(np.int64).max])
    for run, begin, end in zip(runs, cuts[:-1], cuts[1:], strict=True):
        weights[begin:end] = run.counts[numbers[begin:end] - run.first].astype(np.int64) * 8
    return weights + 8 * runs[0].bands + OBJECTS_BYTES if runs else weights


def placed(path: Path, first: int, last: int) -> Placed:
    """The candidates among the documents ``first`` to ``last``."""
    numbers, places = np.memmap(path, np.int64, "r").reshape(2, -1)
    here = slice(*np.searchsorted(numbers, [first, last]))
    return Placed(np.array(numbers[here]), np.array(places[here]))
