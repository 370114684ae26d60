"""Pipeline parallelism: the decoder as a list of parts of which DeepSpeed's engine runs one stage a rank.

    embedding | layers.0 … layers.l-1 | final_norm | head          cut between layers, as layout.stages says

The head is the token table again: where first and last stage differ, each has a copy, and their gradients are summed
(``TiedLayerSpec``). A rank builds the parts of its own stage and its own slices of them, and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mtnlg_model import decoder

from . import tensor
from .layout import CUTS, stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_model.config import ModelConfig

    from .layout import Layout
    from .tensor import Box

TIED = "embedding"


class Embedding(decoder.Embedding):
    """The decoder's embedding with this rank's rows of the token table."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(config)
        tensor.slice_parallel(self, device)


class Layer(decoder.DecoderLayer):
    """A decoder layer with this rank's slices."""

    def __init__(self, config: ModelConfig, number: int, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(config, number, tensor.OPS)
        tensor.slice_parallel(self, device)


class Norm(decoder.LayerNorm):
    """The final norm."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(config)
        tensor.slice_parallel(self, device)


class Head(nn.Module):
    """The token table alone, for a last stage that is not the first."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        super().__init__()
        with torch.device("meta"):
            self.token = decoder.Table(config.vocabulary, config.hidden)
        tensor.slice_parallel(self, device)


def _logits(tied: Embedding | Head, x_SBH: Tensor) -> Tensor:
    return tensor.parallel_logits(x_SBH, tied.token.weight)


class Part(NamedTuple):
    """A parameter of this rank: its global name and shape, and the box of it that is here."""

    name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    box: Box
    first: bool  # of all ranks that hold this box, data-parallel ones apart, this is the one that writes it


class Pipeline(PipelineModule):  # type: ignore[misc] # DeepSpeed has no annotations
    """The parts of this rank's stage."""

    def __init__(self, config: ModelConfig, layout: Layout, recompute: bool, device: torch.device) -> None:
        self.model_config, self.cut = config, stages(config, layout, recompute)
        tied = {"tied_weight_attr": "token.weight"}
        parts = [TiedLayerSpec(TIED, Embedding, config, device, **tied)]
        parts += [LayerSpec(Layer, config, number, device) for number in range(config.layers)]
        parts += [LayerSpec(Norm, config, device)]
        parts += [TiedLayerSpec(TIED, Head, config, device, forward_fn=_logits, **tied)]
        super().__init__(
            parts,
            topology=PipeModelDataParallelTopology(num_pp=layout.pp, num_dp=layout.dp, num_mp=layout.tp),
            loss_fn=tensor.cross_entropy,
            activation_checkpoint_interval=int(recompute),
            activation_checkpoint_func=_recomputed,
            checkpointable_layers=[Layer.__name__],
        )

    def _partition_layers(self, method: str = "") -> None:
        """Cut where we say: DeepSpeed itself knows only its own three methods."""
        del method
        self.parts = [0, *(1 + stage.layers.stop for stage in self.cut[:-1]), self._num_layers]
        stage = self.stage_id
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def held(self) -> Iterator[Part]:
        """Every parameter of this rank, in model order."""
        shapes = self.model_config.parameter_shapes()
        for key, module in self._named_parts():
            for name, parameter in module.named_parameters():
                whole, axis = f"{key}.{name}", CUTS.get(name)
                replica = vars(parameter)["ds_pipe_replicated"] or (axis is None and tensor.rank() > 0)
                box = tensor.box(shapes[whole], axis)
                yield Part(whole, parameter, shapes[whole], box, first=not replica)

    def _named_parts(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self.tied_modules.items()
        for number in range(self._local_start, self._local_stop):
            if 0 < number <= self.model_config.layers:
                yield f"layers.{number - 1}", getattr(self, str(number))
            elif number == self.model_config.layers + 1:
                yield "final_norm", getattr(self, str(number))


def _recomputed(function: Any, *inputs: Tensor) -> Any:  # noqa: ANN401  (DeepSpeed's signature)
    """``function`` of ``inputs``, keeping only these and running it again backward, with the same random numbers."""
    return checkpoint(function, *inputs, use_reentrant=False)
