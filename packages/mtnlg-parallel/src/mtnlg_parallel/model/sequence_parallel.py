"""Sequence parallelism: between a layer's parallel products, each tensor-parallel rank holds 1/tp of the sequence.

    gather    local [S/tp, …] → full [S, …], all-gather               backward: reduce-scatter
    scatter   partial sums [S, …] → local [S/tp, …], reduce-scatter   backward: all-gather

These are g and ḡ of Korthikanti et al. 2022, section 4.2.2. Together they move as many bytes as one all-reduce, and
norms, dropout and residuals take 1/tp of the memory. The embedding and the head use them; a layer's products contain
them (`products`). Without sequence parallelism the embedding uses

    sum_over_ranks   partial sums [S, …] → [S, …], all-reduce                backward: nothing, or an all-reduce
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed
from torch.autograd import Function

from mtnlg_parallel.waiting import wait_for

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


def gather(local: Tensor, group: ProcessGroup) -> Tensor:
    """Gather each rank's part of the sequence, [S/tp, …] → [S, …] in rank order."""
    full: Tensor = _Gather.apply(local, group)  # type: ignore[no-untyped-call]
    return full


def scatter(partial: Tensor, group: ProcessGroup) -> Tensor:
    """Sum over the ranks and keep this rank's part of the sequence, [S, …] → [S/tp, …]."""
    local: Tensor = _Scatter.apply(partial, group)  # type: ignore[no-untyped-call]
    return local


def sum_over_ranks(partial: Tensor, group: ProcessGroup, used_differently: bool = False) -> Tensor:
    """Sum over the ranks in place, [S, …] → [S, …]; gradients too if each rank uses the sum differently."""
    total: Tensor = _Sum.apply(partial, group, used_differently)  # type: ignore[no-untyped-call]
    return total


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ANN401  (autograd's context)
        ctx.group = group
        return wait(*start_all_gather(local, group))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        return wait(*start_reduce_scatter(gradient, ctx.group)), None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ANN401  (as above)
        ctx.group = group
        return wait(*start_reduce_scatter(partial, group))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        return wait(*start_all_gather(gradient, ctx.group)), None


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: ProcessGroup, used_differently: bool) -> Tensor:  # noqa: ANN401  (as above)
        ctx.mark_dirty(partial)
        ctx.group = group if used_differently else None
        return _all_reduce(partial, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401  (as above)
        return _all_reduce(gradient.contiguous().clone(), ctx.group) if ctx.group else gradient, None, None


def _all_reduce(partial: Tensor, group: ProcessGroup) -> Tensor:
    wait_for(distributed.all_reduce(partial, group=group, async_op=True))
    return partial


def start_all_gather(local: Tensor, group: ProcessGroup) -> tuple[Tensor, Work]:
    """Start to gather each rank's part, [S/tp, …] → [S, …], valid once the work is done."""
    full = local.new_empty(local.shape[0] * group.size(), *local.shape[1:])
    return full, distributed.all_gather_into_tensor(full, local.contiguous(), group=group, async_op=True)


def start_reduce_scatter(partial: Tensor, group: ProcessGroup) -> tuple[Tensor, Work]:
    """Start to sum over the ranks, [S, …] → this rank's part [S/tp, …], valid once the work is done."""
    local = partial.new_empty(partial.shape[0] // group.size(), *partial.shape[1:])
    return local, distributed.reduce_scatter_tensor(local, partial.contiguous(), group=group, async_op=True)


def wait(result: Tensor, work: Work | None) -> Tensor:
    """The result of a collective, once its ``work`` is done."""
    wait_for(work)
    return result
