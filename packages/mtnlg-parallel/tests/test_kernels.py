"""Fused kernels against their eager twins in fp64, forward and gradients, under Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtnlg_model import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from mtnlg_parallel.kernels import dropout, gelu, norm, softmax

EPS = 1e-5
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half the distance from 1 to the next number."""

dtypes = st.sampled_from(list(ROUNDING))
matrices = st.tuples(st.integers(1, 9), st.sampled_from([1, 2]), st.integers(1, 80))  # S, B, H
# A slab's rows and a little; more columns than a tile, than a slab, than a row kernel takes at once; a decoder's width.
EDGES = [(67, 1, 24), (3, 1, 520), (2, 1, 2056), (1, 2, 4104), (1, 1, 20480)]


@settings(max_examples=8)
@given(matrices, dtypes, st.integers(0, 99))
def test_bias_gelu_is_its_eager_twin(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    agree(gelu.bias_gelu, functional.bias_gelu, [shape, shape[-1:]], dtype, seed)


@settings(max_examples=8)
@given(matrices, dtypes, st.integers(0, 99))
def test_layer_norm_is_its_eager_twin(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    agree(norm.layer_norm, functional.layer_norm, [shape, shape[-1:], shape[-1:]], dtype, seed, EPS)


@settings(max_examples=8)
@given(matrices, dtypes, st.integers(0, 99))
def test_bias_dropout_add_is_its_eager_twin(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    shapes = [shape, shape[-1:], shape]
    agree(dropout.bias_dropout_add, functional.bias_dropout_add, shapes, dtype, seed, 0.3, False)


@settings(max_examples=8)
@given(matrices, dtypes, st.integers(0, 99))
def test_bias_dropout_add_norm_is_its_eager_twin(shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    agree(add_norm(norm.bias_dropout_add_norm), add_norm(functional.bias_dropout_add_norm), added(shape), dtype, seed)


@settings(max_examples=8)
@given(st.integers(1, 20), st.integers(0, 20), st.sampled_from([1, 8, 12]), dtypes, st.integers(0, 99))
def test_causal_softmax_attention_is_its_eager_twin(
    queries: int, more: int, head: int, dtype: torch.dtype, seed: int
) -> None:
    shapes = [(2, 1, queries, head), *[(2, 1, queries + more, head)] * 2]
    agree(softmax.core_attention, whole_attention, shapes, dtype, seed, 0.4, 0.0)


@pytest.mark.parametrize("shape", EDGES)
def test_blocks_end_where_the_matrix_does(shape: tuple[int, int, int]) -> None:
    row = shape[-1:]
    agree(gelu.bias_gelu, functional.bias_gelu, [shape, row], torch.float32, 1)
    agree(norm.layer_norm, functional.layer_norm, [shape, row, row], torch.float32, 2, EPS)
    agree(add_norm(norm.bias_dropout_add_norm), add_norm(functional.bias_dropout_add_norm), added(shape), torch.float32)


def test_a_row_of_scores_longer_than_a_block_is_softmaxed() -> None:
    shapes = [(1, 1, 3, 8), *[(1, 1, 2064, 8)] * 2]
    agree(softmax.core_attention, whole_attention, shapes, torch.float32, 3, 0.4, 0.0)


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # NumPy's, which is what interprets
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_inf_travel_as_in_eager_code(bad: float) -> None:
    shape, row = (3, 1, 24), (24,)
    agree(gelu.bias_gelu, functional.bias_gelu, [shape, row], torch.float32, bad=bad)
    agree(norm.layer_norm, functional.layer_norm, [shape, row, row], torch.float32, 0, EPS, bad=bad)
    agree(add_norm(norm.bias_dropout_add_norm), add_norm(functional.bias_dropout_add_norm), added(shape), bad=bad)
    q_BNSD, k_BNSD, v_BNSD = (torch.randn(1, 1, 5, 8, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        q_BNSD[0, 0, 2, 3] = bad
    out_BNSD = softmax.core_attention(q_BNSD, k_BNSD, v_BNSD, 0.4, 0.0)
    scores_BNSS = (q_BNSD @ k_BNSD.mT * 0.4).masked_fill(~functional.causal_mask(5, 5), -torch.inf)
    torch.testing.assert_close(out_BNSD, scores_BNSS.softmax(-1) @ v_BNSD, equal_nan=True)
    torch.autograd.backward(out_BNSD.sum())
    assert all(not tensor.grad.isfinite().all() for tensor in (q_BNSD, k_BNSD, v_BNSD) if tensor.grad is not None)


def test_a_mean_far_from_zero_costs_the_variance_no_digits() -> None:
    x_H = torch.randn(4, 3000) + 1e4
    weight_H, shift_H = torch.ones(3000), torch.zeros(3000)
    exact_H = functional.layer_norm(x_H.double(), weight_H.double(), shift_H.double(), EPS)
    # The mean itself is rounded by 2^-24 of 1e4: 6e-4 of a standard deviation; sums of squares would leave no digit.
    assert (norm.layer_norm(x_H, weight_H, shift_H, EPS) - exact_H).abs().max() < 1e-3


def add_norm(operation: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """With the tensors first, and nothing dropped."""

    def called(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return operation(x, bias, residual, 0.3, False, weight, shift, EPS)

    return called


def added(shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """Shapes of what `add_norm` takes."""
    row = shape[-1:]
    return [shape, row, shape, row, row]


def whole_attention(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, scale: float, rate: float) -> Tensor:
    """`functional.attention` without a mask of the caller's."""
    return functional.attention(q_BNSD, k_BNTD, v_BNTD, None, scale, rate)


def agree(
    fused: Callable[..., Any],
    eager: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    *options: float,
    bad: float | None = None,
) -> None:
    """Outputs and all gradients lie within rounding of those of the eager operation in fp64.

    A result is rounded once or twice to its dtype; sums of n numbers in fp32 are off by the square root of n of its
    roundings of the largest. ``bad`` takes the place of one number of the first input.
    """
    generator = torch.Generator().manual_seed(seed)
    given = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    if bad is not None:
        given[0].view(-1)[3] = bad
    inputs = [tensor.clone().requires_grad_() for tensor in given]
    exact_inputs = [tensor.double().requires_grad_() for tensor in given]
    outputs, exact = tupled(fused(*inputs, *options)), tupled(eager(*exact_inputs, *options))
    upstream = [torch.randn(out.shape, generator=generator).to(dtype) for out in exact]
    torch.autograd.backward(outputs, upstream)
    torch.autograd.backward(exact, [tensor.double() for tensor in upstream])
    found = [*outputs, *(tensor.grad for tensor in inputs)]
    wanted = [*exact, *(tensor.grad for tensor in exact_inputs)]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == dtype
        finite = theirs.detach()[theirs.isfinite()].abs()
        largest = 1 + float(finite.max()) if finite.numel() else 1.0
        terms = max(1.0, sum(tensor.numel() for tensor in given) ** 0.5)
        bound = largest * (4 * ROUNDING[dtype] + 4 * terms * ROUNDING[torch.float32])
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=bound, equal_nan=True)


def tupled(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of an operation with one output or several."""
    return outputs if isinstance(outputs, tuple) else (outputs,)
