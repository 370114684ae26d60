"""Wilson's interval for a share, which holds near 0 and 1 and for few rows, where 1.96 standard errors do not."""

from __future__ import annotations

from math import sqrt

Z = 1.959963984540054
"""Quantile of the normal distribution for 95 %, both sides."""


def wilson(right: float, of: int) -> tuple[float, float]:
    """Bounds in [0, 1] of the share that ``right`` of ``of`` rows (at least one) come from, 95 %; Wilson 1927."""
    share, spread = right / of, Z * Z / of
    middle = share + spread / 2
    half = Z * sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
