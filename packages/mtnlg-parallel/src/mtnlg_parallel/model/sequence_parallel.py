"""Sequence parallelism: between a layer's slices, each tensor-parallel rank holds its part of the sequence alone.

    gather    own part [S/tp, …] → the whole [S, …]             backward: own part of the sum of all ranks' gradients
    scatter   partial sums [S, …] → own part of their sum       backward: the whole gradient

Korthikanti et al. 2022, section 4.2.2, g and ḡ: together they move what one all-reduce does, and norms, dropout and
residuals take a tp-th of the memory. These work wherever torch.distributed does, and the head takes them everywhere; on
CUDA megatron-core's layers do the same, overlapped with their matrix products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed
from torch.autograd import Function

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def gather(part: Tensor, group: ProcessGroup) -> Tensor:
    """Own part [S/tp, …] → the whole sequence [S, …], in rank order."""
    whole: Tensor = _Gather.apply(part, group)  # type: ignore[no-untyped-call]
    return whole


def scatter(partial: Tensor, group: ProcessGroup) -> Tensor:
    """Partial sums [S, …] → own part [S/tp, …] of their sum over the ranks."""
    part: Tensor = _Scatter.apply(partial, group)  # type: ignore[no-untyped-call]
    return part


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ANN401  (autograd's context)
        ctx.group = group
        return _all_gather(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        return _reduce_scatter(gradient, ctx.group), None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ANN401  (as above)
        ctx.group = group
        return _reduce_scatter(partial, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        return _all_gather(gradient, ctx.group), None


def _all_gather(part: Tensor, group: ProcessGroup) -> Tensor:
    whole = part.new_empty(part.shape[0] * group.size(), *part.shape[1:])
    distributed.all_gather_into_tensor(whole, part.contiguous(), group=group)
    return whole


def _reduce_scatter(partial: Tensor, group: ProcessGroup) -> Tensor:
    part = partial.new_empty(partial.shape[0] // group.size(), *partial.shape[1:])
    distributed.reduce_scatter_tensor(part, partial.contiguous(), group=group)
    return part
