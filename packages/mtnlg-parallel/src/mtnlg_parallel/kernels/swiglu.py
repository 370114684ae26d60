"""SwiGLU, x silu(g), in one pass over gate and x, and both gradients in another.

    p = 1 / (1 + exp(-g))        y = x g p        dx = dy g p        dg = dy x p (1 + g (1 - p))

Gate and x are two matrices, the outputs of two products without biases. Only they are kept for backward.
"""

# ruff: noqa: ANN001, ANN202, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import Operator, cdiv, contiguous, differentiate, launch, read, sigmoid, write

BLOCK: Final = {"ELEMENTS": 1024, "num_warps": 4}
"""Eight elements per thread: one 16-byte load of bf16 per tensor."""


@Operator
def swiglu(gate_F: Tensor, x_F: Tensor) -> Tensor:
    """Fused `mtnlg_model.functional.swiglu`."""
    out_F, count = torch.empty_like(x_F, memory_format=torch.contiguous_format), x_F.numel()
    launch(_swiglu_forward, _blocks(count), *contiguous(gate_F, x_F), out_F, count, **BLOCK)
    return out_F


@Operator
def _swiglu_gradients(gate_F: Tensor, x_F: Tensor, out_grad_F: Tensor) -> tuple[Tensor, Tensor]:
    gate_grad_F, x_grad_F = (torch.empty_like(x_F, memory_format=torch.contiguous_format) for _ in range(2))
    given, count = contiguous(gate_F, x_F, out_grad_F), x_F.numel()
    launch(_swiglu_backward, _blocks(count), *given, gate_grad_F, x_grad_F, count, **BLOCK)
    return gate_grad_F, x_grad_F


differentiate(swiglu, _swiglu_gradients)


def _blocks(count: int) -> tuple[int]:
    return (cdiv(count, BLOCK["ELEMENTS"]),)


@triton.jit
def _place(count, ELEMENTS: tl.constexpr):
    """Offsets of a program's elements, and a mask of those that exist."""
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    return at, at < count


@triton.jit
def _swiglu_forward(gate_at, x_at, out_at, count, ELEMENTS: tl.constexpr):
    at, there = _place(count, ELEMENTS)
    gate = read(gate_at + at, there)
    x = read(x_at + at, there)
    out = x * (gate * sigmoid(gate))
    write(out_at + at, out, there)


@triton.jit
def _swiglu_backward(gate_at, x_at, out_grad_at, gate_grad_at, x_grad_at, count, ELEMENTS: tl.constexpr):
    at, there = _place(count, ELEMENTS)
    gate = read(gate_at + at, there)
    x = read(x_at + at, there)
    out_grad = read(out_grad_at + at, there)
    share = sigmoid(gate)
    gate_grad = out_grad * x * (share * (1.0 + gate * (1.0 - share)))
    x_grad = out_grad * (gate * share)
    write(gate_grad_at + at, gate_grad, there)
    write(x_grad_at + at, x_grad, there)
