"""Tensor parallelism: replaces the decoder's linear layers and token table by this rank's slices of them.

    Column       outputs are sliced: rows of W and of the bias               attention.qkv, mlp.gate, mlp.up
    Row          inputs are sliced: columns of W; ranks sum the products     attention.out, mlp.down
    Vocabulary   rows of the token table are sliced; ranks sum the lookups   embedding.token, and the head

Rows of qkv are ordered by key-value head, so a slice has some key-value heads with their query heads. Norms, positions
and row-parallel biases are replicated. Sliced layers keep the decoder's names and its `Linear` convention (x Wᵀ, bias
left to the caller), also at tp = 1. `megatron` has the same three as megatron-core's layers.

Under sequence parallelism activations between these layers are sliced along the sequence: Column gathers its input; Row
and Vocabulary reduce-scatter their output. Replicated parameters then see only part of the sequence, and an engine sums
their gradients over the ranks once per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import products, sequence_parallel
from .products import SlicedWeight

if TYPE_CHECKING:
    from mtnlg_model.decoder import EmbeddingTable, Linear

    from .slicing import Slicing


def _part(parameter: Tensor, axis: int, slicing: Slicing) -> nn.Parameter:
    """An uninitialised slice of a parameter, on its device."""
    shape = list(parameter.shape)
    shape[axis] //= slicing.degree
    return nn.Parameter(parameter.new_empty(shape))


class Column(SlicedWeight):
    """`Linear` with this rank's slice of the outputs."""

    def __init__(self, linear: Linear, slicing: Slicing) -> None:
        super().__init__(_part(linear.weight, 0, slicing), slicing)
        self.bias = None if linear.bias is None else _part(linear.bias, 0, slicing)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs / tp] over the full sequence, without the bias."""
        return products.column(x, self)


class Row(SlicedWeight):
    """`Linear` with this rank's slice of the inputs."""

    def __init__(self, linear: Linear, slicing: Slicing) -> None:
        super().__init__(_part(linear.weight, 1, slicing), slicing)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs / tp] → [..., outputs], summed over the ranks, without the bias."""
        return products.row(x, self)


class Vocabulary(nn.Module):
    """`EmbeddingTable` with this rank's rows."""

    def __init__(self, table: EmbeddingTable | Linear, slicing: Slicing) -> None:
        super().__init__()
        self.weight, self.slicing = _part(table.weight, 0, slicing), slicing

    def forward(self, tokens_SB: Tensor) -> Tensor:
        """[S, B] → [S, B, H], summed over the ranks; under sequence parallelism [S/tp, B, H]."""
        slicing, rows = self.slicing, len(self.weight)
        if slicing.degree == 1:
            return F.embedding(tokens_SB, self.weight)
        row_SB = tokens_SB - slicing.rank * rows
        is_local_SB = (row_SB >= 0) & (row_SB < rows)
        x_SBH = F.embedding(torch.where(is_local_SB, row_SB, 0), self.weight) * is_local_SB[..., None]
        combine = sequence_parallel.scatter if slicing.sequence_parallel else sequence_parallel.sum_over_ranks
        return combine(x_SBH, slicing.group)


SLICED_LAYERS: dict[str, type[Column | Row | Vocabulary]] = {
    "qkv": Column,
    "out": Row,
    "gate": Column,
    "up": Column,
    "down": Row,
    "token": Vocabulary,
    "head": Vocabulary,
}
"""Sliced layers, by their name within their module."""


def parallelize_module(module: nn.Module, slicing: Slicing, device: torch.device) -> None:
    """Replace the submodules named in `SLICED_LAYERS`, then allocate uninitialised parameters on ``device``.

    ``module`` contains modules of the decoder, on the meta device.
    """
    for name, submodule in list(module.named_modules()):
        if layer := SLICED_LAYERS.get(name.rpartition(".")[2]):
            with torch.device("meta"):
                module.set_submodule(name, slicing.layers.get(layer, layer)(submodule, slicing))
    module.to_empty(device=device)


def checkpoint_activations(function: Any, *inputs: Any) -> Any:  # noqa: ANN401  (any function)
    """Call ``function``, saving only ``inputs``; backward runs it again with the same random state."""
    return checkpoint(function, *inputs, use_reentrant=False) if torch.is_grad_enabled() else function(*inputs)
