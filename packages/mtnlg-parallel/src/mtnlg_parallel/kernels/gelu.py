"""gelu(x + b) in one pass, with the tanh form written as a sigmoid: x/2 (1 + tanh u) = x p.

    p = 1 / (1 + exp(-2u)),  u = √(2/π) (x + 0.044715 x³)        derivative p + x p (1 - p) 2u'

Backward recomputes x + b and sums over rows for the bias.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import (
    TILE,
    Matrix,
    Operator,
    contiguous,
    differentiate,
    launch,
    read,
    sigmoid,
    slab,
    step_of,
    sum_slabs,
    tile,
    write,
)

_TWICE = tl.constexpr(1.5957691216057308)  # 2 √(2/π)
_CUBE = tl.constexpr(0.044715 * 1.5957691216057308)


@Operator
def bias_gelu(x_F: Tensor, bias_F: Tensor) -> Tensor:
    """Fused `mtnlg_model.functional.bias_gelu`."""
    out_F, size = torch.empty_like(x_F, memory_format=torch.contiguous_format), Matrix.of(x_F)
    launch(_gelu_forward, size.tiles, *contiguous(x_F, bias_F), out_F, *size, **TILE)
    return out_F


@Operator
def _bias_gelu_backward(x_F: Tensor, bias_F: Tensor, out_grad_F: Tensor) -> tuple[Tensor, Tensor]:
    size = Matrix.of(x_F)
    x_grad_F, bias_grad_F = torch.empty_like(x_F, memory_format=torch.contiguous_format), size.sum_like(bias_F)
    given = contiguous(x_F, bias_F, out_grad_F)
    launch(
        _gelu_backward, size.slab_grid, *given, x_grad_F, bias_grad_F, *size.slab_sums(x_F.device), *size, **size.slab
    )
    return x_grad_F, bias_grad_F


differentiate(bias_gelu, _bias_gelu_backward)


@triton.jit(do_not_specialize=["rows"])
def _gelu_forward(x_at, bias_at, out_at, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    _row, column, _group, at, there = tile(rows, columns, ROWS, COLUMNS)
    x = read(x_at + at, there)
    x += read(bias_at + column, column < columns)
    out = x * sigmoid(x * (x * x * _CUBE + _TWICE))
    write(out_at + at, out, there)


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(
    x_at,
    bias_at,
    out_grad_at,
    x_grad_at,
    bias_grad_at,
    sums_at,
    counters_at,
    rows,
    columns,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number, first, height, column, _group = slab(rows, columns, ROWS, COLUMNS)
    bias = read(bias_at + column, column < columns)
    bias_grad = tl.zeros([STRIDE, COLUMNS], tl.float32)
    for step in range(0, height, STRIDE):
        _row, at, there = step_of(first + step, rows, columns, column, STRIDE)
        x = read(x_at + at, there) + bias
        share = sigmoid(x * (x * x * _CUBE + _TWICE))
        slope = share + x * share * (1.0 - share) * (x * x * (3 * _CUBE) + _TWICE)
        x_grad = slope * read(out_grad_at + at, there)
        write(x_grad_at + at, x_grad, there)
        bias_grad += tl.where(there, x_grad, 0.0)
    sum_slabs(sums_at, counters_at, bias_grad_at, number, bias_grad, rows, columns, column, ROWS)
