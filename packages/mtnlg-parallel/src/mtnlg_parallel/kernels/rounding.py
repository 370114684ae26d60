"""Rounds matrices to 8 bits, with their transposes: one launch for the largest element, one for everything else.

    largest    max |x|, as the integer maximum of the bits of |x|, where NaN is greater than infinity
    scale      max(max |x| (1 / largest 8-bit number), least normal number), computed by each program
    values     x (1 / scale) in 8 bits [R, K], and transposed [K, R]

x is read once for its largest element, and once more for both results. An integer maximum does not depend on the order,
so results are equal from run to run.

Rounding is to the nearest, ties to even: `cvt.rn.satfinite.e4m3x2.f32` and `…e5m2x2.f32` of compute capability 8.9 and
later. PyTorch's conversion agrees except for numbers beyond the format's range, and the scale leaves none of those.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mtnlg_parallel.model.eight_bit import BACKWARD, Factor

from .tiles import Matrix, Operator, cdiv, launch

BLOCK: Final = {"ELEMENTS": 8192, "num_warps": 4}
TILE: Final = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}
"""A tile reads 128 bytes of each bf16 row, and writes 64 bytes of each transposed row: on an H200 14 % faster than a
tile of 128 rows."""

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


def rounded(x_RK: Tensor, dtype: torch.dtype, transposed: bool) -> tuple[Factor, Factor]:
    """Fused `mtnlg_parallel.model.eight_bit.rounded`."""
    values_RK, values_KR, scale = _rounded(x_RK, dtype, transposed)
    return Factor(values_RK, scale), Factor(values_KR, scale)


@Operator
def transpose(values_RK: Tensor) -> Tensor:
    """Fused `mtnlg_parallel.model.eight_bit.transpose`."""
    values_KR = values_RK.new_empty(values_RK.shape[::-1])
    _launch(values_RK.view(torch.uint8), None, None, values_KR, None, values_RK.dtype)
    return values_KR


@Operator
def _rounded(x_RK: Tensor, dtype: torch.dtype, transposed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Values [R, K], their transpose [K, R] or empty, and their scale."""
    x_RK, count = x_RK.contiguous(), x_RK.numel()
    values_RK = torch.empty_like(x_RK, dtype=dtype)
    values_KR = values_RK.new_empty(x_RK.shape[::-1] if transposed else 0)
    scale = torch.empty((), device=x_RK.device)
    largest = torch.zeros((), dtype=torch.int32, device=x_RK.device)
    launch(_largest, (cdiv(count, BLOCK["ELEMENTS"]),), x_RK, largest, count, **BLOCK)
    _launch(x_RK, largest, values_RK, values_KR if transposed else None, scale, dtype)
    return values_RK, values_KR, scale


def _launch(
    x_RK: Tensor,
    largest: Tensor | None,
    values_RK: Tensor | None,
    values_KR: Tensor | None,
    scale: Tensor | None,
    dtype: torch.dtype,
) -> None:
    rows, columns = size = Matrix.of(x_RK)
    grid = (cdiv(rows, TILE["ROWS"]) * cdiv(columns, TILE["COLUMNS"]),)
    written = (values if values is None else values.view(torch.uint8) for values in (values_RK, values_KR))
    constants = {"MOST": torch.finfo(dtype).max, "IS_E5M2": dtype == BACKWARD, **TILE}
    if rows % 16 or columns % 16:  # masks take registers
        constants["num_warps"] *= 2
    launch(_rounding, grid, x_RK, largest, *written, scale, *size, **constants)


@triton.jit
def _largest(x_at, largest_at, count, ELEMENTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    x = tl.load(x_at + at, mask=at < count, other=0.0).to(tl.float32)
    tl.atomic_max(largest_at, tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), sem="relaxed")


@triton.jit
def _rounding(
    x_at,
    largest_at,
    values_at,
    transposed_at,
    scale_at,
    rows,
    columns,
    MOST: tl.constexpr,
    IS_E5M2: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    across = tl.cdiv(columns, COLUMNS)
    row = ((tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    there = (row < rows) & (column < columns)
    value = tl.load(x_at + row * columns + column, mask=there, other=0)
    if largest_at is not None:
        largest = tl.load(largest_at).to(tl.float32, bitcast=True)
        scale = tl.maximum(largest * (1.0 / MOST), _TINY, propagate_nan=tl.PropagateNan.ALL)
        tl.store(scale_at, scale, mask=tl.program_id(0) == 0)
        x = value.to(tl.float32) * tl.div_rn(1.0, scale)
        x = tl.clamp(x, -MOST, MOST, propagate_nan=tl.PropagateNan.ALL)
        value = (x.to(tl.float8e5) if IS_E5M2 else x.to(tl.float8e4nv)).to(tl.uint8, bitcast=True)
        tl.store(values_at + row * columns + column, value, mask=there)
    if transposed_at is not None:
        at = tl.trans(column).to(tl.int64) * rows + tl.trans(row)
        tl.store(transposed_at + at, tl.trans(value), mask=tl.trans(there))
