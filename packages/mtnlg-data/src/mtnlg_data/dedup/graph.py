"""Edges → components: documents joined by a chain of duplicate pairs are one (paper.md 4.3).

Only documents that are in an edge are held, and the edges of one band at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


def components(edges: Sequence[Path]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The documents that are in any edge, ascending, and the component of each.

    Components are numbered from 0 in the order of their first documents.
    """
    nodes = np.empty(0, np.int64)
    for path in edges:
        band = np.load(path)
        nodes = np.union1d(nodes, np.concatenate([band["one"], band["other"]]))
    labels = np.arange(len(nodes))
    for path in edges:
        band = np.load(path)
        one, other = (labels[np.searchsorted(nodes, band[end])] for end in ("one", "other"))
        graph = coo_array((np.ones(len(band), np.bool_), (one, other)), shape=(len(nodes), len(nodes)))
        _, joined = connected_components(graph, directed=False)
        labels = joined[labels]
    _, firsts, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(firsts), np.int64)
    rank[np.argsort(firsts)] = np.arange(len(firsts))
    return nodes, rank[inverse]
