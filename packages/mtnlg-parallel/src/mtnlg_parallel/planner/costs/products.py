"""Seconds of a matrix product on one GPU, by tiles and waves.

The result of a product [m, k] x [k, n] is split into a x b tiles. P streaming multiprocessors with R operations per
second each process the tiles in waves:

    seconds = ceil(tiles / P) * 2 a b (k + FILL) / (R * efficiency)

``FILL`` is the fixed cost of a tile (first load, last store) in units of depth. A nearly empty last wave costs a whole
one (wave quantization). Smaller tiles sustain less, as they do fewer operations per byte on chip, a b / (a + b)
(`LOAD_COVER`). If there are few tiles, k is split and the parts are summed in fp32. The fastest tile is taken, as in a
BLAS. No product is faster than its bytes over the memory bandwidth.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mtnlg_parallel.planner.cluster import Cluster

TILES: Final = ((256, 128), (128, 128), (256, 64), (128, 64), (64, 64))
"""Tile height and width, largest first; each is also tried transposed."""

LOAD_COVER: Final = 30.0
"""Operations per byte on chip at which a tile waits for its loads half of the time: a tile of intensity x sustains
x / (x + LOAD_COVER) of the rate, here relative to the largest tile's."""

FILL: Final = 16

EPILOGUE = 1.0
"""Share of the result's memory traffic that nothing else on the multiprocessor hides."""

SPLITS: Final = (1, 2, 4, 8)
SINGLE: Final = 4

ALIGNED: Final = 8
"""16-bit elements in the 16 bytes that a multiprocessor loads at once."""

MISALIGNED: Final = 0.065
"""Rate relative to aligned rows (`ALIGNED`). Fitted to trials of BLOOM with heads of 150 and 108 elements."""


def _sustained(height: int, width: int) -> float:
    """Rate of a tile relative to the largest tile's."""
    intensity, largest = (a * b / (a + b) for a, b in ((height, width), TILES[0]))
    return intensity / (intensity + LOAD_COVER) * (largest + LOAD_COVER) / largest


def gemm_seconds(
    cluster: Cluster, m: int, n: int, k: int, *, batch: int = 1, extra_bytes: int = 0, width: float = 2
) -> float:
    """Seconds of ``batch`` products [m, k] x [k, n] with ``width`` bytes per factor element.

    ``extra_bytes`` is additional memory traffic per element of the result.
    """
    gpu, measured = cluster.gpu, cluster.measured
    rate = gpu.flops(width) / gpu.processors * measured.gemm * measured.clock
    if width <= 1:
        rate *= measured.fp8
    if width < SINGLE and (n % ALIGNED or k % ALIGNED):
        rate *= MISALIGNED
    bandwidth = gpu.memory_bandwidth * measured.memory
    written = EPILOGUE * batch * (2 + extra_bytes) * m * n / bandwidth
    moved = batch * (min(width, 2) * (m * k + k * n) + (2 + extra_bytes) * m * n) / bandwidth
    return max(_tiled_seconds(m, n, k, batch, gpu.processors, rate, bandwidth) + written, moved)


@lru_cache(maxsize=1 << 16)
def _tiled_seconds(  # noqa: PLR0917  (cached by these figures alone)
    m: int, n: int, k: int, batch: int, processors: int, rate: float, bandwidth: float
) -> float:
    best = float("inf")
    for tile in TILES:
        for rows, columns in {tile, tile[::-1]}:
            tiles = batch * ceil(m / rows) * ceil(n / columns)
            for split in SPLITS:
                if split > 1 and (k // split < 4 * columns or tiles >= processors):
                    break
                waves = ceil(tiles * split / processors)
                busy = waves * 2 * rows * columns * (k / split + FILL) / (rate * _sustained(*tile))
                summed = 2 * split * SINGLE * m * n * batch / bandwidth if split > 1 else 0.0
                best = min(best, busy + summed)
    return best
