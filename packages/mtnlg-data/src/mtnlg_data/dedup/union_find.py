"""Links → components: what is joined by a chain of pairs is one (paper.md 4.3).

It is used twice: over all documents, where links are shared keys and a component is a cluster of candidates; and in a
group of clusters, where links are verified pairs and a component is a set of duplicates. No verified pair leaves its
cluster, so components of groups are components of the whole.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mtnlg_data.words import compiled

ALONE = -1


def forest(nodes: int) -> NDArray[np.int64]:
    """Parents of so many nodes, of which none is linked yet."""
    return np.full(nodes, ALONE)


def _unite_by_graph(parent: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
    nodes, ends = np.unique(pairs, return_inverse=True)
    parent[nodes] = np.where(parent[nodes] == ALONE, nodes, parent[nodes])
    heads, owner = np.unique(roots(parent, nodes), return_inverse=True)
    one, other = owner[ends.reshape(-1, 2).T]
    graph = coo_array((np.ones(len(pairs), np.bool_), (one, other)), shape=(len(heads), len(heads)))
    count, joined = connected_components(graph, directed=False)
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, joined, heads)
    parent[heads] = least[joined]


@compiled(instead=_unite_by_graph)
def unite(parent: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
    """Link int64[pairs, 2] in the forest; the root of a tree is its lowest node."""
    for pair in range(len(pairs)):
        one, other = pairs[pair, 0], pairs[pair, 1]
        if parent[one] < 0:
            parent[one] = one
        if parent[other] < 0:
            parent[other] = other
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        while parent[other] != other:
            parent[other] = parent[parent[other]]
            other = parent[other]
        parent[max(one, other)] = min(one, other)


def roots(parent: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The root of each of these linked nodes."""
    found = parent[nodes]
    while not np.array_equal(above := parent[found], found):
        found = above
    return found


def linked(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nodes that are linked to any, ascending."""
    return np.flatnonzero(parent != ALONE)


def components(parent: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The linked nodes, ascending, and the component of each, numbered from 0 in the order of their first nodes."""
    nodes = linked(parent)
    _, component = np.unique(roots(parent, nodes), return_inverse=True)
    return nodes, component
