"""Vocabulary-parallel head fused with its cross entropy, over one chunk of tokens at a time.

    z = x Wᵀ                                                  logits in the model's dtype; all chunks share one buffer
    m, e, t = max z, Σ exp(z - m), z[target]                  `statistics`; one small all-gather over the slices
    loss = m + log e - t
    d = (exp(z - m - log e) - [column is target]) / tokens    `gradient`, in place of z
    dx = d W,  dW += dᵀ x

The logits of a whole micro-batch never exist at once, and backward only scales gradients that forward computed. Shapes:
S sequence, B micro-batch, H hidden, N tokens of a chunk, V this rank's slice of the vocabulary, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from mtnlg_model import functional
from mtnlg_parallel.layout import head_chunk
from mtnlg_parallel.waiting import wait_for

from . import sequence_parallel
from .attention_masks import attention_of_rank
from .eight_bit import Rounding
from .products import add_matmul, matmul, start_sum

if TYPE_CHECKING:
    from collections.abc import Callable

    from .slicing import Slicing


def statistics(logits_NV: Tensor, targets_N: Tensor, first: int) -> Tensor:
    """Cross-entropy terms of one vocabulary slice, [3, N] in fp32 (fp64 for fp64 logits).

    They are the maximum, the sum of exp(logit - maximum), and the target's logit, or 0 if the target is outside the
    slice, which starts at token ``first``. A NaN makes the sum NaN.
    """
    exact_NV = _at_least_fp32(logits_NV)
    max_N = exact_NV.amax(1)
    # If all logits are -Inf, the slice adds 0 to the sum, not NaN.
    sum_N = (exact_NV - max_N.masked_fill(max_N == -torch.inf, 0)[:, None]).exp_().sum(1)
    column_N, is_local_N = _target_columns(targets_N, first, logits_NV.shape[1])
    target_N = exact_NV.gather(1, column_N[:, None])[:, 0].masked_fill(~is_local_N, 0)
    return torch.stack([max_N, sum_N, target_N])


def gradient(logits_NV: Tensor, targets_N: Tensor, first: int, logsumexp_N: Tensor, scale: float) -> None:
    """Overwrite logits with the loss's gradient, (exp(logit - logsumexp) - [column is target]) · scale."""
    exact_NV = _at_least_fp32(logits_NV)
    exact_NV.sub_(logsumexp_N[:, None]).exp_()
    column_N, is_local_N = _target_columns(targets_N, first, logits_NV.shape[1])
    exact_NV.scatter_add_(1, column_N[:, None], -is_local_N[:, None].to(exact_NV.dtype))
    logits_NV.copy_(exact_NV.mul_(scale))


def _at_least_fp32(logits: Tensor) -> Tensor:
    """``logits`` itself if it is fp32 or fp64, else a copy in fp32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _target_columns(targets_N: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """Column of each target, clamped to the slice, and whether the target is in the slice."""
    column_N = targets_N - first
    return column_N.clamp(0, width - 1), (column_N >= 0) & (column_N < width)


@dataclass(frozen=True)
class ParallelOps(functional.Ops):
    """The training operations that a fused kernel with the same signature can replace."""

    statistics: Callable[[Tensor, Tensor, int], Tensor] = statistics
    gradient: Callable[[Tensor, Tensor, int, Tensor, float], None] = gradient
    attention_of_rank: Callable[..., Tensor] = attention_of_rank
    eight_bit: Rounding = Rounding()  # noqa: RUF009  (of functions alone)


EAGER = ParallelOps()


def real_rows(slicing: Slicing, width: int, padding: int) -> int:
    """Number of this rank's ``width`` vocabulary rows that are not padding, the last ``padding`` rows of all ranks."""
    return min(max((slicing.degree - slicing.rank) * width - padding, 0), width)


