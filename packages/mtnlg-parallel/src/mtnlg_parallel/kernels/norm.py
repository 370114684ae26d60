"""Layer norm and RMS norm, alone and fused after bias + dropout + residual add.

    x̂ = (x - mean) / d,  d = sqrt(variance + eps)        y = x̂ w + b
    dx = (w dy - m - x̂ n) / d,  m and n the row's means of w dy and of w dy x̂

An RMS norm has no b, and mean and m are 0. In forward a program makes two passes over its row, one for mean and
variance, one for y; the second pass finds the row in cache. Every lane sums distances from its own first element, so
that a mean far from zero causes no cancellation. After an add, the first pass writes the rounded sum and normalizes
that, as eager code does.

Backward is one launch, and reads x and dy from memory once. Rows are split into groups of `GROUP`, and so are programs:
those of group g first sum m and n for a part of its rows, then compute the results of group g - 1, each for some
columns, whose inputs are still in cache. A program waits only for sums of earlier programs, which wait for nothing
until they have stored these. So the wait ends if programs start in the order of their numbers, which CUB's scans assume
too, however many run at a time. It polls with relaxed loads, then acquires once. No two groups' sums share a cache
sector, so reading ahead of one group's sums never leaves stale data for the next group.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dropout_mask import draw, kept, kept_of_row, threshold_and_scale
from .tiles import (
    Matrix,
    Operator,
    add_slabs,
    cdiv,
    contiguous,
    is_last,
    launch,
    power_of_2,
    read,
    step_of,
    store_sums,
    write,
)

GROUP: Final = {"ROWS": 128, "STRIDE": 2, "COLUMNS": 256, "PART": 10240, "STAGES": 4, "num_warps": 4, "maxnreg": 128}
"""Tiles of the backward kernel. ROWS: rows per group. STRIDE: rows per step. COLUMNS: columns of a program's results.
PART: columns per partial sum of m and n. STAGES: steps loaded ahead. maxnreg: lets four programs run at a time."""

FEWEST_PROGRAMS, FEW_ROWS = 4 * 132, 32
"""Four programs per multiprocessor of an H100, and the rows per group if groups of `GROUP` make fewer programs: for 256
rows of 20,480, a rank's share under sequence parallelism, 720 programs instead of 240, for 8 % more bytes of partial
sums."""


def layer_norm(x_H: Tensor, weight_H: Tensor, shift_H: Tensor | None, eps: float) -> Tensor:
    """Fused `mtnlg_model.functional.layer_norm`; an RMS norm without ``shift_H``."""
    out: Tensor = _add_norm(x_H, None, None, None, 0.0, weight_H, shift_H, eps)[1]
    return out


def rms_norm(x_H: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Fused `mtnlg_model.functional.rms_norm`."""
    return layer_norm(x_H, weight_H, None, eps)


