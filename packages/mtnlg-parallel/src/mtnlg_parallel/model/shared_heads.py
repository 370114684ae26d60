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

from typing import TYPE_CHECKING

import torch

from mtnlg_model import decoder

from .sequence_parallel import gather

if TYPE_CHECKING:
    from torch import Tensor

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
        part_SBF, group, width = super().project(x_SBH), self._group, self.sharing * self.head_size
        parts_RSBF = gather(part_SBF, group).view(group.size(), *part_SBF.shape)
        q_SBF, kv_SBF = parts_RSBF.movedim(0, 2).flatten(2).tensor_split([group.size() * width], dim=-1)
        return torch.cat((q_SBF.narrow(-1, group.rank() * width, width), kv_SBF), dim=-1)
