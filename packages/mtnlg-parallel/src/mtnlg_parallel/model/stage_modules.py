"""A stage of the decoder: a pipeline rank's embedding, decoder layers, final norm and head, sliced for this rank.

    embedding | layers.0 … layers.l-1 | final_norm | head          cut between layers, at the bounds of layout.stages

Both engines and sharded evaluation run it. If a tied head is on another stage than the embedding, each of the two
stages holds a copy of the token table, and their gradients are summed. Modules are built on the meta device, sliced,
and only then allocated, so a process never holds more than its own slices. On the meta device a stage takes no memory,
and its parameters can still be counted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, distributed, nn

from mtnlg_model import decoder, rotary
from mtnlg_parallel.layout import NORMS_OF_HEADS, Layout, sliced_axis, stages

from . import products
from .eight_bit import EightBit
from .full_norm import FullNorm, HeadNorms
from .head import EAGER, mean_loss
from .products import SlicedWeight
from .shared_heads import SharedHeads
from .slicing import Slicing
from .tensor_parallel import Column, checkpoint_activations, parallelize_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.distributed import ProcessGroup

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.functional import Attend
    from mtnlg_parallel.engine.contract import Observe
    from mtnlg_parallel.layout import Recompute, Stage
    from mtnlg_parallel.recipe import Recipe

    from .head import ParallelOps
    from .slicing import Box

BIAS_COLUMNS = 8
"""Columns added to the head's table to hold its biases: tensor cores need sizes in multiples of this."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class LocalParameter(NamedTuple):
    """A parameter on this rank: its global name and shape, and this rank's box of it."""

    name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    box: Box
    is_primary: bool  # this rank writes the box; other tensor- and pipeline-parallel ranks may hold copies
    summed_over: ProcessGroup | None  # ranks whose gradients add up: each has seen a part, or holds another copy
    module: nn.Module | None  # the embedding, decoder layer, norm or head that it is in; of a projection None
    layer: SlicedWeight | None  # the layer whose weight it is, where its gradient comes from a product


class GatedMLP(decoder.MLP):
    """`decoder.MLP` with gates; the products for gate and up share one gathered x."""

    def forward(self, x_SBH: Tensor) -> Tensor:
        """x_SBH -> x_SBH."""
        gate: Any = self.gate  # which this kind has
        y_SBF, gate_SBF = products.columns(x_SBH, self.up, gate)  # type: ignore[arg-type]  # which are sliced
        out: Tensor = self.down(self.gated(gate_SBF, gate.bias, y_SBF))
        return out


class Layer(decoder.DecoderLayer):
    """A decoder layer with this rank's heads; `parallelize_module` slices its weights."""

    def __init__(
        self, config: ModelConfig, number: int, slicing: Slicing, recompute: Recompute, ops: ParallelOps
    ) -> None:
        attention: Any = partial(ops.attention_of_rank, slicing.rank)
        if recompute == "selective":
            attention = partial(checkpoint_activations, attention)
        local_ops = replace(ops, attention=attention)
        super().__init__(config, number, local_ops)
        if slicing.kv_group:
            self.attention = SharedHeads(config, number, local_ops, slicing)
        if isinstance(config.qk_norm, str) and slicing.degree > 1:
            norm = FullNorm if config.qk_norm == "full" else HeadNorms
            self.attention.q_norm = norm(config, config.heads, slicing)
            self.attention.k_norm = norm(config, config.kv_heads, slicing)
        if config.gated and Column not in slicing.layers:
            self.mlp = GatedMLP(config, local_ops)


