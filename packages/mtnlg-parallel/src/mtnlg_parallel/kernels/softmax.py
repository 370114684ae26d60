"""Attention without flash attention: PyTorch's matrix products, with scale, causal mask, softmax and dropout fused.

    P = softmax(scale · Q Kᵀ + mask)        O = D(P) V        D drops elements of P and scales the others

P overwrites the scores and is the only [S, T] matrix saved for backward, which computes D(P) again. Keys that a query
may not see are not read or computed, only written as 0.

    dP = D(dO Vᵀ)        dS = scale · P (dP - Σ dP P)        overwrites dO Vᵀ
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from mtnlg_model import functional

from .dropout_mask import Dropout, draw, kept, kept_of_row
from .tiles import TILE, Matrix, launch, tile

_LEAST = tl.constexpr(-3.0e38)


FLASH_HEADS = 256
"""Largest head size of PyTorch's flash attention."""

ALIGNMENT: Final = {torch.bfloat16: 8, torch.float16: 8, torch.float32: 4}
"""Elements in 16 bytes, which must divide the head size in all of PyTorch's kernels."""


def attention(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, mask: Tensor | None, scale: float, rate: float) -> Tensor:
    """Fused `mtnlg_model.functional.attention`; calls that one if flash attention is available or a mask is given."""
    if mask is not None or _has_flash(q_BNSD, k_BNTD):
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)
    return core_attention(q_BNSD, k_BNTD, v_BNTD, scale, rate)


def _has_flash(q_BNSD: Tensor, k_BNTD: Tensor) -> bool:
    """Whether PyTorch keeps the scores on chip: by flash attention in half precision, by xFormers' kernel in fp32.

    False on the CPU, where kernels run interpreted in tests.
    """
    head, square = q_BNSD.shape[-1], q_BNSD.shape[-2] == k_BNTD.shape[-2]
    if q_BNSD.is_cpu or not square or head % ALIGNMENT[q_BNSD.dtype]:
        return False
    built = not q_BNSD.is_cuda or torch.backends.cuda.is_flash_attention_available()
    return q_BNSD.dtype == torch.float32 or (built and head <= FLASH_HEADS)


