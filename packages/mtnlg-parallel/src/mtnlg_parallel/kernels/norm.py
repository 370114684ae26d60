"""Layer norm, alone and fused after bias + dropout + residual add.

    x̂ = (x - mean) / d,  d = sqrt(variance + eps)        y = x̂ w + b
    dx = (w dy - m - x̂ n) / d,  m and n the row's means of w dy and of w dy x̂

Forward, a program makes two passes over its row: mean and variance by Welford's recurrence in every lane, then y; the
second pass finds the row in cache. After an add, the first pass writes the rounded sum and the norm is that of the
rounded values, as in eager code. Backward computes m and n in a pass over rows, and everything else in one over slabs.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dropout_mask import NO_DROPOUT, Dropout, draw, kept, kept_of_row
from .tiles import SLAB, Matrix, launch, slab, step_of, store_sums


def layer_norm(x_H: Tensor, weight_H: Tensor, shift_H: Tensor, eps: float) -> Tensor:
    """Fused `mtnlg_model.functional.layer_norm`."""
    out: Tensor = _LayerNorm.apply(x_H, weight_H, shift_H, eps)
    return out


def bias_dropout_add_norm(
    x_H: Tensor,
    bias_H: Tensor,
    residual_H: Tensor,
    rate: float,
    training: bool,
    weight_H: Tensor,
    shift_H: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Fused `mtnlg_model.functional.bias_dropout_add_norm`."""
    dropout = draw(rate if training else 0.0)
    total_H, out_H = _AddNorm.apply(x_H, bias_H, residual_H, dropout, weight_H, shift_H, eps)
    return total_H, out_H


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_H: Tensor, weight_H: Tensor, shift_H: Tensor, eps: float) -> Tensor:  # noqa: ANN401  (torch's context)
        x_H, weight_H, shift_H = x_H.contiguous(), weight_H.contiguous(), shift_H.contiguous()
        out_H, size = torch.empty_like(x_H), Matrix.of(x_H)
        moments_2R = torch.empty(2, size.rows, dtype=torch.float32, device=x_H.device)
        ctx.save_for_backward(x_H, weight_H, moments_2R)
        unused = (x_H, x_H, x_H)  # inputs of the add, not read here
        read, cases = (*unused, x_H, weight_H, shift_H), (*NO_DROPOUT, False, False)
        launch(_norm_forward, (size.rows,), *read, out_H, moments_2R, *size, eps, *cases, **size.blocks)
        return out_H

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        x_H, weight_H, moments_2R = ctx.saved_tensors
        computed = _gradients(x_H, weight_H, moments_2R, gradients[0], None, NO_DROPOUT)
        x_grad_H, _, _, weight_grad_H, shift_grad_H = computed
        return x_grad_H, weight_grad_H, shift_grad_H, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch's context)
        x_H: Tensor,
        bias_H: Tensor,
        residual_H: Tensor,
        dropout: Dropout,
        weight_H: Tensor,
        shift_H: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        read = tuple(tensor.contiguous() for tensor in (x_H, bias_H, residual_H))
        total_H, out_H, size = torch.empty_like(read[0]), torch.empty_like(read[0]), Matrix.of(read[0])
        weight_H, shift_H = weight_H.contiguous(), shift_H.contiguous()
        moments_2R = torch.empty(2, size.rows, dtype=torch.float32, device=x_H.device)
        ctx.save_for_backward(total_H, weight_H, moments_2R)
        ctx.dropout, ctx.bias_dtype = dropout, bias_H.dtype
        written = (out_H, moments_2R, *size, eps, *dropout, dropout.active, True)
        launch(_norm_forward, (size.rows,), *read, total_H, weight_H, shift_H, *written, **size.blocks)
        return total_H, out_H

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        total_H, weight_H, moments_2R = ctx.saved_tensors
        total_grad_H, out_grad_H = gradients
        computed = _gradients(total_H, weight_H, moments_2R, out_grad_H, total_grad_H, ctx.dropout)
        residual_grad_H, x_grad_H, bias_grad_H, weight_grad_H, shift_grad_H = computed
        return x_grad_H, bias_grad_H.to(ctx.bias_dtype), residual_grad_H, None, weight_grad_H, shift_grad_H, None


