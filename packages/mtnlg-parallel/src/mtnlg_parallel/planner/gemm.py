"""A matrix product by its shape: tiles, waves over the processors, and the bytes that it reads and writes.

A product [m, k] x [k, n] is cut into tiles of the result; each tile is one processor's work, and processors take tiles
in waves. With P processors of R operations a second each, a tile of a x b

    seconds = ceil(tiles / P) * 2 a b (k + FILL) / (R * efficiency)

where ``FILL`` is the depth of products that loading the first and storing the last of a tile costs. A last wave that
is nearly empty costs a whole one: wave quantisation. Smaller tiles fill it better and sustain less, as each byte
brought on chip serves fewer products: a b / (a + b) operations a byte. Where tiles are few, k is split and the parts
are summed in fp32. A library chooses the quickest, and so do we. No product beats its bytes over the bandwidth.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .hardware import Cluster

TILES: Final = ((256, 128, 1.0), (128, 128, 0.93), (256, 64, 0.87), (128, 64, 0.80), (64, 64, 0.62))
"""Height, width and sustained share of what the largest reaches (by operations a byte on chip); both ways round."""

FILL: Final = 16

SPLITS: Final = (1, 2, 4, 8)
HALF: Final = 2
SINGLE: Final = 4


def seconds(cluster: Cluster, m: int, n: int, k: int, *, batch: int = 1, extra_bytes: int = 0) -> float:
    """Time of ``batch`` products [m, k] x [k, n] in 16-bit; ``extra_bytes`` more an element of the result."""
    gpu, measured = cluster.gpu, cluster.measured
    rate = gpu.peak_flops / gpu.processors * measured.gemm
    bandwidth = gpu.memory_bandwidth * measured.memory
    return _seconds(m, n, k, batch, extra_bytes, gpu.processors, rate, bandwidth)


@lru_cache(maxsize=1 << 16)
def _seconds(  # noqa: PLR0917  (cached by these figures alone)
    m: int, n: int, k: int, batch: int, extra: int, processors: int, rate: float, bandwidth: float
) -> float:
    moved = batch * (HALF * (m * k + k * n + m * n) + extra * m * n) / bandwidth
    best = float("inf")
    for height, width, sustained in TILES:
        for rows, columns in {(height, width), (width, height)}:
            tiles = batch * ceil(m / rows) * ceil(n / columns)
            for split in SPLITS:
                if split > 1 and (k // split < 4 * columns or tiles >= processors):
                    break
                waves = ceil(tiles * split / processors)
                busy = waves * 2 * rows * columns * (k / split + FILL) / (rate * sustained)
                summed = 2 * split * SINGLE * m * n * batch / bandwidth if split > 1 else 0.0
                best = min(best, busy + summed)
    return max(best, moved)
