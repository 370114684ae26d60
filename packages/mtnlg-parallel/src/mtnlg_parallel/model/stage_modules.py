"""The modules of a pipeline stage, sliced for this rank: embedding, decoder layer, final norm and head.

Each is built on the meta device, sliced, and only then given storage, so a process never holds more than its own
slices. Built for the meta device it takes no memory at all, and its parameters can still be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mtnlg_model import decoder
from mtnlg_parallel.layout import NORMS_OF_HEADS, SLICED_AXES

from . import products, tensor_parallel
from .head import EAGER, mean_loss
from .shared_heads import SharedHeads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.layout import Recompute, Stage

    from .head import ParallelOps
    from .slicing import Box, Slicing


class LocalParameter(NamedTuple):
    """A parameter on this rank: its global name and shape, the axis that is sliced, and this rank's box."""

    name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    axis: int | None
    box: Box
    is_primary: bool  # this rank writes the box; other tensor- and pipeline-parallel ranks may hold copies
    is_seen_in_part: bool  # each tensor-parallel rank has a part of its gradient


class Embedding(decoder.Embedding):
    """Token and position embedding, with this rank's rows of the token table."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(config)
        self.slicing = slicing
        tensor_parallel.parallelize_module(self, slicing, device)

    def forward(self, tokens_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor:
        """Integers [B, S] → x_SBH; under sequence parallelism this rank's part, [S/tp, B, H]."""
        return super().forward(tokens_BS, self.slicing.positions(tokens_BS) if positions_BS is None else positions_BS)


class GatedMLP(decoder.MLP):
    """`decoder.MLP` with gates, of which both first products share one x."""

    def __init__(self, config: ModelConfig, slicing: Slicing, ops: ParallelOps) -> None:
        super().__init__(config, ops)
        self.slicing = slicing

    def forward(self, x_SBH: Tensor) -> Tensor:
        """x_SBH -> x_SBH."""
        gate: Any = self.gate  # which this kind has
        y_SBF, gate_SBF = products.columns(x_SBH, [self.up.weight, gate.weight], self.slicing)
        out: Tensor = self.down(self.gated(gate_SBF, gate.bias, y_SBF))
        return out


class Layer(decoder.DecoderLayer):
    """A decoder layer with this rank's heads and slice of the MLP."""

    def __init__(  # noqa: PLR0917  (built positionally, by LayerSpec)
        self,
        config: ModelConfig,
        number: int,
        slicing: Slicing,
        recompute: Recompute,
        device: torch.device,
        ops: ParallelOps = EAGER,
    ) -> None:
        with torch.device("meta"):
            local_ops = tensor_parallel.parallel_ops(slicing, recompute, ops)
            super().__init__(config, number, local_ops)
            if slicing.kv_group:
                self.attention = SharedHeads(config, number, local_ops, slicing)
            if config.gated:
                self.mlp = GatedMLP(config, slicing, local_ops)
        tensor_parallel.parallelize_module(self, slicing, device)


class Norm(decoder.FinalNorm):
    """The final layer norm, whole on every rank."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device, ops: ParallelOps = EAGER) -> None:
        with torch.device("meta"):
            super().__init__(config, ops)
        tensor_parallel.parallelize_module(self, slicing, device)


class Head(nn.Module):
    """The head's table, with this rank's rows: its own, or the token table for a last stage that is not the first."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device) -> None:
        super().__init__()
        table = "token" if config.tied else "head"  # its name in the embedding, or in the decoder
        with torch.device("meta"):
            self.add_module(table, decoder.EmbeddingTable(config.vocabulary, config.hidden))
        self.slicing, self._table = slicing, f"{table}.weight"
        tensor_parallel.parallelize_module(self, slicing, device)

    @property
    def weight(self) -> nn.Parameter:
        """Rows of this rank."""
        return self.get_parameter(self._table)

    def forward(self, x_SBH: Tensor) -> tuple[Tensor, Tensor]:
        """The loss's inputs: hidden states x_SBH, and this rank's rows."""
        return x_SBH, self.weight


def head_inputs(tied: Embedding | Head, x_SBH: Tensor) -> tuple[Tensor, Tensor]:
    """The loss's inputs: hidden states x_SBH, and this rank's rows of the tied token table."""
    return x_SBH, tied.weight if isinstance(tied, Head) else tied.token.weight


class StageModules(nn.Module):
    """All modules of one stage, in order. If it is both first and last, the head is the embedding's token table."""

    def __init__(  # noqa: PLR0917  (a stage of what, on which slices, how)
        self,
        stage: Stage,
        config: ModelConfig,
        slicing: Slicing,
        recompute: Recompute,
        device: torch.device,
        ops: ParallelOps = EAGER,
    ) -> None:
        super().__init__()
        self.config, self.slicing, self._ops = config, slicing, ops
        self._recompute_all = recompute == "full"
        is_first, is_last = "embedding" in stage.parts, "head" in stage.parts
        self.embedding = Embedding(config, slicing, device) if is_first else None
        self.layers = nn.ModuleDict({str(n): Layer(config, n, slicing, recompute, device, ops) for n in stage.layers})
        self.final_norm = Norm(config, slicing, device, ops) if is_last else None
        self.head = Head(config, slicing, device) if is_last and not (is_first and config.tied) else None

    def forward(self, x: Tensor) -> Tensor:
        """x_SBH of the stage before, or tokens [B, S] → x_SBH, after the final norm where that is here."""
        x_SBH: Tensor = self.embedding(x) if self.embedding else x
        for layer in self.layers.values():
            x_SBH = tensor_parallel.checkpoint_activations(layer, x_SBH) if self._recompute_all else layer(x_SBH)
        return self.final_norm(x_SBH) if self.final_norm else x_SBH

    def loss(self, x_SBH: Tensor, targets_BS: Tensor) -> Tensor:
        """Mean cross entropy of the last stage's `forward`, in nats."""
        table = self.head.weight if self.head else self.get_parameter("embedding.token.weight")
        return mean_loss(x_SBH, table, targets_BS, self.slicing, self._ops, self.config.vocabulary_padding)

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of the stage, in model order."""
        tied = self.config.tied
        modules: list[tuple[str, nn.Module | None, bool]] = [
            ("embedding", self.embedding, False),
            ("embedding", self.head if tied else None, True),
        ]
        modules += [(f"layers.{number}", layer, False) for number, layer in self.layers.items()]
        modules += [("final_norm", self.final_norm, False), ("", None if tied else self.head, False)]
        return list_parameters(modules, self.config, self.slicing)


def list_parameters(
    modules: Iterable[tuple[str, nn.Module | None, bool]], config: ModelConfig, slicing: Slicing
) -> Iterator[LocalParameter]:
    """The parameters of modules, each with its prefix in the decoder's names and whether another stage has it too."""
    shapes = config.parameter_shapes()
    for prefix, module, is_copy in modules:
        for suffix, parameter in module.named_parameters() if module else ():
            name, axis = f"{prefix}.{suffix}".removeprefix("."), SLICED_AXES.get(suffix)
            is_primary = not is_copy and (axis is not None or slicing.rank == 0)
            in_part = axis is None and (slicing.sequence_parallel or suffix in NORMS_OF_HEADS)
            box = slicing.box(shapes[name], axis)
            yield LocalParameter(name, parameter, shapes[name], axis, box, is_primary, in_part)
