"""Attention without flash attention: PyTorch's matrix products, with scale, causal mask, softmax and dropout fused.

    P = softmax(scale · Q Kᵀ + mask)        O = D(P) V        D drops elements of P and scales the others

P overwrites the scores and is the only [S, T] matrix saved for backward, which computes D(P) again. Keys that a query
may not see are not read or computed, only written as 0.

    dP = D(dO Vᵀ)        dS = scale · P (dP - Σ dP P)        overwrites dO Vᵀ
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mtnlg_model import functional

from .dropout_mask import draw, kept, kept_of_row, threshold_and_scale
from .tiles import TILE, Matrix, custom_op, launch, tile

if TYPE_CHECKING:
    from collections.abc import Callable

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
    out: Tensor = _attention(q_BNSD, k_BNTD, v_BNTD, scale, draw(rate, q_BNSD), rate)[0]
    return out


@custom_op
def _attention(
    q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, scale: float, seed: Tensor | None, rate: float
) -> tuple[Tensor, Tensor]:
    """The context, and P."""
    p_BNST = torch.matmul(q_BNSD, k_BNTD.transpose(-1, -2)).contiguous()
    rows, t = Matrix.of(p_BNST)
    launch(_softmax_forward, (rows,), p_BNST, t, q_BNSD.shape[-2], scale, not t % 16, **Matrix(rows, t).blocks)
    return torch.matmul(_dropped(p_BNST, seed, rate), v_BNTD), p_BNST


@custom_op
def _attention_gradients(
    q_BNSD: Tensor,
    k_BNTD: Tensor,
    v_BNTD: Tensor,
    p_BNST: Tensor,
    out_grad_BNSD: Tensor,
    scale: float,
    seed: Tensor | None,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    v_grad_BNTD = torch.matmul(_dropped(p_BNST, seed, rate).transpose(-1, -2), out_grad_BNSD)
    grad_BNST = torch.matmul(out_grad_BNSD, v_BNTD.transpose(-1, -2)).contiguous()
    rows, t = Matrix.of(p_BNST)
    shape, constants = (t, q_BNSD.shape[-2], scale), Matrix(rows, t).blocks
    launch(
        _softmax_backward, (rows,), grad_BNST, p_BNST, seed, *shape, *threshold_and_scale(rate), not t % 16, **constants
    )
    return torch.matmul(grad_BNST, k_BNTD), torch.matmul(grad_BNST.transpose(-1, -2), q_BNSD), v_grad_BNTD


def _dropped(p_BNST: Tensor, seed: Tensor | None, rate: float) -> Tensor:
    """D(P); P itself if nothing is dropped."""
    if seed is None:
        return p_BNST
    out_BNST, size = torch.empty_like(p_BNST), Matrix.of(p_BNST)
    launch(_softmax_drop, size.tiles, p_BNST, out_BNST, seed, *size, *threshold_and_scale(rate), **TILE)
    return out_BNST


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401  (torch's context)
    q_BNSD, k_BNTD, v_BNTD, ctx.scale, seed, ctx.rate = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q_BNSD, k_BNTD, v_BNTD, output[1], seed)


def _gradients(ctx: Any, out_grad_BNSD: Tensor, _: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
    *saved, seed = ctx.saved_tensors
    return *_attention_gradients(*saved, out_grad_BNSD, ctx.scale, seed, ctx.rate), None, None, None


_attention.register_autograd(_gradients, setup_context=_save)


def _count_products(products: int) -> Callable[..., int]:
    """What PyTorch's counter of floating-point operations adds for an operator of so many products of S x T x D."""

    def count(q_shape: torch.Size, k_shape: torch.Size, *_: object, **__: object) -> int:
        return 2 * products * q_shape.numel() * k_shape[-2]

    return count


register_flop_formula(torch.ops.mtnlg.attention)(_count_products(2))
register_flop_formula(torch.ops.mtnlg.attention_gradients)(_count_products(4))


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
    inverse = 1.0 / tl.sum(sum_l * tl.exp(most_l - most), 0)
    tl.debug_barrier()  # what one thread has read another may write over
    for left in range(0, t, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        p = tl.exp(_score(p_at, left, visible, end, scale, COLUMNS) - most) * inverse
        p = tl.where(column < visible, p, 0.0)
        tl.store(p_at + column, p.to(p_at.dtype.element_ty), mask=column < t)


@triton.jit
def _score(p_at, left, visible, end, scale, COLUMNS: tl.constexpr):
    column = left + tl.arange(0, COLUMNS)
    score = tl.load(p_at + column, mask=column < end, other=0.0).to(tl.float32) * scale
    return tl.where(column < visible, score, float("-inf"))


@triton.jit(do_not_specialize=["s", "threshold"])
def _softmax_backward(
    grad_at,
    p_at,
    seed_at,
    t,
    s,
    scale,
    threshold,
    kept_scale,
    EVEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    grad_at, p_at = grad_at + row * t, p_at + row * t
    visible, end = _visible(row, t, s, EVEN)
    seed = tl.load(seed_at) if seed_at is not None else 0
    sum_l = tl.zeros([COLUMNS], tl.float32)
    for left in range(0, end, COLUMNS):
        p, grad = _pair(p_at, grad_at, seed_at, row, left, visible, end, seed, threshold, kept_scale, COLUMNS)
        sum_l += p * grad
    total = tl.sum(sum_l, 0)
    tl.debug_barrier()  # as above
    for left in range(0, t, COLUMNS):
        column = left + tl.arange(0, COLUMNS)
        p, grad = _pair(p_at, grad_at, seed_at, row, left, visible, end, seed, threshold, kept_scale, COLUMNS)
        grad = tl.where(column < visible, p * (grad - total) * scale, 0.0)
        tl.store(grad_at + column, grad.to(grad_at.dtype.element_ty), mask=column < t)


@triton.jit
def _pair(
    p_at,
    grad_at,
    seed_at,
    row,
    left,
    visible,
    end,
    seed,
    threshold,
    scale,
    COLUMNS: tl.constexpr,
):
    """P, which is 0 where the query may not see, and D(dP), taken for 0 there."""
    column = left + tl.arange(0, COLUMNS)
    p = tl.load(p_at + column, mask=column < end, other=0.0).to(tl.float32)
    grad = tl.load(grad_at + column, mask=column < end, other=0.0).to(tl.float32)
    if seed_at is not None:
        grad = tl.where(kept_of_row(seed, threshold, row, left, COLUMNS), grad * scale, 0.0)
    return p, tl.where(column < visible, grad, 0.0)


@triton.jit(do_not_specialize=["rows", "threshold"])
def _softmax_drop(
    p_at,
    out_at,
    seed_at,
    rows,
    columns,
    threshold,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, _column, group, at, there = tile(rows, columns, ROWS, COLUMNS)
    p = tl.load(p_at + at, mask=there, other=0.0).to(tl.float32)
    p = tl.where(kept(tl.load(seed_at), threshold, row, group), p * scale, 0.0)
    tl.store(out_at + at, p.to(out_at.dtype.element_ty), mask=there)
