"""Links → connected components, by union-find (paper.md 4.3).

Used twice: over documents, where links are shared band keys and a component is a cluster of candidates (``clusters.py``
for more than fit into memory); and within a group of clusters, where links are verified pairs and a component is a set
of duplicates. No verified pair crosses clusters, so the components of a group are components of the corpus.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)

from mtnlg_data.text.compiled import jit

UNLINKED = -1


def new_forest(nodes: int) -> NDArray[np.int64]:
    """Parent array of a forest of unlinked nodes."""
    return np.full(nodes, UNLINKED)


@jit
def unite(parent: NDArray[np.int64], links: NDArray[np.int64]) -> None:
    """Add links int64[links, 2] to the forest, in place; the root of a tree is its lowest node."""
    for link in range(len(links)):
        a, b = links[link, 0], links[link, 1]
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


def find_roots(parent: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Root of each of these linked nodes."""
    roots = parent[nodes]
    while not np.array_equal(above := parent[roots], roots):
        roots = above
    return roots


def components(parent: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Linked nodes, ascending, and the component of each, numbered from 0 by lowest node."""
    nodes = np.flatnonzero(parent != UNLINKED)
    _, component = np.unique(find_roots(parent, nodes), return_inverse=True)
    return nodes, component


def reduce_links(links: NDArray[np.int64]) -> NDArray[np.int64]:
    """Links [nodes - components, 2] with the components of these: from each node to the lowest of its component."""
    nodes, ends = np.unique(links, return_inverse=True)
    parent = new_forest(len(nodes))
    unite(parent, ends.reshape(-1, 2))
    roots = find_roots(parent, np.arange(len(nodes)))
    is_root = roots == np.arange(len(nodes))
    return np.stack([nodes[~is_root], nodes[roots[~is_root]]], axis=1)
