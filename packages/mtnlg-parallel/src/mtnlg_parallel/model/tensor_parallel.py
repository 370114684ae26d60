"""Tensor parallelism: replaces the decoder's linear layers and token table by megatron-core's parallel layers.

    ColumnParallel   outputs are sliced: rows of W and of the bias               attention.qkv, mlp.gate, mlp.up
    RowParallel      inputs are sliced: columns of W; ranks sum the products     attention.out, mlp.down
    VocabParallel    rows of the token table are sliced; ranks sum the lookups   embedding.token, and the head

Rows of qkv are ordered by heads of keys and values, so a slice is a number of these with their heads of queries. Norms,
positions and row-parallel biases are replicated. Parallel layers keep the decoder's names and its `Linear` convention
(x Wᵀ, bias left to the caller), at tp = 1 too. megatron-core slices their parameters; the products are ours
(`products`), since its own cannot add a weight's gradient in fp32 without Apex or Transformer Engine, nor later.

Under sequence parallelism activations between these layers are sliced along the sequence: ColumnParallel gathers its
input; RowParallel and VocabParallel scatter their sum. Replicated parameters then see only part of the sequence, and
an engine sums their gradients over the ranks once a step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mtnlg_parallel.layout import SLICED_AXES

from . import products, sequence_parallel

if TYPE_CHECKING:
    from mtnlg_model.decoder import EmbeddingTable, Linear
    from mtnlg_parallel.layout import Recompute

    from .head import ParallelOps
    from .slicing import Slicing


class ColumnParallel(ColumnParallelLinear):  # type: ignore[misc] # megatron-core has no annotations
    """`Linear` with this rank's slice of the outputs."""

    def __init__(self, linear: Linear, slicing: Slicing) -> None:
        self.slicing = slicing
        super().__init__(**_arguments(linear, slicing))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs / tp] over the full sequence, without the bias."""
        return products.column(x, self.weight, self.slicing)


class RowParallel(RowParallelLinear):  # type: ignore[misc] # as above
    """`Linear` with this rank's slice of the inputs."""

    def __init__(self, linear: Linear, slicing: Slicing) -> None:
        self.slicing = slicing
        super().__init__(**_arguments(linear, slicing), input_is_parallel=True)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs / tp] → [..., outputs], summed over the ranks, without the bias."""
        return products.row(x, self.weight, self.slicing)


def _arguments(linear: Linear, slicing: Slicing) -> dict[str, Any]:
    """Of megatron-core's linear layers."""
    outputs, inputs = linear.weight.shape
    return {
        "input_size": inputs,
        "output_size": outputs,
        "config": slicing.config,
        "init_method": _leave_uninitialized,
        "bias": linear.bias is not None,
        "skip_bias_add": True,
        "tp_group": slicing.group,
    }


class VocabParallel(VocabParallelEmbedding):  # type: ignore[misc] # as above
    """`EmbeddingTable` with this rank's rows."""

    def __init__(self, table: EmbeddingTable, slicing: Slicing) -> None:
        self.slicing = slicing
        config, group = slicing.config, slicing.group
        super().__init__(*table.weight.shape, init_method=_leave_uninitialized, config=config, tp_group=group)

    def forward(self, tokens_SB: Tensor) -> Tensor:
        """[S, B] → [S, B, H], summed over the ranks; under sequence parallelism [S/tp, B, H]."""
        if not self.slicing.sequence_parallel:
            out: Tensor = super().forward(tokens_SB)
            return out
        row_SB = tokens_SB - self.vocab_start_index
        is_local_SB = (row_SB >= 0) & (row_SB < self.num_embeddings_per_partition)
        x_SBH = F.embedding(torch.where(is_local_SB, row_SB, 0), self.weight) * is_local_SB[..., None]
        return sequence_parallel.scatter(x_SBH, self.slicing.group)


PARALLEL_LAYERS: dict[str, type[ColumnParallel | RowParallel | VocabParallel]] = {
    "attention.qkv": ColumnParallel,
    "attention.out": RowParallel,
    "mlp.gate": ColumnParallel,
    "mlp.up": ColumnParallel,
    "mlp.down": RowParallel,
    "token": VocabParallel,
    "head": VocabParallel,
}


def parallelize_module(module: nn.Module, slicing: Slicing, device: torch.device) -> None:
    """Replace the submodules named in `PARALLEL_LAYERS`, then allocate uninitialised parameters on ``device``.

    ``module`` is one of the decoder's own modules, on the meta device.
    """
    for name, submodule in list(module.named_modules()):
        if name in PARALLEL_LAYERS:
            with torch.device("meta"):
                module.set_submodule(name, PARALLEL_LAYERS[name](submodule, slicing))
    module.to_empty(device=device)
    for name, parameter in module.named_parameters():
        # DeepSpeed and megatron-core read this, to count replicated gradients once in a norm.
        vars(parameter)["tensor_model_parallel"] = name in SLICED_AXES


def parallel_ops(slicing: Slicing, recompute: Recompute, ops: ParallelOps) -> ParallelOps:
    """``ops`` with attention over this rank's heads, recomputed in backward if ``recompute`` is selective."""
    attention = partial(ops.attention_of_rank, slicing.rank)
    if recompute == "selective":
        attention = partial(checkpoint_activations, attention)
    return replace(ops, attention=attention)


def checkpoint_activations(function: Any, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401  (any function)
    """Call ``function``, saving only ``inputs``; backward runs it again with the same random numbers."""
    function = partial(function, **options)
    return checkpoint(function, *inputs, use_reentrant=False) if torch.is_grad_enabled() else function(*inputs)


def _leave_uninitialized(_weight: Tensor) -> None:
    """Do nothing: mtnlg_model.initialization sets the same weights under every layout."""
