"""Products of 8-bit factors, which Hopper's tensor cores multiply at twice the rate of bf16: precision "fp8".

    a bᵀ ≈ s_a s_b (a / s_a)₈ (b / s_b)₈ᵀ        s = max |x| / the largest 8-bit number

Weights and activations are rounded to E4M3 (3 bits of mantissa, at most 448), gradients of outputs to E5M2 (2 bits, at
most 57,344), as in Micikevicius et al. 2022. Each matrix has one scale, from its own largest element: that needs no
history of a run, so a resumed one rounds as an untouched one, and it is the only scaling whose products PyTorch leaves
in fp32, in which weight gradients are summed.

A weight is rounded once a step, to both its factor and the transpose, 2 bytes a parameter until the update: forward,
recomputation and backward of each micro-batch would round the same numbers again (`weights_unchanged`).

8-bit factors multiply exactly in fp32. So a CPU, which only converts and multiplies in fp32, gives what a GPU gives
within the rounding of fp32 sums, and shows how such a run learns.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    largest, tiny = torch.finfo(dtype).max, torch.finfo(torch.float32).tiny
    scale = torch.linalg.vector_norm(x_RK, torch.inf).float().clamp(min=tiny * largest) / largest
    return Factor((x_RK.float() / scale).clamp(-largest, largest).to(dtype), scale)


_weights: dict[Tensor, dict[bool, Factor]] | None = None
"""Factors of weights, and whether they are transposed; None where weights may change."""


@contextmanager
def weights_unchanged() -> Iterator[None]:
    """Round each weight once within the block, which must not use a weight after it has been updated."""
    global _weights  # noqa: PLW0603  (autograd's threads run backward: no context of theirs would have it)
    _weights = {}
    try:
        yield
    finally:
        _weights = None


def weight_factor(weight_OI: Tensor, *, transposed: bool) -> Factor:
    """A weight in 8 bits, [O, I], or transposed [I, O]."""
    known = {} if _weights is None else _weights.setdefault(weight_OI, {})
    if transposed not in known:
        known[transposed] = (
            weight_factor(weight_OI, transposed=False).t() if transposed else rounded(weight_OI, FORWARD)
        )
    return known[transposed]


@torch.no_grad()
def product(a_MK: Factor, b_NK: Factor, dtype: torch.dtype) -> Tensor:
    """A bᵀ, [M, N] in ``dtype``, summed in fp32."""
    (a, a_scale), (b, b_scale) = a_MK, b_NK
    if a.is_cuda:
        return torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=dtype)  # noqa: SLF001  (torch's only door to 8-bit products)
    return ((a.float() @ b.float().t()) * (a_scale * b_scale)).to(dtype)
