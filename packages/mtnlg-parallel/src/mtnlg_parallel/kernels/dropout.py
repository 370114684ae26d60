"""residual + dropout(x + b), b optional, in one pass; backward regenerates the mask and sums over rows for b."""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dropout_mask import draw, kept, threshold_and_scale
from .tiles import TILE, Matrix, Operator, contiguous, launch, read, slab, step_of, sum_slabs, tile, write


def bias_dropout_add(x_H: Tensor, bias_H: Tensor | None, residual_H: Tensor, rate: float) -> Tensor:
    """Fused `mtnlg_model.functional.bias_dropout_add`."""
    out: Tensor = _dropped_sum(x_H, bias_H, residual_H, draw(rate, x_H), rate)
    return out


def dropout_add(x_H: Tensor, residual_H: Tensor, rate: float) -> Tensor:
    """Fused `mtnlg_model.functional.dropout_add`."""
    return bias_dropout_add(x_H, None, residual_H, rate)


@Operator
def _dropped_sum(x_H: Tensor, bias_H: Tensor | None, residual_H: Tensor, seed: Tensor | None, rate: float) -> Tensor:
    given, size = contiguous(x_H, bias_H, residual_H), Matrix.of(x_H)
    out_H = torch.empty_like(x_H, memory_format=torch.contiguous_format)
    launch(_dropout_forward, size.tiles, *given, out_H, seed, *size, *threshold_and_scale(rate), **TILE)
    return out_H


@Operator
def _dropped_sum_backward(
    out_grad_H: Tensor, bias_H: Tensor | None, seed: Tensor | None, rate: float
) -> tuple[Tensor, Tensor]:
    """Gradients of x, empty if nothing is dropped, and of the bias, empty if there is none."""
    out_grad_H, size = out_grad_H.contiguous(), Matrix.of(out_grad_H)
    x_grad_H = out_grad_H.new_empty(0) if seed is None else torch.empty_like(out_grad_H)
    bias_grad_H = None if bias_H is None else size.sum_like(bias_H)
    sums = size.slab_sums(out_grad_H.device)
    arguments = (out_grad_H, x_grad_H, bias_grad_H, *sums, seed, *size, *threshold_and_scale(rate))
    launch(_dropout_backward, size.slab_grid, *arguments, **size.slab)
    return x_grad_H, out_grad_H.new_empty(0) if bias_grad_H is None else bias_grad_H


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401  (torch's context)
    """Keep bias and seed on ``ctx``, not as saved tensors: a layer is recomputed up to its last saved tensor."""
    del output
    _x_H, ctx.bias_H, _residual_H, ctx.seed, ctx.rate = inputs


def _gradients(ctx: Any, out_grad_H: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
    bias_H, seed = ctx.bias_H, ctx.seed
    if bias_H is None and seed is None:
        return out_grad_H, None, out_grad_H, None, None
    x_grad_H, bias_grad_H = _dropped_sum_backward(out_grad_H, bias_H, seed, ctx.rate)
    return out_grad_H if seed is None else x_grad_H, None if bias_H is None else bias_grad_H, out_grad_H, None, None


_dropped_sum.derive(_gradients, _save)


@triton.jit(do_not_specialize=["rows", "threshold"])
def _dropout_forward(
    x_at,
    bias_at,
    residual_at,
    out_at,
    seed_at,
    rows,
    columns,
    threshold,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, column, group, at, there = tile(rows, columns, ROWS, COLUMNS)
    x = read(x_at + at, there)
    if bias_at is not None:
        x += read(bias_at + column, column < columns)
    if seed_at is not None:
        x = tl.where(kept(tl.load(seed_at), threshold, row, group), x * scale, 0.0)
    x += read(residual_at + at, there)
    write(out_at + at, x, there)


@triton.jit(do_not_specialize=["rows", "threshold"])
def _dropout_backward(
    out_grad_at,
    x_grad_at,
    bias_grad_at,
    sums_at,
    counters_at,
    seed_at,
    rows,
    columns,
    threshold,
    scale,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number, first, height, column, group = slab(rows, columns, ROWS, COLUMNS)
    bias_grad = tl.zeros([STRIDE, COLUMNS], tl.float32)
    seed = tl.load(seed_at) if seed_at is not None else 0
    for step in range(0, height, STRIDE):
        row, at, there = step_of(first + step, rows, columns, column, STRIDE)
        x_grad = read(out_grad_at + at, there)
        if seed_at is not None:
            x_grad = tl.where(kept(seed, threshold, row, group), x_grad * scale, 0.0)
            write(x_grad_at + at, x_grad, there)
        bias_grad += x_grad
    if bias_grad_at is not None:
        sum_slabs(sums_at, counters_at, bias_grad_at, number, bias_grad, rows, columns, column, ROWS)