def bias_dropout_add_norm(
    x_H: Tensor,
    bias_H: Tensor | None,
    residual_H: Tensor,
    rate: float,
    weight_H: Tensor,
    shift_H: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Fused `mtnlg_model.functional.bias_dropout_add_norm`."""
    seed = draw(rate, x_H)
    total_H, out_H, _ = _add_norm(x_H, bias_H, residual_H, seed, rate, weight_H, shift_H, eps)
    return total_H, out_H


def dropout_add_rms_norm(
    x_H: Tensor, residual_H: Tensor, rate: float, weight_H: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Fused `mtnlg_model.functional.dropout_add_rms_norm`."""
    return bias_dropout_add_norm(x_H, None, residual_H, rate, weight_H, None, eps)


@Operator
def _add_norm(
    x_H: Tensor,
    bias_H: Tensor | None,
    residual_H: Tensor | None,
    seed: Tensor | None,
    rate: float,
    weight_H: Tensor,
    shift_H: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (empty without a residual), its norm, and each row's 1/d and mean, [2, rows]; 1/d alone for RMS norm."""
    x_H, size = x_H.contiguous(), Matrix.of(x_H)
    total_H, out_H = x_H.new_empty(0) if residual_H is None else torch.empty_like(x_H), torch.empty_like(x_H)
    moments = torch.empty(1 if shift_H is None else 2, size.rows, dtype=torch.float32, device=x_H.device)
    sources = (x_H, None) if residual_H is None else (total_H, x_H)
    added = (*sources, *contiguous(bias_H, residual_H))
    normed = (*contiguous(weight_H, shift_H), out_H, moments)
    shape = (*size, eps, *threshold_and_scale(rate))
    constants = size.blocks
    if seed is not None and size.columns % 16:  # masks take registers
        constants["num_warps"] *= 2
    launch(_norm_forward, (size.rows,), *added, *normed, seed, *shape, **constants)
    return total_H, out_H, moments


@Operator
def _norm_gradients(
    x_H: Tensor,
    bias_H: Tensor | None,
    seed: Tensor | None,
    rate: float,
    weight_H: Tensor,
    shift_H: Tensor | None,
    moments: Tensor,
    out_grad_H: Tensor,
    total_grad_H: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the norm's input x, dropout's input, bias, weight and shift; empty for each that is absent."""
    size, device = Matrix.of(x_H), x_H.device
    grad_H = torch.empty_like(x_H)
    dropped_H = torch.empty_like(x_H) if seed is not None else x_H.new_empty(0)
    weight_grad_H = size.sum_like(weight_H)
    others = tuple(row if row is None else size.sum_like(row) for row in (shift_H, bias_H))
    height, across = GROUP["ROWS"], cdiv(size.columns, GROUP["COLUMNS"])
    is_few = cdiv(size.rows, height) * across < FEWEST_PROGRAMS
    groups = cdiv(size.rows, height := min(height, FEW_ROWS) if is_few else height)
    parts, block = cdiv(size.columns, GROUP["PART"]), min(max(power_of_2(size.columns), 16), 1024)
    sums = 1 + sum(row is not None for row in others)
    scratch = (
        torch.empty(2, parts + 1, groups * height, dtype=torch.float32, device=device),
        torch.empty(sums, groups, size.columns, dtype=torch.float32, device=device),
        torch.zeros(2 * groups + across, dtype=torch.int32, device=device),
    )
    given = (x_H, weight_H, moments, *contiguous(out_grad_H, total_grad_H), seed)
    arguments = (*given, grad_H, dropped_H, weight_grad_H, *others, *scratch, *size, *threshold_and_scale(rate))
    grid = ((groups + 1) * across if groups else 0,)
    stride = GROUP["STRIDE"] // (2 if size.columns % 16 else 1)  # masks take registers
    constants = {**GROUP, "ROWS": height, "STRIDE": stride}
    launch(_norm_backward, grid, *arguments, PARTS=power_of_2(parts), BLOCK=block, **constants)
    shift_grad_H, bias_grad_H = (x_H.new_empty(0) if row is None else row for row in others)
    return grad_H, dropped_H, bias_grad_H, weight_grad_H, shift_grad_H


def _save_add_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401  (torch's context)
    x_H, bias_H, residual_H, seed, ctx.rate, weight_H, shift_H, _eps = inputs
    total_H, _out_H, moments = output
    ctx.adds = residual_H is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        *contiguous(total_H if ctx.adds else x_H), bias_H, seed, *contiguous(weight_H), shift_H, moments
    )


def _add_norm_grads(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
    total_grad_H, out_grad_H, _ = grads
    total_H, bias_H, seed, weight_H, shift_H, moments = ctx.saved_tensors
    if out_grad_H is None:
        out_grad_H = torch.zeros_like(total_H)
    saved = (total_H, bias_H, seed, ctx.rate, weight_H, shift_H, moments)
    grad_H, dropped_H, bias_grad_H, weight_grad_H, shift_grad_H = _norm_gradients(*saved, out_grad_H, total_grad_H)
    x_grad_H = grad_H if seed is None else dropped_H
    row_grads = (None if bias_H is None else bias_grad_H, None if shift_H is None else shift_grad_H)
    return x_grad_H, row_grads[0], grad_H if ctx.adds else None, None, None, weight_grad_H, row_grads[1], None


_add_norm.derive(_add_norm_grads, _save_add_norm)


@triton.jit(do_not_specialize=["rows", "threshold"])
def _norm_forward(
    total_at,
    x_at,
    bias_at,
    residual_at,
    weight_at,
    shift_at,
    out_at,
    moments_at,
    seed_at,
    rows,
    columns,
    eps,
    threshold,
    scale,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    total_at += row * columns
    lane = tl.arange(0, COLUMNS)
    seed = tl.load(seed_at) if seed_at is not None else 0
    first_l = _total(total_at, x_at, bias_at, residual_at, seed_at, seed, row, 0, columns, threshold, scale, COLUMNS)
    if shift_at is None:
        first_l, sum_l, square_l = tl.zeros([COLUMNS], tl.float32), first_l, first_l * first_l
    else:
        sum_l, square_l = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for left in range(COLUMNS, columns, COLUMNS):
        value = _total(
            total_at, x_at, bias_at, residual_at, seed_at, seed, row, left, columns, threshold, scale, COLUMNS
        )
        if shift_at is not None:
            value = tl.where(left + lane < columns, value - first_l, 0.0)
            sum_l += value
        square_l += value * value
    if shift_at is None:
        mean = 0.0
        inverse = 1.0 / tl.sqrt(tl.sum(square_l, 0) / columns + eps)
    else:
        # Lanes have `most` elements or one less, so two divisions per row are enough.
        most = tl.cdiv(columns, COLUMNS)
        is_long = (most - 1) * COLUMNS + lane < columns
        count_l = tl.where(is_long, most, most - 1).to(tl.float32)
        own_l = sum_l * tl.where(is_long, 1.0 / most, 1.0 / tl.maximum(most - 1, 1))
        mean = tl.sum(first_l * count_l + sum_l, 0) / columns
        apart_l = first_l + own_l - mean
        square = tl.sum(square_l - sum_l * own_l + count_l * apart_l * apart_l, 0)
        inverse = 1.0 / tl.sqrt(square / columns + eps)
        mean += tl.sum(count_l * apart_l, 0) / columns  # what rounding took from a sum of far greater numbers
        tl.store(moments_at + rows + row, mean)
    tl.store(moments_at + row, inverse)
    if residual_at is not None:
        tl.debug_barrier()  # a thread may read what another has written
    for left in range(0, columns, COLUMNS):
        column = left + lane
        there = column < columns
        value = read(total_at + column, there)
        out = (value - mean) * inverse * read(weight_at + column, there)
        if shift_at is not None:
            out += read(shift_at + column, there)
        write(out_at + row * columns + column, out, there)


@triton.jit
def _total(
    total_at,
    x_at,
    bias_at,
    residual_at,
    seed_at,
    seed,
    row,
    left,
    columns,
    threshold,
    scale,
    COLUMNS: tl.constexpr,
):
    """A block of a row to normalize, 0 beyond its end; without a residual read, else computed and written."""
    column = left + tl.arange(0, COLUMNS)
    there = column < columns
    if residual_at is None:
        value = read(total_at + column, there)
    else:
        value = read(x_at + row * columns + column, there)
        if bias_at is not None:
            value += read(bias_at + column, there)
        if seed_at is not None:
            value = tl.where(kept_of_row(seed, threshold, row, left, COLUMNS), value * scale, 0.0)
        value += read(residual_at + row * columns + column, there)
        rounded = value.to(total_at.dtype.element_ty)
        tl.store(total_at + column, rounded, mask=there)
        value = rounded.to(tl.float32)
    return value


@triton.jit(do_not_specialize=["rows", "threshold"])
def _norm_backward(  # noqa: C901, PLR0912, PLR0915  (one launch: constants remove most branches)
    x_at,
    weight_at,
    moments_at,
    out_grad_at,
    total_grad_at,
    seed_at,
    grad_at,
    dropped_at,
    weight_grad_at,
    shift_grad_at,
    bias_grad_at,
    means_at,
    sums_at,
    counters_at,
    rows,
    columns,
    threshold,
    scale,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    PART: tl.constexpr,
    STAGES: tl.constexpr,
):
    across, groups = tl.cdiv(columns, COLUMNS), tl.cdiv(rows, ROWS)
    group, place = (tl.program_id(0) // across).to(tl.int64), tl.program_id(0) % across
    parts, space = tl.cdiv(columns, PART), groups * ROWS
    if group < groups:
        height: tl.constexpr = 1024 // BLOCK  # rows at a time: 8 elements a thread
        shares = tl.cdiv(tl.minimum(ROWS, rows - group * ROWS).to(tl.int32), height) * parts
        for share in range(place, shares, across):
            top, part = group * ROWS + share // parts * height, share % parts
            row = top + tl.arange(0, height)[:, None]
            inverse, mean = _moments_of(moments_at, shift_grad_at, row, rows)
            grads, products = tl.zeros([height, BLOCK], tl.float32), tl.zeros([height, BLOCK], tl.float32)
            for left in tl.range(part * PART, tl.minimum(part * PART + PART, columns), BLOCK, num_stages=STAGES):
                column = left + tl.arange(0, BLOCK)[None, :]
                there = (row < rows) & (column < columns)
                weight = read(weight_at + column, column < columns)
                grad = weight * read(out_grad_at + row * columns + column, there)
                grads += grad
                products += grad * (read(x_at + row * columns + column, there) - mean)
            at = means_at + part * space + row
            if shift_grad_at is not None:
                tl.store(at, tl.sum(grads, 1, keep_dims=True) * (inverse / columns), mask=row < rows)
            at += (parts + 1) * space
            tl.store(at, tl.sum(products, 1, keep_dims=True) * (inverse * inverse / columns), mask=row < rows)
        if is_last(counters_at + group, across):
            row, part = group * ROWS + tl.arange(0, ROWS), tl.arange(0, PARTS)
            at = means_at + part[None, :] * space + row[:, None]
            there = (row[:, None] < rows) & (part[None, :] < parts)
            if shift_grad_at is not None:
                sums = tl.sum(read(at, there, ".cg"), 1)
                tl.store(means_at + parts * space + row, sums, mask=row < rows)
            sums = tl.sum(read(at + (parts + 1) * space, there, ".cg"), 1)
            tl.store(means_at + (2 * parts + 1) * space + row, sums, mask=row < rows)
            is_last(counters_at + groups + group, 1)
    group -= 1
    if group >= 0:
        while tl.load(counters_at + groups + group, volatile=True) == 0:
            pass
        while tl.atomic_add(counters_at + groups + group, 0, sem="acquire") == 0:  # once; a result not read is left out
            pass
        column = place * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        eights = place * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)[None, :]
        means_at += parts * space
        seed = tl.load(seed_at) if seed_at is not None else 0
        weight = read(weight_at + column, column < columns)
        weight_grad, shift_grad = tl.zeros([STRIDE, COLUMNS], tl.float32), tl.zeros([STRIDE, COLUMNS], tl.float32)
        bias_grad = tl.zeros([STRIDE, COLUMNS], tl.float32)
        # A 64-bit loop counter would take more registers.
        for step in tl.range(0, tl.minimum(ROWS, rows - group * ROWS).to(tl.int32), STRIDE, num_stages=STAGES):
            row, at, there = step_of(group * ROWS + step, rows, columns, column, STRIDE)
            inverse, mean = _moments_of(moments_at, shift_grad_at, row, rows)
            normed = (read(x_at + at, there) - mean) * inverse
            out_grad = read(out_grad_at + at, there)
            weight_grad += out_grad * normed
            mean = read(means_at + (parts + 1) * space + row, row < rows, ".cg")
            grad = weight * out_grad * inverse - normed * mean
            if shift_grad_at is not None:
                shift_grad += out_grad
                grad -= read(means_at + row, row < rows, ".cg")
            if total_grad_at is not None:
                grad += read(total_grad_at + at, there)
            write(grad_at + at, grad, there)
            if seed_at is not None:
                grad = tl.where(kept(seed, threshold, row, eights), grad * scale, 0.0)
                write(dropped_at + at, grad, there)
            bias_grad += grad
        room = groups.to(tl.int64) * columns
        room_before_bias = 2 * room if shift_grad_at is not None else room
        store_sums(sums_at, group, columns, column, weight_grad)
        if shift_grad_at is not None:
            store_sums(sums_at + room, group, columns, column, shift_grad)
        if bias_grad_at is not None:
            store_sums(sums_at + room_before_bias, group, columns, column, bias_grad)
        if is_last(counters_at + 2 * groups + place, groups):
            add_slabs(sums_at, weight_grad_at, groups, columns, column, STRIDE)
            if shift_grad_at is not None:
                add_slabs(sums_at + room, shift_grad_at, groups, columns, column, STRIDE)
            if bias_grad_at is not None:
                add_slabs(sums_at + room_before_bias, bias_grad_at, groups, columns, column, STRIDE)


@triton.jit
def _moments_of(moments_at, shift_grad_at, row, rows):
    """1/d and mean of rows [R, 1]; 0 for rows beyond the end, and for the mean of an RMS norm."""
    inverse = tl.load(moments_at + row, mask=row < rows, other=0.0)
    mean = tl.load(moments_at + rows + row, mask=row < rows, other=0.0) if shift_grad_at is not None else 0.0
    return inverse, mean