def core_attention(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, scale: float, rate: float) -> Tensor:
    """Causal attention of S queries over T >= S keys, with the last query at the last key, by this module's kernels."""
    out: Tensor = _Attention.apply(q_BNSD, k_BNTD, v_BNTD, scale, draw(rate))
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch's context)
        q_BNSD: Tensor,
        k_BNTD: Tensor,
        v_BNTD: Tensor,
        scale: float,
        dropout: Dropout,
    ) -> Tensor:
        p_BNST = torch.matmul(q_BNSD, k_BNTD.transpose(-1, -2)).contiguous()
        rows, t = Matrix.of(p_BNST)
        launch(_softmax_forward, (rows,), p_BNST, t, q_BNSD.shape[-2], scale, not t % 16, **Matrix(rows, t).blocks)
        ctx.save_for_backward(q_BNSD, k_BNTD, v_BNTD, p_BNST)
        ctx.scale, ctx.dropout = scale, dropout
        return torch.matmul(_dropped(p_BNST, dropout), v_BNTD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        q_BNSD, k_BNTD, v_BNTD, p_BNST = ctx.saved_tensors
        dropout, out_grad_BNSD = ctx.dropout, gradients[0]
        v_grad_BNTD = torch.matmul(_dropped(p_BNST, dropout).transpose(-1, -2), out_grad_BNSD)
        grad_BNST = torch.matmul(out_grad_BNSD, v_BNTD.transpose(-1, -2)).contiguous()
        rows, t = Matrix.of(p_BNST)
        shape, constants = (t, q_BNSD.shape[-2], ctx.scale), Matrix(rows, t).blocks
        cases = (dropout.active, not t % 16)
        launch(_softmax_backward, (rows,), grad_BNST, p_BNST, *shape, *dropout, *cases, **constants)
        q_grad_BNSD = torch.matmul(grad_BNST, k_BNTD)
        return q_grad_BNSD, torch.matmul(grad_BNST.transpose(-1, -2), q_BNSD), v_grad_BNTD, None, None


def _dropped(p_BNST: Tensor, dropout: Dropout) -> Tensor:
    """D(P); P itself if nothing is dropped."""
    if not dropout.active:
        return p_BNST
    out_BNST, size = torch.empty_like(p_BNST), Matrix.of(p_BNST)
    launch(_softmax_drop, size.tiles, p_BNST, out_BNST, *size, *dropout, **TILE)
    return out_BNST


@triton.jit
def _visible(row, t, s, EVEN: tl.constexpr):
    """How many keys a row's query sees; and up to where to read, whole vectors where rows consist of such."""
    visible = t - s + row % s + 1
    if EVEN:
        return visible, tl.cdiv(visible, 16) * 16
    return visible, visible


@triton.jit(do_not_specialize=["s"])
def _softmax_forward(p_at, t, s, scale, EVEN: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    p_at += row * t
    visible, end = _visible(row, t, s, EVEN)
    most_l, sum_l = tl.full([COLUMNS], _LEAST, tl.float32), tl.zeros([COLUMNS], tl.float32)
    for left in range(0, end, COLUMNS):
        score = _score(p_at, left, visible, end, scale, COLUMNS)
        now_l = tl.maximum(most_l, score, propagate_nan=tl.PropagateNan.ALL)
        sum_l = sum_l * tl.exp(most_l - now_l) + tl.exp(score - now_l)
        most_l = now_l
    most = tl.max(most_l, 0)
    total = tl.sum(sum_l * tl.exp(most_l - most), 0)
    tl.debug_barrier()  # what one thread has read another may write over
    for left in range(0, t, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        p = tl.exp(_score(p_at, left, visible, end, scale, COLUMNS) - most) / total
        p = tl.where(column < visible, p, 0.0)
        tl.store(p_at + column, p.to(p_at.dtype.element_ty), mask=column < t)


@triton.jit
def _score(p_at, left, visible, end, scale, COLUMNS: tl.constexpr):
    column = left + tl.arange(0, COLUMNS)
    score = tl.load(p_at + column, mask=column < end, other=0.0).to(tl.float32) * scale
    return tl.where(column < visible, score, float("-inf"))


@triton.jit(do_not_specialize=["s", "seed", "threshold"])
def _softmax_backward(
    grad_at,
    p_at,
    t,
    s,
    scale,
    seed: tl.int64,
    threshold,
    kept_scale,
    DROPS: tl.constexpr,
    EVEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    grad_at, p_at = grad_at + row * t, p_at + row * t
    visible, end = _visible(row, t, s, EVEN)
    sum_l = tl.zeros([COLUMNS], tl.float32)
    for left in range(0, end, COLUMNS):
        p, grad = _pair(p_at, grad_at, row, left, visible, end, seed, threshold, kept_scale, DROPS, COLUMNS)
        sum_l += p * grad
    total = tl.sum(sum_l, 0)
    tl.debug_barrier()  # as above
    for left in range(0, t, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        p, grad = _pair(p_at, grad_at, row, left, visible, end, seed, threshold, kept_scale, DROPS, COLUMNS)
        grad = tl.where(column < visible, p * (grad - total) * scale, 0.0)
        tl.store(grad_at + column, grad.to(grad_at.dtype.element_ty), mask=column < t)


@triton.jit
def _pair(
    p_at,
    grad_at,
    row,
    left,
    visible,
    end,
    seed,
    threshold,
    scale,
    DROPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """P, which is 0 where the query may not see, and D(dP), taken for 0 there."""
    column = left + tl.arange(0, COLUMNS)
    p = tl.load(p_at + column, mask=column < end, other=0.0).to(tl.float32)
    grad = tl.load(grad_at + column, mask=column < end, other=0.0).to(tl.float32)
    if DROPS:
        grad = tl.where(kept_of_row(seed, threshold, row, left, COLUMNS), grad * scale, 0.0)
    return p, tl.where(column < visible, grad, 0.0)


@triton.jit(do_not_specialize=["rows", "seed", "threshold"])
def _softmax_drop(
    p_at,
    out_at,
    rows,
    columns,
    seed: tl.int64,
    threshold,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, _column, group, at, there = tile(rows, columns, ROWS, COLUMNS)
    p = tl.load(p_at + at, mask=there, other=0.0).to(tl.float32)
    p = tl.where(kept(seed, threshold, row, group), p * scale, 0.0)
    tl.store(out_at + at, p.to(out_at.dtype.element_ty), mask=there)
