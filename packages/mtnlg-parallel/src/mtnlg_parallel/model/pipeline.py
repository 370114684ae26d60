"""Pipeline parallelism: the decoder as a list of parts of which DeepSpeed's engine runs one stage a rank.

    embedding | layers.0 … layers.l-1 | final_norm | head          cut between layers, as layout.stages says

The head is the token table again: where first and last stage differ, each has a copy, and their gradients are summed
(``TiedLayerSpec``). A rank builds the parts of its own stage and its own slices of them, and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

from mtnlg_parallel.layout import CUTS, stages

from . import tensor_parallel
from .head import mean_loss
from .slicing import Slicing
from .stage_modules import Embedding, Head, Layer, Norm, projected

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

    from mtnlg_parallel.recipe import Recipe

    from .head import ParallelOps
    from .slicing import Box

TIED = "embedding"


class Part(NamedTuple):
    """A parameter of this rank: its global name and shape, along which axis it is cut, and the box that is here."""

    name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    axis: int | None
    box: Box
    first: bool  # of all ranks that hold this box, data-parallel ones apart, this is the one that writes it


class Pipeline(PipelineModule):  # type: ignore[misc] # DeepSpeed has no annotations
    """The parts of this rank's stage."""

    def __init__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> None:
        config, layout, recompute = recipe.model, recipe.layout, recipe.train.recompute
        self.slicing = slicing = Slicing.here(recipe.train.sequence_parallel, device)
        self.model_config, self.cut = config, stages(config, layout, recompute)
        tied = {"tied_weight_attr": "token.weight"}
        parts = [TiedLayerSpec(TIED, Embedding, config, slicing, device, **tied)]
        parts += [LayerSpec(Layer, config, number, slicing, recompute, device, ops) for number in range(config.layers)]
        parts += [LayerSpec(Norm, config, slicing, device, ops)]
        parts += [TiedLayerSpec(TIED, Head, config, slicing, device, forward_fn=projected, **tied)]
        super().__init__(
            parts,
            topology=PipeModelDataParallelTopology(num_pp=layout.pp, num_dp=layout.dp, num_mp=layout.tp),
            loss_fn=lambda found, targets_BS: mean_loss(found[0], found[1], targets_BS, slicing, ops),
            activation_checkpoint_interval=int(recompute == "full"),
            activation_checkpoint_func=tensor_parallel.recomputed,
            checkpointable_layers=[Layer.__name__],
        )

    def _partition_layers(self, method: str = "") -> None:
        """Cut where we say: DeepSpeed itself knows only its own three methods."""
        del method
        self.parts = [0, *(1 + stage.layers.stop for stage in self.cut[:-1]), self._num_layers]
        stage = self.stage_id
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, ProcessGroup]]:
        """Whose gradients the engine sums over which ranks, once a step, before it averages over replicas.

        Beside the tied token table that is all that is whole on every rank, where each has seen a part of the sequence.
        """
        summed: list[tuple[nn.Parameter, ProcessGroup]] = super().get_tied_weights_and_groups()
        if self.slicing.sequence_parallel:
            summed += [(part.parameter, self.slicing.group) for part in self.held() if part.axis is None]
        return summed

    def held(self) -> Iterator[Part]:
        """Every parameter of this rank, in model order."""
        shapes = self.model_config.parameter_shapes()
        for key, module in self._named_parts():
            for name, parameter in module.named_parameters():
                whole, axis = f"{key}.{name}", CUTS.get(name)
                replica = vars(parameter)["ds_pipe_replicated"] or (axis is None and self.slicing.rank > 0)
                box = self.slicing.box(shapes[whole], axis)
                yield Part(whole, parameter, shapes[whole], axis, box, first=not replica)

    def _named_parts(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self.tied_modules.items()
        for number in range(self._local_start, self._local_stop):
            if 0 < number <= self.model_config.layers:
                yield f"layers.{number - 1}", getattr(self, str(number))
            elif number == self.model_config.layers + 1:
                yield "final_norm", getattr(self, str(number))
