"""Dropout masks that are never stored: whether an element is kept is a function of the seed, its row and its column.

Philox-4x32 (Salmon et al. 2011) with seven rounds, the fewest that pass BigCrush, is keyed by a 62-bit seed and counts
by (group of eight columns, row). Its four words are eight 16-bit numbers; an element is kept if its number is at least
the threshold. So a rate is rounded to 1/65536, and kept elements are scaled by 1 / (1 - rounded rate). An element's
number does not depend on how a kernel is cut into blocks.

The seed comes from the default CPU generator, one number a call. Recomputation restores that generator's state and so
draws the same mask. Whether tensor-parallel ranks share the state is decided in `training.loop` and
`model.tensor_parallel`.
"""

# ruff: noqa: ANN001, ANN201  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

RESOLUTION = 1 << 16
"""Number of different rates."""


class Dropout(NamedTuple):
    """Arguments from which a kernel generates the mask of one call, in forward and in backward."""

    seed: int
    threshold: int
    scale: float

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return self.threshold > 0


NO_DROPOUT = Dropout(0, 0, 1.0)


def draw(rate: float) -> Dropout:
    """Dropout at ``rate`` in [0, 1) with a new seed; at rate 0 no number is drawn."""
    threshold = round(rate * RESOLUTION)
    if not threshold:
        return NO_DROPOUT
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    return Dropout(seed, threshold, RESOLUTION / (RESOLUTION - threshold) if threshold < RESOLUTION else 0.0)


@triton.jit
def kept(seed, threshold, row, group):
    """[R, 1] rows and [1, G] groups of eight columns → booleans [R, 8 G]."""
    zero = row.to(tl.uint32) * 0 + group.to(tl.uint32) * 0
    a, b, c, d = tl.philox(seed, zero + group.to(tl.uint32), zero + row.to(tl.uint32), zero, zero, 7)
    words = tl.join(tl.join(a, c), tl.join(b, d))  # so that they lie as a, b, c, d
    halves = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(halves, (halves.shape[0], halves.shape[1] * 8)).to(tl.int32) >= threshold


@triton.jit
def kept_of_row(seed, threshold, row, left, COLUMNS: tl.constexpr):
    """So many columns from ``left``, a multiple of eight, of one row → booleans [C]."""
    group = left // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    return tl.reshape(kept(seed, threshold, row + tl.zeros([1, 1], tl.int64), group), (COLUMNS,))
