"""Products of 8-bit factors, which Hopper's tensor cores multiply at twice the rate of bf16: precision "fp8".

    a bᵀ ≈ s_a s_b (a / s_a)₈ (b / s_b)₈ᵀ        s = max |x| / the largest 8-bit number

Weights and activations are rounded to E4M3 (3 bits of mantissa, at most 448), gradients of outputs to E5M2 (2 bits, at
most 57,344), as in Micikevicius et al. 2022. Each matrix has one scale, from its own largest element: that needs no
history of a run, so a resumed one rounds as an untouched one, and it is the only scaling whose products PyTorch leaves
in fp32, in which weight gradients are summed.

The tensor cores take rows of what is summed over, so a matrix of two products is rounded to two factors, one of them
transposed. A weight is rounded once per step, 2 bytes per parameter: forward, recomputation and backward of each
micro-batch would round the same numbers again (`EightBit`).

8-bit factors multiply exactly in fp32. So a CPU, which only converts and multiplies in fp32, gives what a GPU gives
within the rounding of fp32 sums, and shows how such a run learns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD: Final = torch.float8_e4m3fn
"""Of weights and activations."""

BACKWARD: Final = torch.float8_e5m2
"""Of gradients of outputs."""


class Factor(NamedTuple):
    """A matrix in 8 bits; times the scale, an fp32 scalar on its device, it is the matrix that was rounded."""

    values: Tensor  # [R, K]
    scale: Tensor


@torch.no_grad()
def rounded(x_RK: Tensor, dtype: torch.dtype, transposed: bool) -> tuple[Factor, Factor]:
    """Round a matrix to 8 bits; its largest elements become the largest of the format.

    Does not synchronize with the host. Returns the factor and that of the transpose, which is empty unless
    ``transposed``. Both x and its largest element are multiplied by reciprocals, so that each device rounds alike: some
    divide by a constant that way, some do not.
    """
    most, tiny = torch.finfo(dtype).max, torch.finfo(torch.float32).tiny
    scale = (torch.linalg.vector_norm(x_RK, torch.inf).float() * (1 / most)).clamp(min=tiny)
    values_RK = (x_RK.float() * scale.reciprocal()).clamp(-most, most).to(dtype)
    values_KR = transpose(values_RK) if transposed else values_RK.new_empty(0)
    return Factor(values_RK, scale), Factor(values_KR, scale)


def transpose(values_RK: Tensor) -> Tensor:
    """[K, R], in memory too."""
    return values_RK.t().contiguous()


class Rounding(NamedTuple):
    """How to round and transpose; `kernels.rounding` has the same in fewer launches."""

    rounded: Callable[[Tensor, torch.dtype, bool], tuple[Factor, Factor]] = rounded
    transpose: Callable[[Tensor], Tensor] = transpose


class EightBit:
    """The rounding of a rank's products, and the factors of its weights.

    An engine calls `forget_weights` after a step's passes: weights change, and the memory is free until the next.
    """

    def __init__(self, rounding: Rounding) -> None:
        self.rounded, self.transpose = rounding
        self._weights: dict[Tensor, tuple[Factor, Factor]] = {}

    def weight(self, weight_OI: Tensor) -> tuple[Factor, Factor]:
        """A weight in 8 bits, [O, I], and transposed, [I, O]."""
        if weight_OI not in self._weights:
            self._weights[weight_OI] = self.rounded(weight_OI, FORWARD, True)
        return self._weights[weight_OI]

    def forget_weights(self) -> None:
        """Round weights again when they are next used."""
        self._weights.clear()


@torch.no_grad()
def product(a_MK: Factor, b_NK: Factor, dtype: torch.dtype, fast: bool = False) -> Tensor:
    """A bᵀ, [M, N] in ``dtype``, summed in fp32; ``fast``: of fewer bits, in the registers of Hopper's tensor cores."""
    (a, a_scale), (b, b_scale) = a_MK, b_NK
    if a.is_cuda:
        scales = {"scale_a": a_scale, "scale_b": b_scale}
        return torch._scaled_mm(a, b.t(), **scales, out_dtype=dtype, use_fast_accum=fast)  # noqa: SLF001  (torch's only door to 8-bit products)
    return ((a.float() @ b.float().t()) * (a_scale * b_scale)).to(dtype)
