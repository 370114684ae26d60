"""Decide by quality score: the Pareto draw (paper.md 4.2), from a hash of the document's key; histograms of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.text.hashing import salted_hashes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_data.array_types import Float64s

HISTOGRAM_EDGES = np.linspace(0.0, 1.0, 21)


def uniform_draws(seed: int, purpose: str, keys: Sequence[str]) -> Float64s:
    """One uniform draw in [0, 1) per document: a hash of the seed, the purpose and the document's key alone."""
    return (salted_hashes(keys, f"{seed} {purpose}") >> np.uint64(11)).astype(np.float64) * 2.0**-53


def histogram(scores: Float64s) -> list[int]:
    """Number of scores in each bin of ``HISTOGRAM_EDGES``."""
    return [int(count) for count in np.histogram(scores, HISTOGRAM_EDGES)[0]]


def keep_probability(scores: Float64s, alpha: float) -> Float64s:
    """Chance that a document of this score survives the draw: P(pareto(alpha) > 1 - score) = (2 - score) ** -alpha."""
    return (2.0 - scores) ** -alpha
