"""Cross entropy over a chunk of the head's logits (`head`): one pass for statistics, one to write the gradient.

The maximum and the sum of exponentials take a single pass: when a block of columns raises the maximum, the sum so far
is rescaled to it. Arithmetic is fp32; logits must be contiguous.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from functools import partial
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import TILE, Matrix, Operator, exp, launch, read, tile, write

BLOCK: Final = {"COLUMNS": 512, "num_warps": 2}
"""Eight columns per lane: one 16-byte load of bf16, and one running maximum."""

_LEAST = tl.constexpr(-2.0e38)  # below every logit; -Inf less -Inf is NaN, -Inf less this is not


@Operator
def statistics(logits_NV: Tensor, targets_N: Tensor, first: int) -> Tensor:
    """Fused `mtnlg_parallel.model.head.statistics`."""
    size = Matrix.of(logits_NV)
    out_3N = torch.empty(3, size.rows, dtype=torch.float32, device=logits_NV.device)
    launch(_loss_statistics, (size.rows,), logits_NV, targets_N.contiguous(), out_3N, *size, first, **BLOCK)
    return out_3N


@partial(Operator, overwritten="logits_NV")
def gradient(logits_NV: Tensor, targets_N: Tensor, first: int, logsumexp_N: Tensor, scale: float) -> None:
    """Fused `mtnlg_parallel.model.head.gradient`."""
    size, rows = Matrix.of(logits_NV), (targets_N.contiguous(), logsumexp_N.contiguous())
    launch(_loss_gradient, size.tiles, logits_NV, *rows, *size, first, scale, **TILE)


@triton.jit(do_not_specialize=["rows", "first"])
def _loss_statistics(logits_at, targets_at, out_at, rows, columns, first, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_at = logits_at + row * columns
    lane = tl.arange(0, COLUMNS // 8)
    eights = lane[:, None] * 8 + tl.arange(0, 8)[None, :]
    most_l, sum_l = tl.full([COLUMNS // 8], _LEAST, tl.float32), tl.zeros([COLUMNS // 8], tl.float32)
    for left in range(0, columns, COLUMNS):
        logit = tl.load(row_at + left + eights, mask=left + eights < columns, other=-float("inf")).to(tl.float32)
        higher_l = tl.maximum(most_l, tl.max(logit, 1))
        sum_l = sum_l * exp(most_l - higher_l) + tl.sum(exp(logit - higher_l[:, None]), 1)
        most_l = higher_l
    most = tl.max(most_l, 0)
    total = tl.sum(sum_l * exp(most_l - most), 0)
    target = tl.load(targets_at + row) - first
    here = (target >= 0) & (target < columns)
    tl.store(out_at + row, tl.where(total == 0.0, -float("inf"), most))
    tl.store(out_at + row + rows, total)
    tl.store(out_at + row + rows + rows, read(row_at + target, here))


@triton.jit(do_not_specialize=["rows", "first"])
def _loss_gradient(
    logits_at, targets_at, logsumexp_at, rows, columns, first, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, column, _group, at, there = tile(rows, columns, ROWS, COLUMNS)
    logit = tl.load(logits_at + at, mask=there, other=-float("inf")).to(tl.float32)
    logsumexp = read(logsumexp_at + row, row < rows)
    target = tl.load(targets_at + row, mask=row < rows, other=0) - first
    slope = exp(logit - logsumexp) - (column == target).to(tl.float32)
    write(logits_at + at, slope * scale, there)
