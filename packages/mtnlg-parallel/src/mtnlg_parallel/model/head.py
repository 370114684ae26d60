"""The head and its loss in one: projection onto a slice of the vocabulary, cross entropy, a chunk of tokens at a time.

    z = x Wᵀ                                                  a chunk's logits, in the model's dtype, one buffer for all
    m, e, t = max z, Σ exp(z - m), z[target]                  `statistics`; one small all-gather over the slices
    loss = m + log e - t
    d = (exp(z - m - log e) - [column is target]) / tokens    `gradient`, in the place of z
    dx = d W,  dW += dᵀ x

So logits of a micro-batch never exist whole, and backward has only to scale what was found forward. Shapes: S sequence,
B micro-batch, H hidden, N tokens of a chunk, V this rank's slice of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from mtnlg_model import functional
from mtnlg_parallel.layout import head_chunk

from . import sequence_parallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from .slicing import Slicing


def statistics(logits_NV: Tensor, targets_N: Tensor, first: int) -> Tensor:
    """What a slice of the logits adds to the cross entropy, [3, N] in fp32 (fp64 of fp64).

    The maximum, the sum of exp(logit - maximum), and the target's logit, 0 where the target is not in the slice whose
    first token is ``first``. A NaN makes the sum NaN.
    """
    exact_NV = _exact(logits_NV)
    most_N = exact_NV.amax(1)
    # All -Inf: the slice adds 0 to the sum, not NaN.
    sum_N = (exact_NV - most_N.masked_fill(most_N == -torch.inf, 0)[:, None]).exp_().sum(1)
    local_N, here_N = _local(targets_N, first, logits_NV.shape[1])
    target_N = exact_NV.gather(1, local_N[:, None])[:, 0].masked_fill(~here_N, 0)
    return torch.stack([most_N, sum_N, target_N])


def gradient(logits_NV: Tensor, targets_N: Tensor, first: int, logsumexp_N: Tensor, scale: float) -> None:
    """Replace logits by the loss' gradient with respect to them, (exp(logit - logsumexp) - [is target]) · scale."""
    exact_NV = _exact(logits_NV)
    exact_NV.sub_(logsumexp_N[:, None]).exp_()
    local_N, here_N = _local(targets_N, first, logits_NV.shape[1])
    exact_NV.scatter_add_(1, local_N[:, None], -here_N[:, None].to(exact_NV.dtype))
    logits_NV.copy_(exact_NV.mul_(scale))


def _exact(logits: Tensor) -> Tensor:
    """In fp32 at least; the same tensor where it is so."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _local(targets_N: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """Columns of the targets, and whether they are in this slice."""
    local_N = targets_N - first
    return local_N.clamp(0, width - 1), (local_N >= 0) & (local_N < width)


@dataclass(frozen=True)
class ParallelOps(functional.Ops):
    """The operations that training uses, each replaceable by a kernel of the same signature."""

    statistics: Callable[[Tensor, Tensor, int], Tensor] = statistics
    gradient: Callable[[Tensor, Tensor, int, Tensor, float], None] = gradient


EAGER = ParallelOps()


def mean_loss(x_SBH: Tensor, weight_VH: Tensor, targets_BS: Tensor, slicing: Slicing, ops: ParallelOps) -> Tensor:
    """Mean cross entropy in nats, in fp32, of x_SBH after the final norm, by this rank's rows of the tied token table.

    x_SBH is this rank's part of the sequence where that is cut. All ranks of the slicing find the same loss, and
    gradients of x that are summed over them. dW is summed over chunks in the weight's dtype: in bf16 each chunk after
    the first rounds it once more, by a part in 2**9; MT-NLG has two.
    """
    if slicing.sequence_parallel:
        x_SBH = sequence_parallel.gather(x_SBH, slicing.group)
    x_NH, targets_N = x_SBH.flatten(0, 1), targets_BS.t().flatten()
    if torch.is_grad_enabled():
        loss: Tensor = _MeanLoss.apply(x_NH, weight_VH, targets_N, slicing, ops)  # type: ignore[no-untyped-call]
        return loss
    return _Chunks(x_NH, weight_VH, targets_N, slicing, ops).loss()


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  (as mean_loss)
        ctx: Any,  # noqa: ANN401  (torch's context)
        x_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        slicing: Slicing,
        ops: ParallelOps,
    ) -> Tensor:
        dx_NH, dw_VH = torch.empty_like(x_NH), torch.empty_like(weight_VH)
        loss = _Chunks(x_NH, weight_VH, targets_N, slicing, ops).loss((dx_NH, dw_VH))
        ctx.save_for_backward(dx_NH, dw_VH)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        dx_NH, dw_VH = ctx.saved_tensors
        return dx_NH.mul_(upstream), dw_VH.mul_(upstream), None, None, None


@dataclass(frozen=True)
class _Chunks:
    """A micro-batch at the head: x [tokens, H], weight [V, H], targets [tokens]."""

    x: Tensor
    weight: Tensor
    targets: Tensor
    slicing: Slicing
    ops: ParallelOps

    def loss(self, gradients: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The mean loss; writes that of x, summed over the slices, and that of the weight into ``gradients``."""
        (tokens, hidden), width = self.x.shape, self.weight.shape[0]
        rows, first = head_chunk(tokens, hidden, width), self.slicing.rank * width
        buffer_NV = self.x.new_empty(min(rows, tokens), width)
        losses, sums = [], []
        for start in range(0, tokens, rows):
            chunk = slice(start, start + rows)
            x_NH, targets_N = self.x[chunk], self.targets[chunk]
            logits_NV = torch.mm(x_NH, self.weight.t(), out=buffer_NV[: len(x_NH)])
            logsumexp_N, target_N = self._over_slices(self.ops.statistics(logits_NV, targets_N, first))
            losses.append(logsumexp_N - target_N)
            if gradients:
                self.ops.gradient(logits_NV, targets_N, first, logsumexp_N, 1 / tokens)
                dx_NH, dw_VH = gradients[0][chunk], gradients[1]
                torch.mm(logits_NV, self.weight, out=dx_NH)
                sums += self._begin_sum(dx_NH)
                dw_VH.addmm_(logits_NV.t(), x_NH, beta=int(start > 0))
        for begun in sums:
            begun.wait()
        return torch.cat(losses).mean()

    def _over_slices(self, figures_3N: Tensor) -> tuple[Tensor, Tensor]:
        """Logsumexp and the target's logit over the whole vocabulary."""
        ranks = self.slicing.degree
        if ranks == 1:
            most_N, sum_N, target_N = figures_3N
            return most_N + sum_N.log(), target_N
        all_R3N = figures_3N.new_empty(ranks, *figures_3N.shape)
        distributed.all_gather_into_tensor(all_R3N.flatten(0, 1), figures_3N, group=self.slicing.group)
        most_RN, sum_RN, target_RN = all_R3N.unbind(1)
        most_N = most_RN.amax(0)
        return most_N + (sum_RN * (most_RN - most_N).exp()).sum(0).log(), target_RN.sum(0)

    def _begin_sum(self, dx_NH: Tensor) -> list[distributed.Work]:
        """Sum over the slices while dW is computed; where the sequence is cut, its region does it."""
        if self.slicing.degree == 1 or self.slicing.sequence_parallel:
            return []
        begun = distributed.all_reduce(dx_NH, group=self.slicing.group, async_op=True)
        return [begun] if begun else []
