"""Attention without flash attention: PyTorch's matrix products, with scale, causal mask, softmax and dropout fused.

    P = softmax(scale · Q Kᵀ + mask)        O = D(P) V        D drops elements of P and scales the others

P overwrites the scores and is the only [S, T] matrix saved for backward, which computes D(P) again. A program has a
row in its registers, so that each score is read once and takes one exponential. Keys that a query may not see are not
read, only written as 0.

    dP = D(dO Vᵀ)        dS = scale · P (dP - Σ dP P)        overwrites dO Vᵀ
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from mtnlg_model import functional
from mtnlg_parallel.model import attention_masks

from .dropout_mask import draw, kept_of_row, threshold_and_scale
from .tiles import Matrix, custom_op, launch

if TYPE_CHECKING:
    from collections.abc import Callable

FLASH_HEADS = 256
"""Largest head size of PyTorch's flash attention."""

ALIGNMENT: Final = {torch.bfloat16: 8, torch.float16: 8, torch.float32: 4}
"""Elements in 16 bytes, which must divide the head size in all of PyTorch's kernels."""

LONGEST: Final = 8192
"""Most keys: 16 a thread of 512. Of 1,024 threads each has 64 registers, and masked rows would spill."""


def attention(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, mask: Tensor | None, scale: float, rate: float) -> Tensor:
    """Fused `mtnlg_model.functional.attention`; that one itself for flash attention, masks and long rows."""
    if mask is not None or not _is_ours(q_BNSD, k_BNTD):
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)
    return core_attention(q_BNSD, k_BNTD, v_BNTD, scale, rate)


def attention_of_rank(
    rank: int, q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, mask: Tensor | None, scale: float, rate: float
) -> Tensor:
    """Fused `mtnlg_parallel.model.attention_masks.attention_of_rank`; that one where `attention` is PyTorch's."""
    if mask is not None or not _is_ours(q_BNSD, k_BNTD):
        return attention_masks.attention_of_rank(rank, q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)
    return core_attention(q_BNSD, k_BNTD, v_BNTD, scale, rate, rank)


def _is_ours(q_BNSD: Tensor, k_BNTD: Tensor) -> bool:
    """Whether a program takes a row, and PyTorch does not keep the scores on chip.

    It does by flash attention in half precision, by xFormers' kernel in fp32. On the CPU kernels run interpreted, in
    tests.
    """
    head, square = q_BNSD.shape[-1], q_BNSD.shape[-2] == k_BNTD.shape[-2]
    if q_BNSD.is_cpu or not square or head % ALIGNMENT[q_BNSD.dtype]:
        return k_BNTD.shape[-2] <= LONGEST
    built = not q_BNSD.is_cuda or torch.backends.cuda.is_flash_attention_available()
    has_flash = q_BNSD.dtype == torch.float32 or (built and head <= FLASH_HEADS)
    return k_BNTD.shape[-2] <= LONGEST and not has_flash


def core_attention(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, scale: float, rate: float, rank: int = 0) -> Tensor:
    """Causal attention of S queries over T >= S keys, at most `LONGEST`, with the last query at the last key."""
    out: Tensor = _attention(q_BNSD, k_BNTD, v_BNTD, scale, draw(rate, q_BNSD, rank), rate)[0]
    return out


@custom_op
def _attention(
    q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, scale: float, seed: Tensor | None, rate: float
) -> tuple[Tensor, Tensor]:
    """The context, and P."""
    p_BNST = torch.matmul(q_BNSD, k_BNTD.transpose(-1, -2)).contiguous()
    dropped_BNST = None if seed is None else torch.empty_like(p_BNST)
    _launch(_softmax_forward, p_BNST, dropped_BNST, seed, scale=scale / math.log(2), rate=rate)
    return torch.matmul(p_BNST if dropped_BNST is None else dropped_BNST, v_BNTD), p_BNST


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
    grad_BNST = torch.matmul(out_grad_BNSD, v_BNTD.transpose(-1, -2)).contiguous()
    dropped_BNST = None if seed is None else torch.empty_like(p_BNST)
    _launch(_softmax_backward, grad_BNST, p_BNST, dropped_BNST, seed, scale=scale, rate=rate)
    v_grad_BNTD = torch.matmul((p_BNST if dropped_BNST is None else dropped_BNST).transpose(-1, -2), out_grad_BNSD)
    return torch.matmul(grad_BNST, k_BNTD), torch.matmul(grad_BNST.transpose(-1, -2), q_BNSD), v_grad_BNTD


