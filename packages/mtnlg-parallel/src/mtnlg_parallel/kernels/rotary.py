"""Rotary positions of q or k in one pass; the same kernel rotates the gradient back.

Values x, y from the two halves of a head's first R values rotate by their position's angle; values after R are copied.

    x' = x cos - y sin        y' = y cos + x sin        backward: the same with -sin

q and k are read in place, as slices of the fused qkv product's rows, so that nothing is copied first. A position's R
angles are shared by its heads and found in cache.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import Operator, cdiv, contiguous, launch, power_of_2, read, write

BYTES: Final = 2048
"""Bytes of each half that a program rotates: one 16-byte load per thread."""


def rotate(x_SBGND: Tensor, cos_SB11R: Tensor, sin_SB11R: Tensor) -> Tensor:
    """Fused `mtnlg_model.functional.rotate`."""
    out: Tensor = _rotate(x_SBGND, *contiguous(cos_SB11R, sin_SB11R), False)
    return out


@Operator
def _rotate(x_SBGND: Tensor, cos_SB11R: Tensor, sin_SB11R: Tensor, inverse: bool) -> Tensor:
    s, b, g, n, d = x_SBGND.shape
    strides, token = x_SBGND.stride(), x_SBGND.stride(1)
    dense = strides[0] == b * token and strides[3:] == (d, 1)
    if not dense:  # rows must follow each other, and the heads of a group
        x_SBGND = x_SBGND.contiguous()
    out_SBGND = torch.empty_like(x_SBGND, memory_format=torch.contiguous_format)
    r, rows = cos_SB11R.shape[-1], s * b * g * n
    half = power_of_2(r // 2)
    turned_rows = max(1, BYTES // x_SBGND.itemsize // half)
    repeats = b // cos_SB11R.shape[1]  # rows of tokens that share their angles
    shape = (rows, g * n, n, repeats, x_SBGND.stride(1), x_SBGND.stride(2), d, r)
    constants = {"INVERSE": inverse, "PARTIAL": r < d, "ROWS": turned_rows, "HALF": half, "num_warps": 4}
    launch(_rotary, (cdiv(rows, turned_rows),), x_SBGND, cos_SB11R, sin_SB11R, out_SBGND, *shape, **constants)
    return out_SBGND


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401  (torch's context)
    del output
    _, *angles, ctx.inverse = inputs
    ctx.save_for_backward(*angles)


def _gradients(ctx: Any, out_grad_SBGND: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401  (as above)
    return _rotate(out_grad_SBGND, *ctx.saved_tensors, not ctx.inverse), None, None, None


_rotate.derive(_gradients, _save)


@triton.jit(do_not_specialize=["rows", "heads", "sharing", "repeats"])
def _rotary(
    x_at,
    cos_at,
    sin_at,
    out_at,
    rows,
    heads,
    sharing,
    repeats,
    token_stride,
    group_stride,
    size,
    turned,
    INVERSE: tl.constexpr,
    PARTIAL: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # of heads: fewer than 2^31
    token, head = row // heads, row % heads
    x_at += token.to(tl.int64) * token_stride + (head // sharing) * group_stride + (head % sharing) * size
    out_at += row.to(tl.int64) * size
    angle = (token // repeats).to(tl.int64) * turned
    half, column = turned // 2, tl.arange(0, HALF)[None, :]
    there = (row < rows) & (column < half)
    x = read(x_at + column, there)
    y = read(x_at + half + column, there)
    cos = read(cos_at + angle + column, there)
    sin = read(sin_at + angle + half + column, there)
    if INVERSE:
        sin = -sin
    write(out_at + column, x * cos - y * sin, there)
    write(out_at + half + column, y * cos + x * sin, there)
    if PARTIAL:
        for left in range(turned, size, HALF):
            there = (row < rows) & (left + column < size)
            tl.store(out_at + left + column, tl.load(x_at + left + column, mask=there, other=0.0), mask=there)
