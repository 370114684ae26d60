"""Tensor parallelism: megatron-core's slices put into the plain decoder, by one table in one place.

    Column   rows of W and of the bias are cut: each rank makes its own outputs      attention.qkv, mlp.up
    Row      columns of W are cut: partial products are summed over the ranks        attention.out, mlp.down
    Rows     rows of the token table are cut: the rank that has a token gives it     embedding.token, and the head

Rows of qkv are ordered head by head, so that a cut keeps whole heads. Norms, positions and row-parallel biases are
whole on every rank. The sliced layers keep the decoder's names and its `Linear` convention (x Wᵀ, bias left to the
caller); a layer of one slice takes the same way. Nothing but this module knows megatron-core.

With sequence parallelism (`regions`) what lies between the slices is cut along the sequence: a Column gathers it, a Row
and the Rows scatter what they sum. The gradients of what is whole are then those of a part of the sequence, and the
pipeline sums them over the ranks once a step.
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

from mtnlg_parallel.layout import CUTS

from . import sequence_parallel as regions

if TYPE_CHECKING:
    from mtnlg_model.decoder import Linear, Table
    from mtnlg_model.functional import AttentionOp
    from mtnlg_parallel.layout import Recompute

    from .head import ParallelOps
    from .slicing import Slicing


class Column(ColumnParallelLinear):  # type: ignore[misc] # megatron-core has no annotations
    """A slice of a `Linear`'s outputs."""

    def __init__(self, whole: Linear, slicing: Slicing) -> None:
        outputs, inputs = whole.weight.shape
        self.slicing = slicing
        super().__init__(
            inputs,
            outputs,
            config=slicing.config,
            init_method=_untouched,
            skip_bias_add=True,
            disable_grad_reduce=slicing.by_regions,
            tp_group=slicing.group,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs / tp] of the whole sequence, without the bias."""
        if self.slicing.by_regions:
            x = regions.gather(x, self.slicing.group)
        out: Tensor = super().forward(x)[0]
        return out


class Row(RowParallelLinear):  # type: ignore[misc] # as above
    """A slice of a `Linear`'s inputs."""

    def __init__(self, whole: Linear, slicing: Slicing) -> None:
        outputs, inputs = whole.weight.shape
        self.slicing = slicing
        super().__init__(
            inputs,
            outputs,
            config=slicing.config,
            init_method=_untouched,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=True,
            tp_group=slicing.group,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs / tp] → [..., outputs], summed over the ranks, without the bias."""
        if self.slicing.by_regions:
            return regions.scatter(F.linear(x, self.weight), self.slicing.group)
        out: Tensor = super().forward(x)[0]
        return out


class Rows(VocabParallelEmbedding):  # type: ignore[misc] # as above
    """A slice of the token table's rows."""

    def __init__(self, whole: Table, slicing: Slicing) -> None:
        self.slicing = slicing
        super().__init__(*whole.weight.shape, init_method=_untouched, config=slicing.config, tp_group=slicing.group)

    def forward(self, numbers_SB: Tensor) -> Tensor:
        """[S, B] → [S, B, width], summed over the ranks; this rank's part of the sequence where that is cut."""
        if not self.slicing.sequence_parallel:
            out: Tensor = super().forward(numbers_SB)
            return out
        local = numbers_SB - self.vocab_start_index
        here = (local >= 0) & (local < self.num_embeddings_per_partition)
        found = F.embedding(torch.where(here, local, 0), self.weight) * here[..., None]
        return regions.scatter(found, self.slicing.group)


TABLE: dict[str, type[Column | Row | Rows]] = {
    "attention.qkv": Column,
    "attention.out": Row,
    "mlp.up": Column,
    "mlp.down": Row,
    "token": Rows,
}


def slice_parallel(module: nn.Module, slicing: Slicing, device: torch.device) -> None:
    """Replace every submodule that `TABLE` names, and give all parameters (uninitialised) storage on ``device``.

    ``module`` is a plain part of the decoder on the meta device.
    """
    for name, whole in list(module.named_modules()):
        if name in TABLE:
            with torch.device("meta"):
                module.set_submodule(name, TABLE[name](whole, slicing))
    module.to_empty(device=device)
    for name, parameter in module.named_parameters():
        # Both engines read it: the gradients of what is whole are counted once in a norm.
        vars(parameter)["tensor_model_parallel"] = name in CUTS


def operations(slicing: Slicing, recompute: Recompute, ops: ParallelOps) -> ParallelOps:
    """``ops`` where each rank has some of the heads."""
    attention = partial(_attention, slicing, ops.attention)
    if recompute == "selective":
        attention = partial(recomputed, attention)
    return replace(ops, attention=attention)


def _attention(  # noqa: PLR0917  (the signature of attention)
    slicing: Slicing,
    attention: AttentionOp,
    q_BNSD: Tensor,
    k_BNTD: Tensor,
    v_BNTD: Tensor,
    mask: Tensor | None,
    scale: float,
    rate: float,
) -> Tensor:
    """Attention over this rank's heads, with dropout of its own.

    Everything else random (hidden dropout, after the sum over ranks) must be the same on all ranks of a group, which
    therefore share the default generator's state. Here the state is derived from one number of it and the rank, and
    restored after. So recomputation, which restores the default state, draws the same masks again.
    """
    if not rate:
        return attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)
    seed = int(torch.randint(1 << 62, (), device="cpu")) ^ slicing.rank
    with torch.random.fork_rng(devices=[q_BNSD.device] if q_BNSD.is_cuda else []):
        torch.manual_seed(seed)
        return attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)


def recomputed(function: Any, *inputs: Any) -> Any:  # noqa: ANN401  (any function of tensors)
    """``function`` of ``inputs``, keeping only these and running it again backward, with the same random numbers."""
    return checkpoint(function, *inputs, use_reentrant=False) if torch.is_grad_enabled() else function(*inputs)


def _untouched(_weight: Tensor) -> None:
    """Initial weights come from mtnlg_model.initialization, in any layout the same."""
