"""Matrix products of 8-bit factors (precision "fp8"), which Hopper's tensor cores run at twice the rate of bf16.

    a bᵀ ≈ s_a s_b (a / s_a)₈ (b / s_b)₈ᵀ        s = max |x| / the largest 8-bit number

Weights and activations are rounded to E4M3 (3 bits of mantissa, at most 448), gradients of outputs to E5M2 (2 bits, at
most 57,344), as in Micikevicius et al. 2022. Each matrix has one scale, from its own largest element. That needs no
history, so a resumed run rounds as an uninterrupted one does, and it is the only scaling whose products PyTorch returns
in fp32, in which weight gradients are summed.

The tensor cores need the summed axis contiguous in both factors, so a matrix that enters two products is rounded to two
factors, one of them transposed. A weight is rounded once per step and kept, 2 bytes per parameter: forward,
recomputation and backward of each micro-batch would round the same numbers again (`EightBit`).

Products of 8-bit factors are exact in fp32. So a CPU, which converts and multiplies in fp32, gives a GPU's results
within the rounding of fp32 sums, and shows how such a run learns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD: Final = torch.float8_e4m3fn
"""Dtype of weights and activations."""

BACKWARD: Final = torch.float8_e5m2
"""Dtype of output gradients."""


class Factor(NamedTuple):
    """An 8-bit matrix and its scale, an fp32 scalar on its device; values x scale approximates the original matrix."""

    values: Tensor  # [R, K]
    scale: Tensor


@torch.no_grad()
def rounded(x_RK: Tensor, dtype: torch.dtype, transposed: bool) -> tuple[Factor, Factor]:
    """Round a matrix to 8 bits; its largest element becomes the largest of the format.

    Does not synchronize with the host. Returns the factor and that of the transpose, which is empty unless
    ``transposed``. x and its largest element are multiplied by reciprocals, so that all devices round alike: only some
    divide by a constant that way.
    """
    most, tiny = torch.finfo(dtype).max, torch.finfo(torch.float32).tiny
    scale = (torch.linalg.vector_norm(x_RK, torch.inf).float() * (1 / most)).clamp(min=tiny)
    values_RK = (x_RK.float() * scale.reciprocal()).clamp(-most, most).to(dtype)
    values_KR = transpose(values_RK) if transposed else values_RK.new_empty(0)
    return Factor(values_RK, scale), Factor(values_KR, scale)


def transpose(values_RK: Tensor) -> Tensor:
    """The transpose [K, R], contiguous in memory."""
    return values_RK.t().contiguous()


class Rounding(NamedTuple):
    """Functions that round and transpose; `kernels.rounding` has the same functions with fewer launches."""

    rounded: Callable[[Tensor, torch.dtype, bool], tuple[Factor, Factor]] = rounded
    transpose: Callable[[Tensor], Tensor] = transpose


class EightBit:
    """Rounding functions for a rank's products, and a cache of its weights' factors.

    An engine calls `forget_weights` after a step's passes: the weights change, and the memory is free until the next
    step.
    """

    def __init__(self, rounding: Rounding) -> None:
        self.rounded, self.transpose = rounding
        self._weights: dict[Tensor, tuple[Factor, Factor]] = {}

    def weight(self, weight_OI: Tensor) -> tuple[Factor, Factor]:
        """The weight's factor [O, I] and that of its transpose [I, O]; rounded once, then cached."""
        if weight_OI not in self._weights:
            self._weights[weight_OI] = self.rounded(weight_OI, FORWARD, True)
        return self._weights[weight_OI]

    def forget_weights(self) -> None:
        """Drop the cached factors, so that weights are rounded again at their next use."""
        self._weights.clear()


@torch.no_grad()
def product(a_MK: Factor, b_NK: Factor, dtype: torch.dtype) -> Tensor:
    """The product a bᵀ, [M, N] in ``dtype``, summed in fp32; sums of fewer bits are no faster on an H200."""
    (a, a_scale), (b, b_scale) = a_MK, b_NK
    if a.is_cuda:
        return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=dtype)  # noqa: SLF001  (torch's only door to 8-bit products)
    return ((a.float() @ b.float().t()) * (a_scale * b_scale)).to(dtype)
