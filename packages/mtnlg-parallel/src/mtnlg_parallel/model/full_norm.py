"""Norms of q or k with weights for all heads, of which each tensor-parallel rank has some.

An RMS norm over all heads together sums the squares over the ranks:

    y = x / sqrt(sum over ranks of x² / width + eps) · w

Where R ranks share a head of keys (`shared_heads`), each counts 1 / R of its squares. Every rank has all of w and uses
its part; the gradients of w are summed over the ranks (`NORMS_OF_HEADS`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_model import decoder

from . import sequence_parallel

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .slicing import Slicing


class HeadNorms(decoder.HeadNorms):
    """`decoder.HeadNorms` of this rank's part of ``heads`` heads."""

    def __init__(self, config: ModelConfig, heads: int, slicing: Slicing) -> None:
        super().__init__(config, width=heads * config.head_size, kind="rms")
        self.slicing, self.copies = slicing, max(1, slicing.degree // heads)

    def scale(self, width: int) -> Tensor:
        """The norm's weights for this rank's ``width`` elements, in fp32."""
        first = self.slicing.rank // self.copies * width
        return self.weight[first : first + width].float() + self.zero_centered  # type: ignore[no-any-return]  # Any


class FullNorm(HeadNorms):
    """`decoder.Norm` over ``heads`` heads together."""

    def forward(self, x_H: Tensor) -> Tensor:
        """[..., H of this rank] -> [..., H of this rank]."""
        exact_H = x_H.float()
        local_H = exact_H.square().sum(-1, keepdim=True) / self.copies
        squares = sequence_parallel.sum_over_ranks(local_H, self.slicing.group, used_differently=True)
        scale_H: Tensor = (squares / self.width[0] + self.eps).rsqrt() * self.scale(x_H.shape[-1])
        return (exact_H * scale_H).type_as(x_H)
