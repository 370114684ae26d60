"""Attention for more tensor-parallel ranks than key-value heads.

Then R = tp / kv_heads ranks share each key-value head. The rows of qkv are split evenly, as in all sliced tensors: a
rank has 1 / R of a shared head's rows (its heads of q, then k, then v), whichever these are. Activations are exchanged:

    local [S, B, F / R]  →  gathered [S, B, F]  →  own heads of q, and all of k and v, [S, B, F / R + 2 D (R - 1) / R]

and backward sums the gradients of k and v over the sharing ranks: an all-gather and a reduce-scatter of
F = (heads / kv_heads + 2) D features per token. So no weight, gradient or moment is replicated, and checkpoints, ZeRO
and norms need no special case (docs/decisions/0125).

S sequence, B micro-batch, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mtnlg_model import decoder
from mtnlg_parallel.waiting import wait_for

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from mtnlg_model.config import ModelConfig

    from .head import ParallelOps
    from .slicing import Slicing


class SharedHeads(decoder.Attention):
    """`decoder.Attention` on a rank that shares its key-value head with other ranks."""

    def __init__(self, config: ModelConfig, number: int, ops: ParallelOps, slicing: Slicing) -> None:
        super().__init__(config, number, ops)
        self.sharing = config.heads // slicing.degree
        self._group = slicing.kv_group

    def project(self, x_SBH: Tensor) -> Tensor:
        """x_SBH -> this rank's heads of q, and the k and v that it shares with other ranks."""
        qkv_SBF: Tensor = _Exchange.apply(super().project(x_SBH), self._group, self.sharing * self.head_size)  # type: ignore[no-untyped-call]
        return qkv_SBF


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, part_SBF: Tensor, group: ProcessGroup, width: int) -> Tensor:  # noqa: ANN401  (autograd's context)
        """Gather the features: ``width`` of q per rank, in rank order, then k and v; returns own q, and all k and v."""
        ctx.group, ctx.width = group, width
        gathered_RSBF = part_SBF.new_empty(group.size(), *part_SBF.shape)
        full = gathered_RSBF.flatten(0, 1)
        wait_for(distributed.all_gather_into_tensor(full, part_SBF.contiguous(), group=group, async_op=True))
        all_SBF = gathered_RSBF.movedim(0, 2).flatten(2)
        first = group.rank() * width
        return torch.cat((all_SBF[..., first : first + width], all_SBF[..., group.size() * width :]), dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_SBF: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401  (as above)
        group, width = ctx.group, ctx.width
        ranks, (s, b, features) = group.size(), dy_SBF.shape
        first, queries = group.rank() * width, ranks * width
        all_SBF = dy_SBF.new_zeros(s, b, queries + features - width)
        all_SBF[..., first : first + width] = dy_SBF[..., :width]
        all_SBF[..., queries:] = dy_SBF[..., width:]
        parts_RSBF = all_SBF.view(s, b, ranks, -1).movedim(2, 0).contiguous()
        dx_SBF = torch.empty_like(parts_RSBF[0])
        wait_for(distributed.reduce_scatter_tensor(dx_SBF, parts_RSBF.flatten(0, 1), group=group, async_op=True))
        return dx_SBF, None, None
