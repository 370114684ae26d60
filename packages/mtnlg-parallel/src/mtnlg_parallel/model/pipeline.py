"""Pipeline parallelism: the decoder as a list of layers, of which DeepSpeed's engine runs one stage a rank.

    embedding | layers.0 … layers.l-1 | final_norm | head          cut between layers, at the bounds of layout.stages

The head is the token table again. If first and last stage differ, each holds a copy, and their gradients are summed
(``TiedLayerSpec``). A rank builds only the modules of its own stage, and only its own slices of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

from mtnlg_parallel.layout import stages

from . import tensor_parallel
from .head import mean_loss
from .slicing import Slicing
from .stage_modules import Embedding, Head, Layer, LocalParameter, Norm, head_inputs, list_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

    from mtnlg_parallel.recipe import Recipe

    from .head import ParallelOps

EMBEDDING_KEY = "embedding"
"""DeepSpeed's key of the tied modules, and so the prefix of their parameters' names."""


class Pipeline(PipelineModule):  # type: ignore[misc] # DeepSpeed has no annotations
    """The modules of this rank's stage, as DeepSpeed's pipeline engine runs them."""

    def __init__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> None:
        config, layout, train, recompute = recipe.model, recipe.layout, recipe.train, recipe.train.recompute
        eight_bit = ops.eight_bit if train.precision == "fp8" else None
        self.slicing = slicing = Slicing.of_this_rank(layout, config, train.sequence_parallel, eight_bit)
        self.model_config, self.stages = config, stages(config, layout, recompute)
        tied = {"tied_weight_attr": "token.weight"}
        head = LayerSpec(Head, config, slicing, device)
        specs = [LayerSpec(Embedding, config, slicing, device)]
        if config.tied:
            specs = [TiedLayerSpec(EMBEDDING_KEY, Embedding, config, slicing, device, **tied)]
            head = TiedLayerSpec(EMBEDDING_KEY, Head, config, slicing, device, forward_fn=head_inputs, **tied)
        specs += [LayerSpec(Layer, config, number, slicing, recompute, device, ops) for number in range(config.layers)]
        specs += [LayerSpec(Norm, config, slicing, device, ops), head]
        super().__init__(
            specs,
            topology=PipeModelDataParallelTopology(num_pp=layout.pp, num_dp=layout.dp, num_mp=layout.tp),
            loss_fn=lambda inputs, targets_BS: mean_loss(
                inputs[0], inputs[1], targets_BS, slicing, ops, config.vocabulary_padding
            ),
            activation_checkpoint_interval=int(recompute == "full"),
            activation_checkpoint_func=tensor_parallel.checkpoint_activations,
            checkpointable_layers=[Layer.__name__],
        )

    def _partition_layers(self, method: str = "") -> None:
        """Cut at our own bounds; DeepSpeed's three partition methods cannot express them."""
        del method
        self.parts = [0, *(1 + stage.layers.stop for stage in self.stages[:-1]), self._num_layers]
        self._set_bounds(start=self.parts[self.stage_id], stop=self.parts[self.stage_id + 1])

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, ProcessGroup]]:
        """Parameters with copies, and the group over which the engine sums their gradients before it averages over dp.

        These include, beside the tied token table, parameters that are replicated over the tensor-parallel ranks, but
        of which each has seen a part: of the sequence, under sequence parallelism, or of the heads.
        """
        summed: list[tuple[nn.Parameter, ProcessGroup]] = super().get_tied_weights_and_groups()
        in_part = [local.parameter for local in self.local_parameters() if local.is_seen_in_part]
        return summed + [(parameter, self.slicing.group) for parameter in in_part]

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of this rank, in model order."""
        return list_parameters(self._local_modules(), self.model_config, self.slicing)

    def _local_modules(self) -> Iterator[tuple[str, nn.Module, bool]]:
        """Prefix, module, and whether another stage has it too; DeepSpeed numbers layers with the embedding as 0."""
        for key, module in self.tied_modules.items():
            yield key, module, all(vars(parameter)["ds_pipe_replicated"] for parameter in module.parameters())
        for number in range(self._local_start, self._local_stop):
            layers, tied = self.model_config.layers, self.model_config.tied
            if 0 < number <= layers:
                yield f"layers.{number - 1}", getattr(self, str(number)), False
            elif number == layers + 1:
                yield "final_norm", getattr(self, str(number)), False
            elif not tied:
                yield "" if number else "embedding", getattr(self, str(number)), False