def _launch(kernel: Any, x_BNST: Tensor, *others: Tensor | None, scale: float, rate: float) -> None:  # noqa: ANN401  (Triton's)
    """Launch a kernel over the rows of ``x_BNST``, a program a row."""
    queries, (rows, t) = x_BNST.shape[-2], Matrix.of(x_BNST)
    columns = max(8, triton.next_power_of_2(t))
    constants = {"COLUMNS": columns, "num_warps": max(1, columns // 512)}
    launch(kernel, (rows,), x_BNST, *others, t, queries, scale, *threshold_and_scale(rate), **constants)


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
def _row(t, s, COLUMNS: tl.constexpr):
    """A program's row: number, columns [C / 8, 8], which its query sees, which are read: whole vectors if t allows."""
    row = tl.program_id(0).to(tl.int64)
    visible = t - s + (row % s).to(tl.int32) + 1
    first, eighth = tl.arange(0, COLUMNS // 8)[:, None] * 8, tl.arange(0, 8)[None, :]
    return row, first + eighth, eighth < visible - first, first + eighth < tl.minimum(tl.cdiv(visible, 16) * 16, t)


@triton.jit
def _dropped(x, seed, threshold, scale, row, COLUMNS: tl.constexpr):
    """D(x) of a row in fp32."""
    return tl.where(tl.reshape(kept_of_row(seed, threshold, row, 0, COLUMNS), x.shape), x * scale, 0.0)


@triton.jit(do_not_specialize=["s", "threshold"])
def _softmax_forward(p_at, dropped_at, seed_at, t, s, scale, threshold, kept_scale, COLUMNS: tl.constexpr):
    row, column, seen, read = _row(t, s, COLUMNS)
    score = tl.load(p_at + row * t + column, mask=read, other=0.0).to(tl.float32)
    score = tl.where(seen, score * scale, float("-inf"))
    p = tl.exp2(score - tl.max(score))
    p *= 1.0 / tl.sum(p)
    tl.store(p_at + row * t + column, p.to(p_at.dtype.element_ty), mask=column < t)
    if seed_at is not None:
        dropped = _dropped(p, tl.load(seed_at), threshold, kept_scale, row, COLUMNS)
        tl.store(dropped_at + row * t + column, dropped.to(p_at.dtype.element_ty), mask=column < t)


@triton.jit(do_not_specialize=["s", "threshold"])
def _softmax_backward(grad_at, p_at, dropped_at, seed_at, t, s, scale, threshold, kept_scale, COLUMNS: tl.constexpr):
    row, column, seen, read = _row(t, s, COLUMNS)
    p = tl.load(p_at + row * t + column, mask=read, other=0.0).to(tl.float32)
    grad = tl.load(grad_at + row * t + column, mask=read, other=0.0).to(tl.float32)
    if seed_at is not None:
        seed = tl.load(seed_at)
        dropped = _dropped(p, seed, threshold, kept_scale, row, COLUMNS)
        tl.store(dropped_at + row * t + column, dropped.to(dropped_at.dtype.element_ty), mask=column < t)
        grad = _dropped(grad, seed, threshold, kept_scale, row, COLUMNS)
    grad = tl.where(seen, grad, 0.0)
    grad = p * (grad - tl.sum(p * grad)) * scale
    tl.store(grad_at + row * t + column, grad.to(grad_at.dtype.element_ty), mask=column < t)
