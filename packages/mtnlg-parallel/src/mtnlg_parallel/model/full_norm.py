"""Norms of q or k with weights for all heads, of which each tensor-parallel rank has some.

An RMS norm over all heads together sums the squares over the ranks:

    y = x / sqrt(sum over ranks of x² / width + eps) · w

Where R ranks share a head of keys (`shared_heads`), each counts 1 / R of its squares. Every rank has all of w and uses
its part; the gradients of w are summed over the ranks (`NORMS_OF_HEADS`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, distributed
from torch.autograd import Function

from mtnlg_model import decoder

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from mtnlg_model.config import ModelConfig

    from .slicing import Slicing


class HeadNorms(decoder.HeadNorms):
    """`decoder.HeadNorms` of this rank's part of ``heads`` heads."""

    def __init__(self, config: ModelConfig, heads: int, slicing: Slicing) -> None:
        super().__init__(config, width=heads * config.head_size, kind="rms")
        self.slicing, self.copies = slicing, max(1, slicing.degree // heads)

    def scale(self, width: int) -> Tensor:
        """Factors of this rank's ``width`` values, in fp32."""
        first = self.slicing.rank // self.copies * width
        return self.weight[first : first + width].float() + self.zero_centered  # type: ignore[no-any-return]  # Any


class FullNorm(HeadNorms):
    """`decoder.Norm` over ``heads`` heads together."""

    def forward(self, x_H: Tensor) -> Tensor:
        """[..., H of this rank] -> [..., H of this rank]."""
        exact_H = x_H.float()
        squares: Tensor = _Sum.apply(exact_H.square().sum(-1, keepdim=True) / self.copies, self.slicing.group)  # type: ignore[no-untyped-call]
        scale_H: Tensor = (squares / self.width[0] + self.eps).rsqrt() * self.scale(x_H.shape[-1])
        return (exact_H * scale_H).type_as(x_H)


class _Sum(Function):
    """All-reduce whose backward also all-reduces, since each rank uses the sum differently."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:  # noqa: ANN401  (autograd's context)
        ctx.group = group
        total = x.contiguous().clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        total = gradient.contiguous().clone()
        distributed.all_reduce(total, group=ctx.group)
        return total, None
