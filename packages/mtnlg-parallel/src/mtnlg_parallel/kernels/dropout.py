"""residual + dropout(x + b) in one pass; backward regenerates the mask and sums over rows for the bias."""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dropout_mask import Dropout, draw, kept
from .tiles import SLAB, TILE, Matrix, launch, slab, step_of, store_sums, tile


def bias_dropout_add(x_H: Tensor, bias_H: Tensor, residual_H: Tensor, rate: float, training: bool) -> Tensor:
    """Fused `mtnlg_model.functional.bias_dropout_add`."""
    out: Tensor = _BiasDropoutAdd.apply(x_H, bias_H, residual_H, draw(rate if training else 0.0))
    return out


class _BiasDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_H: Tensor, bias_H: Tensor, residual_H: Tensor, dropout: Dropout) -> Tensor:  # noqa: ANN401  (torch's context)
        x_H, bias_H, residual_H = x_H.contiguous(), bias_H.contiguous(), residual_H.contiguous()
        out_H, size = torch.empty_like(x_H), Matrix.of(x_H)
        ctx.dropout, ctx.bias_dtype = dropout, bias_H.dtype
        launch(_dropout_forward, size.tiles, x_H, bias_H, residual_H, out_H, *size, *dropout, dropout.active, **TILE)
        return out_H

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        out_grad_H = gradients[0].contiguous()
        dropout, size = ctx.dropout, Matrix.of(out_grad_H)
        x_grad_H = torch.empty_like(out_grad_H) if dropout.active else out_grad_H
        sums_PH = size.partial_sums(1, out_grad_H.device)[0]
        launch(
            _dropout_backward, size.slab_grid, out_grad_H, x_grad_H, sums_PH, *size, *dropout, dropout.active, **SLAB
        )
        return x_grad_H, sums_PH.sum(0).to(ctx.bias_dtype), out_grad_H, None


@triton.jit(do_not_specialize=["rows", "seed", "threshold"])
def _dropout_forward(
    x_at,
    bias_at,
    residual_at,
    out_at,
    rows,
    columns,
    seed: tl.int64,
    threshold,
    scale,
    DROPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, column, group, at, there = tile(rows, columns, ROWS, COLUMNS)
    x = tl.load(x_at + at, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias_at + column, mask=column < columns, other=0.0).to(tl.float32)
    if DROPS:
        x = tl.where(kept(seed, threshold, row, group), x * scale, 0.0)
    x += tl.load(residual_at + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out_at + at, x.to(out_at.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "seed", "threshold"])
def _dropout_backward(
    out_grad_at,
    x_grad_at,
    sums_at,
    rows,
    columns,
    seed: tl.int64,
    threshold,
    scale,
    DROPS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number, first, height, column, group = slab(rows, columns, ROWS, COLUMNS)
    bias_grad = tl.zeros([STRIDE, COLUMNS], tl.float32)
    for step in range(0, height, STRIDE):
        row, at, there = step_of(first + step, rows, columns, column, STRIDE)
        x_grad = tl.load(out_grad_at + at, mask=there, other=0.0).to(tl.float32)
        if DROPS:
            x_grad = tl.where(kept(seed, threshold, row, group), x_grad * scale, 0.0)
            tl.store(x_grad_at + at, x_grad.to(x_grad_at.dtype.element_ty), mask=there)
        bias_grad += x_grad
    store_sums(sums_at, number, columns, column, bias_grad)
