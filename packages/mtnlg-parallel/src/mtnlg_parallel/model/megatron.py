"""megatron-core's tensor-parallel layers in place of ours: the implementation that MT-NLG was trained with.

DeepSpeed's engine uses them where it can: sequence parallelism in megatron-core's layers needs a GPU, and products of
8-bit factors need Transformer Engine. They give the same losses as the layers of `tensor_parallel`, which can also add
weight gradients in fp32, and defer them. Each layer takes its group as an argument, so
``parallel_state.initialize_model_parallel``, which makes thousands of groups, is never called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

from .tensor_parallel import Column, Row, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.decoder import EmbeddingTable, Linear

    from .slicing import Slicing


class ColumnParallel(ColumnParallelLinear):  # type: ignore[misc] # megatron-core has no annotations
    """`tensor_parallel.Column`."""

    def __init__(self, linear: Linear, slicing: Slicing) -> None:
        super().__init__(**_of_linear(linear, slicing))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs / tp], without the bias."""
        y: Tensor = super().forward(x)[0]
        return y


class RowParallel(RowParallelLinear):  # type: ignore[misc] # as above
    """`tensor_parallel.Row`."""

    def __init__(self, linear: Linear, slicing: Slicing) -> None:
        super().__init__(**_of_linear(linear, slicing), input_is_parallel=True)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs / tp] → [..., outputs], summed over the ranks, without the bias."""
        y: Tensor = super().forward(x)[0]
        return y


class VocabParallel(VocabParallelEmbedding):  # type: ignore[misc] # as above
    """`tensor_parallel.Vocabulary`."""

    def __init__(self, table: EmbeddingTable | Linear, slicing: Slicing) -> None:
        super().__init__(*table.weight.shape, **_common(slicing))


LAYERS: dict[type, type] = {Column: ColumnParallel, Row: RowParallel, Vocabulary: VocabParallel}


def _common(slicing: Slicing) -> dict[str, Any]:
    """Arguments common to megatron-core's layers. Weights stay uninitialised, as all layouts load the same ones."""
    config = ModelParallelConfig(
        tensor_model_parallel_size=slicing.degree,
        use_cpu_initialization=True,  # allocates on torch's default device
        perform_initialization=False,
    )
    return {"config": config, "init_method": lambda _weight: None, "tp_group": slicing.group}


def _of_linear(linear: Linear, slicing: Slicing) -> dict[str, Any]:
    outputs, inputs = linear.weight.shape
    sizes = {"input_size": inputs, "output_size": outputs, "bias": linear.bias is not None, "skip_bias_add": True}
    return sizes | _common(slicing)
