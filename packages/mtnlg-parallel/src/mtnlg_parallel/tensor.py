"""Tensor parallelism: megatron-core's slices put into the plain decoder, by one table in one place.

    Column   rows of W and of the bias are cut: each rank makes its own outputs      attention.qkv, mlp.up
    Row      columns of W are cut: partial products are summed over the ranks        attention.out, mlp.down
    Rows     rows of the token table are cut: the rank that has a token gives it     embedding.token, and the head

Rows of qkv are ordered head by head, so that a cut keeps whole heads. Norms, positions and row-parallel biases are
whole on every rank. The sliced layers keep the decoder's names and its `Linear` convention (x Wᵀ, bias left to the
caller); a layer of one slice takes the same way. Nothing but this module knows megatron-core.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from megatron.core.tensor_parallel.layers import linear_with_grad_accumulation_and_async_allreduce
from torch import Tensor, nn

from mtnlg_model import functional

from .layout import CUTS

if TYPE_CHECKING:
    from mtnlg_model.decoder import Linear, Table

    from .layout import Layout

Box = tuple[slice, ...]


def initialize(layout: Layout) -> None:
    """Tell megatron-core the groups; torch.distributed must be up, with ``layout.world`` ranks."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp, pipeline_model_parallel_size=layout.pp
    )


def rank() -> int:
    """Tensor-parallel rank of this process."""
    return int(parallel_state.get_tensor_model_parallel_rank())


def degree() -> int:
    """Number of tensor-parallel ranks."""
    return int(parallel_state.get_tensor_model_parallel_world_size())


def _config() -> ModelParallelConfig:
    return ModelParallelConfig(
        tensor_model_parallel_size=degree(),
        use_cpu_initialization=True,  # that is: allocate where torch's default device says
        perform_initialization=False,
    )


class Column(ColumnParallelLinear):  # type: ignore[misc] # megatron-core has no annotations
    """A slice of a `Linear`'s outputs."""

    def __init__(self, whole: Linear) -> None:
        outputs, inputs = whole.weight.shape
        super().__init__(inputs, outputs, config=_config(), init_method=_untouched, skip_bias_add=True)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs / tp], without the bias."""
        out: Tensor = super().forward(x)[0]
        return out


class Row(RowParallelLinear):  # type: ignore[misc] # as above
    """A slice of a `Linear`'s inputs."""

    def __init__(self, whole: Linear) -> None:
        outputs, inputs = whole.weight.shape
        super().__init__(
            inputs,
            outputs,
            config=_config(),
            init_method=_untouched,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=True,
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs / tp] → [..., outputs], summed over the ranks, without the bias."""
        out: Tensor = super().forward(x)[0]
        return out


class Rows(VocabParallelEmbedding):  # type: ignore[misc] # as above
    """A slice of the token table's rows: [...] → [..., width], summed over the ranks."""

    def __init__(self, whole: Table) -> None:
        super().__init__(*whole.weight.shape, config=_config(), init_method=_untouched)


TABLE: dict[str, type[Column | Row | Rows]] = {
    "attention.qkv": Column,
    "attention.out": Row,
    "mlp.up": Column,
    "mlp.down": Row,
    "token": Rows,
}


def slice_parallel(module: nn.Module, device: torch.device) -> None:
    """Replace every submodule that `TABLE` names, and give all parameters (uninitialised) storage on ``device``.

    ``module`` is a plain part of the decoder on the meta device.
    """
    for name, whole in list(module.named_modules()):
        if name in TABLE:
            with torch.device("meta"):
                module.set_submodule(name, TABLE[name](whole))
    module.to_empty(device=device)
    for name, parameter in module.named_parameters():
        # Both engines read it: the gradients of what is whole are counted once in a norm.
        vars(parameter)["tensor_model_parallel"] = name in CUTS


def box(shape: tuple[int, ...], axis: int | None) -> Box:
    """What this rank has of a global tensor of ``shape`` that is cut along ``axis``."""
    if axis is None:
        return tuple(slice(0, size) for size in shape)
    width = shape[axis] // degree()
    mine = slice(rank() * width, (rank() + 1) * width)
    return tuple(mine if n == axis else slice(0, size) for n, size in enumerate(shape))


def parallel_logits(x_SBH: Tensor, weight: Tensor) -> Tensor:
    """x_SBH times this rank's rows of the tied token table: logits [S, B, V / tp]."""
    logits: Tensor = linear_with_grad_accumulation_and_async_allreduce(
        x_SBH,
        weight,
        bias=None,
        gradient_accumulation_fusion=False,
        allreduce_dgrad=degree() > 1,
        sequence_parallel=False,
        tp_group=parallel_state.get_tensor_model_parallel_group(),
    )
    return logits


def cross_entropy(logits_SBV: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean cross entropy in nats, in fp32, over vocabulary-parallel logits [S, B, V / tp]. Overwrites fp32 logits."""
    losses_SB: Tensor = vocab_parallel_cross_entropy(logits_SBV, targets_BS.t().contiguous())
    return losses_SB.mean()


def _attention(  # noqa: PLR0917  (the signature of functional.attention)
    q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, mask: Tensor | None, scale: float, rate: float
) -> Tensor:
    """Attention over this rank's heads, with dropout of its own.

    Everything else random (hidden dropout, after the sum over ranks) must be the same on all ranks of a group, which
    therefore share the default generator's state. Here the state is derived from one number of it and the rank, and
    restored after. So recomputation, which restores the default state, draws the same masks again.
    """
    if not rate:
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)
    seed = int(torch.randint(1 << 62, (), device="cpu")) ^ rank()
    with torch.random.fork_rng(devices=[q_BNSD.device] if q_BNSD.is_cuda else []):
        torch.manual_seed(seed)
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate)


OPS = replace(functional.EAGER, attention=_attention)
"""The decoder's operations where each rank has some of the heads."""


def _untouched(_weight: Tensor) -> None:
    """Initial weights come from mtnlg_model.initialization, in any layout the same."""
