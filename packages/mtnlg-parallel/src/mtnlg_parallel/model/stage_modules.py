"""The modules of a pipeline stage, sliced for this rank: embedding, decoder layer, final norm and head.

Each is built on the meta device, sliced, and only then given storage, so a process never holds more than its own
slices. Built for the meta device it takes no memory at all, and its parameters can still be counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mtnlg_model import decoder

from . import tensor_parallel
from .head import EAGER

if TYPE_CHECKING:
    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.layout import Recompute

    from .head import ParallelOps
    from .slicing import Slicing


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
            super().__init__(config, number, tensor_parallel.parallel_ops(slicing, recompute, ops))
        tensor_parallel.parallelize_module(self, slicing, device)


class Norm(decoder.LayerNorm):
    """The final layer norm, whole on every rank."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device, ops: ParallelOps = EAGER) -> None:
        with torch.device("meta"):
            super().__init__(config, ops)
        tensor_parallel.parallelize_module(self, slicing, device)


class Head(nn.Module):
    """The token table alone, with this rank's rows, for a last stage that is not the first."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device) -> None:
        super().__init__()
        with torch.device("meta"):
            self.token = decoder.EmbeddingTable(config.vocabulary, config.hidden)
        self.slicing = slicing
        tensor_parallel.parallelize_module(self, slicing, device)


def head_inputs(tied: Embedding | Head, x_SBH: Tensor) -> tuple[Tensor, Tensor]:
    """The loss's inputs: hidden states x_SBH, and this rank's rows of the tied token table."""
    return x_SBH, tied.token.weight