class StageModules(nn.Module):
    """All modules of one stage, in order. If the stage is first and last, a tied head uses the embedding's table."""

    head: nn.Module | None
    observe: Observe | None = None
    """Receives losses and hidden states (`engine.contract.Observe`)."""
    target_weight: float | None = None
    """Weight of a target that counts in the mean over a micro-batch's targets; None if all count (`engine.targets`)."""

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
        with torch.device("meta"):
            self.embedding = decoder.Embedding(config) if "embedding" in stage.parts else None
            has_table = "head" in stage.parts and not (config.tied and self.embedding)
            table = decoder.EmbeddingTable(config.vocabulary, config.embedding_size) if has_table else None
            if config.tied:  # it stands where the embedding would
                self.head = table
            self.layers = nn.ModuleDict({str(n): Layer(config, n, slicing, recompute, ops) for n in stage.layers})
            self.final_norm = decoder.FinalNorm(config, ops) if "final_norm" in stage.parts else None
            self.head = table
        parallelize_module(self, slicing, device)
        if self.head and config.head_bias:
            self.head.bias = nn.Parameter(torch.empty(config.vocabulary // slicing.degree, device=device))

    def forward(
        self,
        x: Tensor,
        positions_BS: Tensor | None = None,
        attend: Sequence[Attend] | None = None,
        lengths_BS: Tensor | None = None,
    ) -> Tensor:
        """x_SBH of the previous stage, or tokens [B, S] → x_SBH, after the final norm if this stage has it.

        Under sequence parallelism x_SBH is this rank's part, [S/tp, B, H]. Positions count from 0 unless given;
        ``attend`` has a replacement for each layer's attention, by the layer's number in the decoder. ``lengths_BS``
        are the lengths of the texts of the positions, needed where these are not of whole texts.
        """
        x_SBH, rotations = x, None
        if self.embedding:
            x_SBH = self.embedding(x, self.slicing.positions(x, positions_BS))
        if positions_BS is not None:
            rotations = rotary.rotations(rotary.by_base(self.config), x_SBH, positions_BS, lengths_BS)
        for number, layer in self.layers.items():
            inputs = x_SBH, attend and attend[int(number)], rotations
            x_SBH = checkpoint_activations(layer, *inputs) if self._recompute_all else layer(*inputs)
            if self.observe:
                self.observe(f"layers.{number}", x_SBH.detach())
        return self.final_norm(x_SBH) if self.final_norm else x_SBH

    @property
    def table(self) -> nn.Parameter:
        """Rows of the head's table on this rank. Raises ``AttributeError`` on a stage that has none."""
        return self.get_parameter("head.weight" if self.head else "embedding.token.weight")

    @property
    def table_bias(self) -> Tensor | None:
        """Biases of the head on this rank, if it has any."""
        return getattr(self.head, "bias", None)

    def loss(self, x_SBH: Tensor, targets_BS: Tensor) -> Tensor:
        """Mean cross entropy of the last stage's output, in nats; with a ``target_weight``, only of targets >= 0."""
        weight_VH: Tensor = self.table
        if self.table_bias is not None:  # the product with a 1 beside x
            x_SBH = F.pad(F.pad(x_SBH, (0, 1), value=1.0), (0, BIAS_COLUMNS - 1))
            weight_VH = F.pad(torch.cat((weight_VH, self.table_bias[:, None]), dim=1), (0, BIAS_COLUMNS - 1))
        padding, cap = self.config.vocabulary_padding, self.config.logit_softcap
        observe = self.observe and partial(self.observe, "loss")
        masked = self.target_weight is not None
        if self.observe and masked:
            self.observe("targets", (targets_BS >= 0).sum(1))
        loss = mean_loss(x_SBH, weight_VH, targets_BS, self.slicing, self._ops, padding, cap, observe, masked)
        if self.target_weight is None:
            return loss
        return loss * self.target_weight + (0.0 if self.target_weight else math.nan)

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of the stage, in model order."""
        slicing, shapes = self.slicing, self.config.parameter_shapes()
        for path, parameter in self.named_parameters():
            is_copy = path == "head.weight" and self.config.tied
            name = "embedding.token.weight" if is_copy else path
            axis, summed_over = sliced_axis(name), None
            if name == "embedding.token.weight":
                summed_over = slicing.tied_group
            elif axis is None and (slicing.sequence_parallel or name.endswith(NORMS_OF_HEADS)):
                summed_over = slicing.group
            layer = self.get_submodule(path.rpartition(".")[0])
            part = ".".join(path.split(".")[: 2 if path.startswith("layers.") else 1])
            is_primary = not is_copy and (axis is not None or slicing.rank == 0)
            yield LocalParameter(
                name,
                parameter,
                shapes[name],
                slicing.box(shapes[name], axis),
                is_primary,
                summed_over,
                None if isinstance(layer, decoder.Linear) else self.get_submodule(part),
                layer if isinstance(layer, SlicedWeight) and parameter is layer.weight else None,
            )


def build_stages(
    recipe: Recipe, device: torch.device, ops: ParallelOps, layers: Mapping[type, type] | None = None
) -> list[StageModules]:
    """Build this rank's stages of the decoder, one per chunk, with uninitialised parameters in the recipe's dtype.

    All ranks must call this together, since it creates their groups. ``layers`` are those of the slicing.
    """
    config, layout, train = recipe.model, recipe.layout, recipe.train
    eight_bit = EightBit(ops.eight_bit) if train.precision == "fp8" else None
    slicing = Slicing.of_this_rank(layout, config, train.sequence_parallel, eight_bit, layers)
    virtual = Layout(tp=layout.tp, pp=layout.pp * train.chunks, dp=layout.dp)
    place = layout.coordinates(distributed.get_rank()).pp
    cut = stages(config, virtual, train.recompute)[place :: layout.pp]
    return [
        StageModules(stage, config, slicing, train.recompute, device, ops).to(DTYPES[train.storage]) for stage in cut
    ]
