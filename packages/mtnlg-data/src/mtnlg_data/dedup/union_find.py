"""Links → connected components, by union-find (paper.md 4.3).

Used twice: over documents, where links are shared band keys and a component is a cluster of candidates; and within a
group of clusters, where links are verified pairs and a component is a set of duplicates. No verified pair crosses
clusters, so the components of a group are components of the corpus.
"""

from __future__ import annotations

import numpy as np

from mtnlg_data.array_types import Int64s  # noqa: TC001  (stays beside what numba compiles)
from mtnlg_data.text.compiled import jit

UNLINKED = -1


def new_forest(nodes: int) -> Int64s:
    """Parent array of a forest of unlinked nodes."""
    return np.full(nodes, UNLINKED)


@jit
def unite(parent: Int64s, ones: Int64s, others: Int64s) -> None:
    """Add the links from ``ones[i]`` to ``others[i]`` to the forest, in place; a tree's root is its lowest node."""
    for link in range(len(ones)):
        a, b = ones[link], others[link]
        if parent[a] < 0:
            parent[a] = a
        if parent[b] < 0:
            parent[b] = b
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        parent[max(a, b)] = min(a, b)


@jit
def find_all_roots(parent: Int64s) -> None:
    """Make every linked node's parent its root, in place: parents have lower numbers, so their roots are set before."""
    for node in range(len(parent)):
        if parent[node] >= 0:
            parent[node] = parent[parent[node]]


def components(parent: Int64s) -> tuple[Int64s, Int64s]:
    """Linked nodes, ascending, and the component of each, numbered from 0 by lowest node."""
    find_all_roots(parent)
    nodes = np.flatnonzero(parent != UNLINKED)
    _, component = np.unique(parent[nodes], return_inverse=True)
    return nodes, component
