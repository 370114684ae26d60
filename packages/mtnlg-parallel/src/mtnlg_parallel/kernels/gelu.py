"""gelu(x + b) in one pass, with the tanh form written as a sigmoid: x/2 (1 + tanh u) = x p.

    p = 1 / (1 + exp(-2u)),  u = √(2/π) (x + 0.044715 x³)        derivative p + x p (1 - p) 2u'

Backward recomputes x + b and sums over rows for the bias.
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

from .tiles import SLAB, TILE, Matrix, launch, slab, step_of, store_sums, tile

_TWICE = tl.constexpr(1.5957691216057308)  # 2 √(2/π)
_CUBIC = tl.constexpr(0.044715)


def bias_gelu(x_F: Tensor, bias_F: Tensor) -> Tensor:
    """Fused `mtnlg_model.functional.bias_gelu`."""
    out: Tensor = _BiasGelu.apply(x_F, bias_F)
    return out


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_F: Tensor, bias_F: Tensor) -> Tensor:  # noqa: ANN401  (torch's context)
        x_F, bias_F = x_F.contiguous(), bias_F.contiguous()
        ctx.save_for_backward(x_F, bias_F)
        out_F, size = torch.empty_like(x_F), Matrix.of(x_F)
        launch(_gelu_forward, size.tiles, x_F, bias_F, out_F, *size, **TILE)
        return out_F

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401  (as above)
        x_F, bias_F = ctx.saved_tensors
        x_grad_F, size = torch.empty_like(x_F), Matrix.of(x_F)
        sums_PF = size.partial_sums(1, x_F.device)[0]
        launch(_gelu_backward, size.slab_grid, x_F, bias_F, gradients[0].contiguous(), x_grad_F, sums_PF, *size, **SLAB)
        return x_grad_F, sums_PF.sum(0).to(bias_F.dtype)


@triton.jit(do_not_specialize=["rows"])
def _gelu_forward(x_at, bias_at, out_at, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    _row, column, _group, at, there = tile(rows, columns, ROWS, COLUMNS)
    x = tl.load(x_at + at, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias_at + column, mask=column < columns, other=0.0).to(tl.float32)
    out = x * tl.sigmoid((x + x * x * x * _CUBIC) * _TWICE)
    tl.store(out_at + at, out.to(out_at.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(
    x_at,
    bias_at,
    out_grad_at,
    x_grad_at,
    sums_at,
    rows,
    columns,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number, first, height, column, _group = slab(rows, columns, ROWS, COLUMNS)
    bias = tl.load(bias_at + column, mask=column < columns, other=0.0).to(tl.float32)
    bias_grad = tl.zeros([STRIDE, COLUMNS], tl.float32)
    for step in range(0, height, STRIDE):
        _row, at, there = step_of(first + step, rows, columns, column, STRIDE)
        x = tl.load(x_at + at, mask=there, other=0.0).to(tl.float32) + bias
        share = tl.sigmoid((x + x * x * x * _CUBIC) * _TWICE)
        slope = share + x * share * (1.0 - share) * (1.0 + x * x * (3 * _CUBIC)) * _TWICE
        x_grad = slope * tl.load(out_grad_at + at, mask=there, other=0.0).to(tl.float32)
        tl.store(x_grad_at + at, x_grad.to(x_grad_at.dtype.element_ty), mask=there)
        bias_grad += tl.where(there, x_grad, 0.0)
    store_sums(sums_at, number, columns, column, bias_grad)
