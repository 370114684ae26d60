"""The parts of a stage as this rank holds them: the decoder's own modules with slices in them.

A part is made on the meta device and then given storage, so no process holds more of the decoder than its own slices;
on the meta device itself it can be counted without any. The head is the token table again.
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
    """The decoder's embedding with this rank's rows of the token table."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device) -> None:
        with torch.device("meta"):
            super().__init__(config)
        self.slicing = slicing
        tensor_parallel.slice_parallel(self, slicing, device)

    def forward(self, tokens_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor:
        """Integers [B, S] → x_SBH, or this rank's part of the sequence."""
        return super().forward(tokens_BS, self.slicing.positions(tokens_BS) if positions_BS is None else positions_BS)


class Layer(decoder.DecoderLayer):
    """A decoder layer with this rank's slices."""

    def __init__(  # noqa: PLR0917  (what of which decoder, cut how, computed how, where)
        self,
        config: ModelConfig,
        number: int,
        slicing: Slicing,
        recompute: Recompute,
        device: torch.device,
        ops: ParallelOps = EAGER,
    ) -> None:
        with torch.device("meta"):
            super().__init__(config, number, tensor_parallel.operations(slicing, recompute, ops))
        tensor_parallel.slice_parallel(self, slicing, device)


class Norm(decoder.LayerNorm):
    """The final norm."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device, ops: ParallelOps = EAGER) -> None:
        with torch.device("meta"):
            super().__init__(config, ops)
        tensor_parallel.slice_parallel(self, slicing, device)


class Head(nn.Module):
    """The token table alone, for a last stage that is not the first."""

    def __init__(self, config: ModelConfig, slicing: Slicing, device: torch.device) -> None:
        super().__init__()
        with torch.device("meta"):
            self.token = decoder.Table(config.vocabulary, config.hidden)
        self.slicing = slicing
        tensor_parallel.slice_parallel(self, slicing, device)


def projected(tied: Embedding | Head, x_SBH: Tensor) -> tuple[Tensor, Tensor]:
    """What the loss projects, and this rank's rows of the token table, of either, by which it does."""
    return x_SBH, tied.token.weight
