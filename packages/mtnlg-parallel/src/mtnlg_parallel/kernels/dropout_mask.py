"""Dropout masks that are never stored: whether an element is kept is a function of the seed, its row and its column.

Philox-4x32 (Salmon et al. 2011) with seven rounds, the fewest that pass BigCrush, is keyed by a 62-bit seed and counts
by (group of eight columns, row). Its four words are eight 16-bit numbers; an element is kept if its number is at least
the threshold. So a rate is rounded to 1/65536, and kept elements are scaled by 1 / (1 - rounded rate). An element's
number does not depend on how a kernel is split into blocks.

Each call draws one seed from the default generator of the tensors' device, and the seed stays on that device: a
replayed CUDA graph draws a new one, and no call synchronizes with the host. Recomputation restores the generator's
state and so draws the same mask. `training.loop` decides whether tensor-parallel ranks share the state.
"""

# ruff: noqa: ANN001, ANN201  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

RESOLUTION = 1 << 16
"""Number of distinct dropout rates."""


def draw(rate: float, x: Tensor) -> Tensor | None:
    """Draw the seed of a new dropout mask for ``x`` at ``rate`` in [0, 1); a rate that rounds to 0 draws nothing."""
    return torch.randint(1 << 62, (), device=x.device) if round(rate * RESOLUTION) else None


def threshold_and_scale(rate: float) -> tuple[int, float]:
    """Smallest number that keeps an element, and the factor that scales kept elements."""
    threshold = round(rate * RESOLUTION)
    return threshold, RESOLUTION / (RESOLUTION - threshold) if threshold < RESOLUTION else 0.0


@triton.jit
def kept(seed, threshold, row, group):
    """Mask for [R, 1] rows and [1, G] groups of eight columns → booleans [R, 8 G], True where kept."""
    zero = row.to(tl.uint32) * 0 + group.to(tl.uint32) * 0
    a, b, c, d = tl.philox(seed, zero + group.to(tl.uint32), zero + row.to(tl.uint32), zero, zero, 7)
    words = tl.join(tl.join(a, c), tl.join(b, d))  # so that they lie as a, b, c, d
    upper = tl.join(words << 16, words)  # 16 bits at the top, whatever follows them
    return tl.reshape(upper, (upper.shape[0], upper.shape[1] * 8)) >= threshold.to(tl.uint32) << 16


@triton.jit
def kept_of_row(seed, threshold, row, left, COLUMNS: tl.constexpr):
    """Mask for COLUMNS columns of one row from ``left``, a multiple of eight → booleans [C]."""
    group = left // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    return tl.reshape(kept(seed, threshold, row + tl.zeros([1, 1], tl.int64), group), (COLUMNS,))
