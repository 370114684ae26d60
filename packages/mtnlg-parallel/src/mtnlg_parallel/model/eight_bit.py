"""Products of 8-bit factors, which Hopper's tensor cores multiply at twice the rate of bf16: precision "fp8".

    a bᵀ ≈ s_a s_b (a / s_a)₈ (b / s_b)₈ᵀ        s = max |x| / the largest 8-bit number

Weights and activations are rounded to E4M3 (3 bits of mantissa, at most 448), gradients of outputs to E5M2 (2 bits, at
most 57,344), as in Micikevicius et al. 2022. Each matrix has one scale, from its own largest element: that needs no
history of a run, so a resumed one rounds as an untouched one, and it is the only scaling whose products PyTorch leaves
in fp32, in which weight gradients are summed.

8-bit factors multiply exactly in fp32. So a CPU, which only converts and multiplies in fp32, gives what a GPU gives
within the rounding of fp32 sums, and shows how such a run learns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

FORWARD: Final = torch.float8_e4m3fn
"""Of weights and activations."""

BACKWARD: Final = torch.float8_e5m2
"""Of gradients of outputs."""


class Factor(NamedTuple):
    """A matrix in 8 bits; times the scale, an fp32 scalar on its device, it is the matrix that was rounded."""

    values: Tensor  # [R, K]
    scale: Tensor

    def t(self) -> Factor:
        """The transpose, in memory too: the tensor cores take rows of what is summed over."""
        return Factor(self.values.t().contiguous(), self.scale)


@torch.no_grad()
def rounded(x_RK: Tensor, dtype: torch.dtype) -> Factor:
    """Round a matrix to 8 bits; its largest elements become the largest of the format. No host waits for them."""
    largest = torch.finfo(dtype).max
    scale = x_RK.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny * largest) / largest
    return Factor((x_RK.float() / scale).clamp(-largest, largest).to(dtype), scale)


@torch.no_grad()
def product(a_MK: Factor, b_NK: Factor, dtype: torch.dtype) -> Tensor:
    """A bᵀ, [M, N] in ``dtype``, summed in fp32."""
    (a, a_scale), (b, b_scale) = a_MK, b_NK
    if a.is_cuda:
        return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=dtype)  # noqa: SLF001  (torch's only door to 8-bit products)
    return ((a.float() @ b.float().t()) * (a_scale * b_scale)).to(dtype)
