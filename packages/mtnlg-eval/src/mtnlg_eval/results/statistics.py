"""Intervals of scores and of their differences, where rows that share a group (an article, twins) are not independent.

A mean m of n rows in G clusters has the variance  G / (G - 1) sum over clusters of (sum of its rows' x - m)^2 / n^2.
A share has Wilson's interval (1927) at the number of independent rows that would have this variance: n times the
variance of independent rows over this one.

Two runs over the same rows are compared row by row. With d the difference of a row's two scores and, for shares, one
row of +1 and one of -1 added, n + 2 rows in all,

    mean = sum d / (n + 2),    variance = sum over clusters of (sum of its rows' d - mean)^2 / (n + 2)^2

give a 95 % interval (Bonett and Price 2012, where each row is a cluster): unlike the interval of two separate scores it
uses that both have the same rows, and unlike the plain one it does not collapse if no row differs. Among many
differences, the significant ones are those that Holm's procedure (1979) rejects at 5 % over all of them.
"""

from __future__ import annotations

from math import erfc, log, sqrt
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

T = TypeVar("T")
Z = 1.959963984540054
"""Quantile of the standard normal distribution for 95 %, two-sided."""
SIGNIFICANCE = 0.05
FOLDS = 20


class Estimate(NamedTuple):
    """A value with its 95 % interval; bounds that are not known equal the value."""

    value: float
    low: float
    high: float


def wilson_interval(successes: float, total: float) -> tuple[float, float]:
    """95 % confidence interval of a proportion, in [0, 1]; ``total`` is above 0.

    Wilson 1927. Unlike ± 1.96 standard errors it holds near 0 and 1 and for few rows.
    """
    share, spread = successes / total, Z * Z / total
    middle = share + spread / 2
    half = Z * sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def clustered_variance(values: Sequence[float] | NDArray[np.float64], clusters: Sequence[int]) -> float | None:
    """Variance of the mean of these rows; None for a single cluster."""
    x_N = np.asarray(values, float)
    squares, groups = _squares(x_N, clusters, float(x_N.mean()))
    return None if groups < 2 else squares * groups / (groups - 1) / len(x_N) ** 2


def clustered_error(values: Sequence[float], clusters: Sequence[int]) -> float | None:
    """Standard error of the mean of these rows."""
    variance = clustered_variance(values, clusters)
    return None if variance is None else sqrt(variance)


def numbered(names: Iterable[Hashable]) -> list[int]:
    """Number each distinct name in order of first appearance; returns the number of each item."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _squares(x_N: NDArray[np.float64], clusters: Sequence[int], mean: float) -> tuple[float, int]:
    """Sum over clusters of (sum of its rows' x - mean)^2, and the number of clusters."""
    sums, sizes = (np.bincount(clusters, weights) for weights in (x_N, np.ones(len(x_N))))
    return float(((sums - sizes * mean) ** 2).sum()), len(sums)


def mean_estimate(
    value: float, values: Sequence[float] | NDArray[np.float64], clusters: Sequence[int], stderr: float | None = None
) -> Estimate:
    """``value`` with Wilson's interval if it is the mean of rows' ``values`` in [0, 1], else with ± 1.96 ``stderr``."""
    if not len(values) or not all(0 <= x <= 1 for x in (min(values), max(values))):
        half = Z * (stderr or 0.0)
        return Estimate(value, value - half, value + half)
    clustered, apart = clustered_variance(values, clusters), clustered_variance(values, range(len(values)))
    # If all rows have one value, count each cluster as one row.
    rows = len(values) * apart / clustered if clustered and apart else len(set(clusters))
    return Estimate(value, *wilson_interval(value * rows, rows))


def jackknife_error(
    statistic: Callable[[list[object]], float], rows: Sequence[object], clusters: Sequence[int]
) -> float | None:
    """Jackknife standard error of any statistic of rows, leaving out a twentieth of the clusters at a time.

    None if there are fewer than two usable folds, as for a single cluster.
    """
    folds = [[row for row, cluster in zip(rows, clusters, strict=True) if cluster % FOLDS != n] for n in range(FOLDS)]
    left = [statistic(fold) for fold in folds if 0 < len(fold) < len(rows)]
    if len(left) < 2:
        return None
    return sqrt((len(left) - 1) * float(np.var(left)))


def paired(d_N: NDArray[np.float64], clusters: Sequence[int]) -> tuple[float, float]:
    """Adjusted mean of paired differences and its variance."""
    bounded = bool(np.abs(d_N).max() <= 1)
    n = len(d_N) + 2 * bounded
    mean = float(d_N.sum()) / n
    squares, _ = _squares(d_N, clusters, mean)
    return mean, (squares + bounded * ((1 - mean) ** 2 + (1 + mean) ** 2)) / n**2


def p_value(mean: float, variance: float) -> float:
    """Two-sided p-value: chance of a mean at least as far from 0 if nothing differs."""
    return erfc(abs(mean) / sqrt(2 * variance)) if variance else float(mean == 0)


def holm(p_values: Mapping[T, float]) -> set[T]:
    """The hypotheses that Holm's procedure rejects at a family-wise error rate of 5 %."""
    rejected = set[T]()
    for name in sorted(p_values, key=p_values.__getitem__):
        if p_values[name] > SIGNIFICANCE / (len(p_values) - len(rejected)):
            break
        rejected.add(name)
    return rejected


def bits_per_byte(pairs: Sequence[tuple[float, int]]) -> float:
    """Bits per byte of texts, given (log-likelihood in nats, length in bytes) of each."""
    return -sum(logp for logp, _ in pairs) / (log(2) * sum(size for _, size in pairs))