def _gradients(
    x_H: Tensor,
    weight_H: Tensor,
    moments_2R: Tensor,
    out_grad_H: Tensor,
    total_grad_H: Tensor | None,
    dropout: Dropout,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the norm's input, of dropout's input, of the bias (fp32), of weight and of shift."""
    out_grad_H, size = out_grad_H.contiguous(), Matrix.of(x_H)
    added = total_grad_H is not None
    total_grad_H = total_grad_H.contiguous() if total_grad_H is not None else out_grad_H  # not read then
    means_2R = torch.empty_like(moments_2R)
    launch(_norm_means, (size.rows,), x_H, weight_H, out_grad_H, moments_2R, means_2R, *size, **size.blocks)
    grad_H = torch.empty_like(x_H)
    dropped_H = torch.empty_like(x_H) if dropout.active else grad_H
    sums_KPH = size.partial_sums(3 if added else 2, x_H.device)
    read = (x_H, weight_H, out_grad_H, total_grad_H, moments_2R, means_2R)
    launch(
        _norm_backward,
        size.slab_grid,
        *read,
        grad_H,
        dropped_H,
        sums_KPH,
        *size,
        *dropout,
        dropout.active,
        added,
        **SLAB,
    )
    sums_KH = sums_KPH.sum(1)
    return grad_H, dropped_H, sums_KH[-1], sums_KH[0].to(weight_H.dtype), sums_KH[1].to(weight_H.dtype)


@triton.jit(do_not_specialize=["rows", "seed", "threshold"])
def _norm_forward(
    x_at,
    bias_at,
    residual_at,
    total_at,
    weight_at,
    shift_at,
    out_at,
    moments_at,
    rows,
    columns,
    eps,
    seed: tl.int64,
    threshold,
    scale,
    DROPS: tl.constexpr,
    ADDS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, COLUMNS)
    mean_l, square_l = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for left in range(0, columns, COLUMNS):
        column = left + lane
        there = column < columns
        if ADDS:
            value = tl.load(x_at + row * columns + column, mask=there, other=0.0).to(tl.float32)
            value += tl.load(bias_at + column, mask=there, other=0.0).to(tl.float32)
            if DROPS:
                value = tl.where(kept_of_row(seed, threshold, row, left, COLUMNS), value * scale, 0.0)
            value += tl.load(residual_at + row * columns + column, mask=there, other=0.0).to(tl.float32)
            rounded = value.to(total_at.dtype.element_ty)
            tl.store(total_at + row * columns + column, rounded, mask=there)
            value = rounded.to(tl.float32)
        else:
            value = tl.load(total_at + row * columns + column, mask=there, other=0.0).to(tl.float32)
        delta = tl.where(there, value - mean_l, 0.0)
        mean_l += delta * (1.0 / (left // COLUMNS + 1))  # one division a block, not one an element
        square_l += tl.where(there, delta * (value - mean_l), 0.0)
    count_l = (columns - lane + COLUMNS - 1) // COLUMNS
    mean = tl.sum(mean_l * count_l, 0) / columns
    apart_l = tl.where(count_l > 0, mean_l - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(square_l + count_l * apart_l * apart_l, 0) / columns + eps)
    tl.store(moments_at + row, mean)
    tl.store(moments_at + rows + row, inverse)
    if ADDS:
        tl.debug_barrier()  # a thread may read what another has written
    for left in range(0, columns, COLUMNS):
        column = left + lane
        there = column < columns
        value = tl.load(total_at + row * columns + column, mask=there, other=0.0).to(tl.float32)
        weight = tl.load(weight_at + column, mask=there, other=0.0).to(tl.float32)
        shift = tl.load(shift_at + column, mask=there, other=0.0).to(tl.float32)
        out = (value - mean) * inverse * weight + shift
        tl.store(out_at + row * columns + column, out.to(out_at.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def _norm_means(x_at, weight_at, out_grad_at, moments_at, means_at, rows, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    mean, inverse = tl.load(moments_at + row), tl.load(moments_at + rows + row)
    of_grad_l, of_product_l = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for left in range(0, columns, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        there = column < columns
        value = tl.load(x_at + row * columns + column, mask=there, other=0.0).to(tl.float32)
        weight = tl.load(weight_at + column, mask=there, other=0.0).to(tl.float32)
        grad = weight * tl.load(out_grad_at + row * columns + column, mask=there, other=0.0).to(tl.float32)
        of_grad_l += grad
        of_product_l += tl.where(there, grad * (value - mean) * inverse, 0.0)
    tl.store(means_at + row, tl.sum(of_grad_l, 0) / columns)
    tl.store(means_at + rows + row, tl.sum(of_product_l, 0) / columns)


@triton.jit(do_not_specialize=["rows", "seed", "threshold"])
def _norm_backward(
    x_at,
    weight_at,
    out_grad_at,
    total_grad_at,
    moments_at,
    means_at,
    grad_at,
    dropped_at,
    sums_at,
    rows,
    columns,
    seed: tl.int64,
    threshold,
    scale,
    DROPS: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number, first, height, column, group = slab(rows, columns, ROWS, COLUMNS)
    weight = tl.load(weight_at + column, mask=column < columns, other=0.0).to(tl.float32)
    weight_grad, shift_grad = tl.zeros([STRIDE, COLUMNS], tl.float32), tl.zeros([STRIDE, COLUMNS], tl.float32)
    bias_grad = tl.zeros([STRIDE, COLUMNS], tl.float32)
    for step in range(0, height, STRIDE):
        row, at, there = step_of(first + step, rows, columns, column, STRIDE)
        inverse = tl.load(moments_at + rows + row, mask=row < rows, other=0.0)
        normed = tl.load(x_at + at, mask=there, other=0.0).to(tl.float32)
        normed = (normed - tl.load(moments_at + row, mask=row < rows, other=0.0)) * inverse
        out_grad = tl.load(out_grad_at + at, mask=there, other=0.0).to(tl.float32)
        weight_grad += tl.where(there, out_grad * normed, 0.0)
        shift_grad += out_grad
        grad = weight * out_grad - tl.load(means_at + row, mask=row < rows, other=0.0)
        grad = (grad - normed * tl.load(means_at + rows + row, mask=row < rows, other=0.0)) * inverse
        if ADDS:
            grad += tl.load(total_grad_at + at, mask=there, other=0.0).to(tl.float32)
        tl.store(grad_at + at, grad.to(grad_at.dtype.element_ty), mask=there)
        if DROPS:
            grad = tl.where(kept(seed, threshold, row, group), grad * scale, 0.0)
            tl.store(dropped_at + at, grad.to(dropped_at.dtype.element_ty), mask=there)
        if ADDS:
            bias_grad += tl.where(there, grad, 0.0)
    room = tl.cdiv(rows, ROWS).to(tl.int64) * columns
    store_sums(sums_at, number, columns, column, weight_grad)
    store_sums(sums_at + room, number, columns, column, shift_grad)
    if ADDS:
        store_sums(sums_at + 2 * room, number, columns, column, bias_grad)
