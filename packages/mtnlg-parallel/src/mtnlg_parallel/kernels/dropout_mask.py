"""Dropout without a mask in memory: which elements stay is a function of a seed and of where they stand.

Philox-4x32 (Salmon et al. 2011) of seven rounds, the fewest that pass BigCrush, keyed by a 62-bit seed and counted by
(group of eight columns, row), gives four words, that is eight numbers of 16 bits; an element stays where its number is
no less than the threshold. So a rate is rounded to 1/65536, and what stays is scaled by what the rounded rate leaves.
However a kernel is cut into blocks, an element's number is the same.

The seed comes from the default CPU generator, one number a call. Recomputation restores that generator's state and
draws the same mask again; tensor-parallel ranks share it, or do not, as their regions need (`training`, `tensor`).
"""

# ruff: noqa: ANN001, ANN201  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

STEPS = 1 << 16


class Dropout(NamedTuple):
    """One call's dropout: what a kernel needs to draw its mask, now and again backward."""

    seed: int
    threshold: int
    scale: float

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return self.threshold > 0


NONE = Dropout(0, 0, 1.0)


def draw(rate: float) -> Dropout:
    """Dropout of ``rate`` in [0, 1) with a fresh seed; at rate 0 no number is drawn."""
    threshold = round(rate * STEPS)
    if not threshold:
        return NONE
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    return Dropout(seed, threshold, STEPS / (STEPS - threshold) if threshold < STEPS else 0.0)


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