def mean_loss(  # noqa: PLR0917  (hidden states and table, what is wanted of them, and how)
    x_SBH: Tensor,
    weight_VH: Tensor,
    targets_BS: Tensor,
    slicing: Slicing,
    ops: ParallelOps,
    padding: int = 0,
    cap: float | None = None,
    observe: Callable[[Tensor], None] | None = None,
    masked: bool = False,
) -> Tensor:
    """Mean cross entropy in nats, in fp32, of x_SBH after the final norm, with this rank's rows of the token table.

    The last ``padding`` rows of the whole table are not tokens: their logits are -Inf, and their gradients 0. ``cap``
    is the cap of the logits' `functional.softcap`. Under sequence parallelism x_SBH is this rank's part, [S/tp, B, H].
    All tensor-parallel ranks return the same loss, and the gradient of x is summed over them. dW accumulates over
    chunks in the weight's dtype: in bf16 each chunk after the first rounds it once more, by 1 part in 2**9; MT-NLG has
    two chunks. ``observe`` receives the loss of each sample, [B]. If ``masked``, targets below 0 have no loss and no
    gradient; the mean still divides by the number of all targets.
    """
    if slicing.sequence_parallel:
        x_SBH = sequence_parallel.gather(x_SBH, slicing.group)
    x_NH, targets_N = x_SBH.flatten(0, 1), targets_BS.t().flatten()
    options = slicing, ops, padding, cap, len(targets_BS), observe, masked
    if torch.is_grad_enabled():
        loss: Tensor = _MeanLoss.apply(x_NH, weight_VH, targets_N, options)  # type: ignore[no-untyped-call]
        return loss
    return _chunked_loss(None, x_NH, weight_VH, targets_N, *options)


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (torch's context)
        x_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        options: tuple[Any, ...],
    ) -> Tensor:
        dx_NH, dw_VH = torch.empty_like(x_NH), torch.empty_like(weight_VH)
        ctx.save_for_backward(dx_NH, dw_VH)
        return _chunked_loss((dx_NH, dw_VH), x_NH, weight_VH, targets_N, *options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        dx_NH, dw_VH = ctx.saved_tensors
        return dx_NH.mul_(upstream), dw_VH.mul_(upstream), None, None


def _cap(logits_NV: Tensor, cap: float) -> Tensor:
    """Cap logits in place as `functional.softcap` does; returns its derivative, 1 - tanh²."""
    logits_NV.div_(cap).tanh_()
    slope_NV = 1 - logits_NV.square()
    logits_NV.mul_(cap)
    return slope_NV


def _chunked_loss(  # noqa: PLR0917  (as `mean_loss`)
    gradients: tuple[Tensor, Tensor] | None,
    all_x_NH: Tensor,
    weight_VH: Tensor,
    all_targets_N: Tensor,
    slicing: Slicing,
    ops: ParallelOps,
    padding: int,
    cap: float | None,
    samples: int,
    observe: Callable[[Tensor], None] | None,
    masked: bool,
) -> Tensor:
    """The mean loss; fills ``gradients``, if given, with dx summed over the slices, and dW."""
    (tokens, hidden), width = all_x_NH.shape, weight_VH.shape[0]
    rows, first = head_chunk(tokens, hidden, width), slicing.rank * width
    real = real_rows(slicing, width, padding)
    buffer_NV = all_x_NH.new_empty(min(rows, tokens), width)
    losses, reductions = [], []
    for start in range(0, tokens, rows):
        chunk = slice(start, start + rows)
        x_NH, targets_N = all_x_NH[chunk], all_targets_N[chunk]
        logits_NV = matmul(x_NH, weight_VH.t(), buffer_NV[: len(x_NH)])
        slope_NV = None if cap is None else _cap(logits_NV, cap)
        logits_NV[:, real:] = -torch.inf
        logsumexp_N, target_N = _combine_slices(ops.statistics(logits_NV, targets_N, first), slicing)
        losses.append(logsumexp_N - target_N)
        if masked:  # no slice has such a target, and exp(z - Inf) is 0
            losses[-1].masked_fill_(targets_N < 0, 0)
            logsumexp_N = logsumexp_N.masked_fill(targets_N < 0, torch.inf)
        if gradients:
            ops.gradient(logits_NV, targets_N, first, logsumexp_N, 1 / tokens)
            if slope_NV is not None:
                logits_NV.mul_(slope_NV)
            dx_NH, dw_VH = gradients[0][chunk], gradients[1]
            dx_NH.copy_(matmul(logits_NV, weight_VH, dx_NH))
            if not slicing.sequence_parallel:  # else `gather`'s backward sums dx
                reductions.append(start_sum(dx_NH, slicing)[1])
            add_matmul(dw_VH, logits_NV.t(), x_NH, first=start == 0)
    for reduction in reductions:
        wait_for(reduction)
    losses_N = torch.cat(losses)
    if observe:
        observe(losses_N.view(-1, samples).mean(0))
    return losses_N.mean()


def _combine_slices(statistics_3N: Tensor, slicing: Slicing) -> tuple[Tensor, Tensor]:
    """Logsumexp and the target's logit over the full vocabulary, [N] each."""
    ranks = slicing.degree
    if ranks == 1:
        max_N, sum_N, target_N = statistics_3N
        return max_N + sum_N.log(), target_N
    all_R3N = statistics_3N.new_empty(ranks, *statistics_3N.shape)
    full, group = all_R3N.flatten(0, 1), slicing.group
    wait_for(distributed.all_gather_into_tensor(full, statistics_3N, group=group, async_op=True))
    max_RN, sum_RN, target_RN = all_R3N.unbind(1)
    max_N = max_RN.amax(0)
    return max_N + (sum_RN * (max_RN - max_N).exp()).sum(0).log(), target_RN.sum(0)
