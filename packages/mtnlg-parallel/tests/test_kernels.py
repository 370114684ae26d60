"""Fused kernels against their eager twins in fp64, forward and gradients, under Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtnlg_model import functional
from mtnlg_parallel.planner.costs.layer import FUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from mtnlg_parallel.kernels import dropout, gelu, norm, rotary, swiglu, tiles

EPS = 1e-5
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half the distance from 1 to the next number."""

dtypes = st.sampled_from(list(ROUNDING))
matrices = st.tuples(st.integers(1, 9), st.sampled_from([1, 2]), st.integers(1, 80))  # S, B, H
# More rows than a slab; more columns than a tile, a slab and a row kernel's block.
EDGES = [(131, 1, 24), (3, 1, 520), (1, 1, 4104)]


TWINS: dict[str, tuple[Any, list[Any]]] = {
    "bias_gelu": (gelu, ["x", "row"]),
    "swiglu": (swiglu, ["x", "x"]),
    "layer_norm": (norm, ["x", "row", "row", EPS]),
    "rms_norm": (norm, ["x", "row", EPS]),
    "dropout_add": (dropout, ["x", "x", 0.0]),
    "bias_dropout_add": (dropout, ["x", "row", "x", 0.0]),
    "dropout_add_rms_norm": (norm, ["x", "x", 0.0, "row", EPS]),
    "bias_dropout_add_norm": (norm, ["x", "row", "x", 0.0, "row", "row", EPS]),
}
"""Operations by name, where they are fused, and what they are called with: matrices, rows and numbers."""


@settings(max_examples=8)
@given(matrices, dtypes, st.integers(0, 99))
@pytest.mark.parametrize("name", TWINS)
def test_kernel_matches_eager(name: str, shape: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    assert_twins_agree(name, shape, dtype, seed)


@settings(max_examples=12)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4])),  # S, B, G, heads
    st.sampled_from([(16, 16), (16, 4), (20, 10), (6, 6), (128, 32)]),  # size of a head, and how much is turned
    st.booleans(),
    dtypes,
    st.integers(0, 99),
)
def test_rotary_turns_q_and_k_where_they_lie_as_eager_code_does(
    shape: tuple[int, int, int, int], head: tuple[int, int], each_row: bool, dtype: torch.dtype, seed: int
) -> None:
    """In the rows of qkv, of which v has no gradient here; positions of all rows alike, or of each row."""
    s, b, g, n = shape
    fused, eager = (turned_q_and_k(rotate, n, head[1], each_row, seed) for rotate in (rotary.rotate, functional.rotate))
    assert_agree(fused, eager, [(s, b, g, n + 2, head[0])], dtype, seed)


def test_rotary_takes_gradients_in_any_order_and_returns_no_gaps() -> None:
    """Attention gives them by head, [B, N, S, D]."""
    x_SBGND = torch.randn(5, 2, 3, 2, 8, requires_grad=True)
    cos, sin = angles(x_SBGND, 8, False, 1)
    upstream_BNSD = torch.randn(2, 6, 5, 8)
    for layout in (upstream_BNSD, upstream_BNSD.transpose(1, 2).contiguous().transpose(1, 2)):
        upstream_SBGND = torch.unflatten(layout.permute(2, 0, 1, 3), 2, (3, 2))
        out, expected = (rotate(x_SBGND, cos, sin) for rotate in (rotary.rotate, functional.rotate))
        assert out.is_contiguous()
        (ours,), (theirs,) = (torch.autograd.grad(each, x_SBGND, upstream_SBGND) for each in (out, expected))
        torch.testing.assert_close(ours, theirs)


def test_swiglu_and_rotary_bytes_match_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[list[Tensor]] = []

    def launch(_kernel: object, _grid: object, *arguments: object, **_: object) -> None:
        launched.append([argument for argument in arguments if isinstance(argument, Tensor)])

    for module in (swiglu, rotary):
        monkeypatch.setattr(module, "launch", launch)
    gate, x, qkv = (
        torch.randn(6, 2, *shape, dtype=torch.bfloat16).requires_grad_() for shape in [(48,), (48,), (1, 6, 8)]
    )
    q = qkv[..., :4, :]
    torch.autograd.backward(swiglu.swiglu(gate, x).sum())
    torch.autograd.backward(rotary.rotate(q, *angles(q, 8, False, 0)).sum())
    moved = [sum(tensor.nbytes for tensor in tensors) for tensors in launched]
    table = 2 * 6 * 8 * 2  # of cosines and sines, which all heads share
    assert moved == [*(each * x.numel() for each in FUSED.gate), *[FUSED.rotary * q.numel() + table] * 2]


def turned_q_and_k(
    rotate: Callable[..., Tensor], sharing: int, size: int, each_row: bool, seed: int
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """``rotate`` of the heads of q and of k in the rows of qkv."""

    def called(qkv_SBGND: Tensor) -> tuple[Tensor, Tensor]:
        q_SBGND, k_SBG1D, _ = torch.split(qkv_SBGND, [sharing, 1, 1], dim=3)
        turns = angles(qkv_SBGND, size, each_row, seed)
        return rotate(q_SBGND, *turns), rotate(k_SBG1D, *turns)

    return called


def angles(x_SBGND: Tensor, size: int, each_row: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine as `rotary.Rotation` has them, of random angles in 8 bits."""
    rows = x_SBGND.shape[1] if each_row else 1
    angle = torch.randn(len(x_SBGND), rows, 1, 1, size // 2, generator=torch.Generator().manual_seed(seed))
    cos, sin = angle.cos().bfloat16().to(x_SBGND.dtype), angle.sin().bfloat16().to(x_SBGND.dtype)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


@pytest.mark.parametrize("shape", EDGES)
@pytest.mark.parametrize("name", TWINS)
def test_partial_blocks_are_masked(name: str, shape: tuple[int, int, int]) -> None:
    assert_twins_agree(name, shape, seed=2)


def test_a_norms_gradient_adds_up_a_row_of_three_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(norm.GROUP, "PART", 1024)
    assert_twins_agree("rms_norm", (1, 1, 2056), seed=4)


@pytest.mark.parametrize("name", ["bias_gelu", "bias_dropout_add", "rms_norm"])
def test_row_sums_of_many_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiles.SLAB, "ROWS", 8)
    monkeypatch.setitem(norm.GROUP, "ROWS", 8)
    assert_twins_agree(name, (131, 1, 16), seed=1)


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # NumPy warns: it interprets
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", TWINS)
def test_nan_and_inf_propagate_as_in_eager_code(name: str, bad: float) -> None:
    assert_twins_agree(name, (3, 1, 24), bad=bad)


def test_a_mean_far_from_zero_does_not_cancel_the_variance() -> None:
    x_H = torch.randn(4, 3000) + 1e4
    weight_H, shift_H = torch.ones(3000), torch.zeros(3000)
    exact_H = functional.layer_norm(x_H.double(), weight_H.double(), shift_H.double(), EPS)
    # The mean itself is rounded by 2^-24 of 1e4: 6e-4 of a standard deviation; sums of squares would leave no digit.
    assert (norm.layer_norm(x_H, weight_H, shift_H, EPS) - exact_H).abs().max() < 1e-3


@pytest.mark.parametrize("name", TWINS)
def test_a_second_derivative_is_refused_not_left_out(name: str) -> None:
    module, arguments = TWINS[name]
    x = torch.randn(3, 16).requires_grad_()
    given = {"x": torch.randn(3, 16), "row": torch.randn(16), False: True}
    outputs = getattr(module, name)(x, *(given.get(each, each) for each in arguments[1:]))
    for out in as_tuple(outputs):
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True, retain_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            first.sum().backward()  # type: ignore[no-untyped-call]


def assert_twins_agree(
    name: str,
    shape: tuple[int, int, int],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    bad: float | None = None,
) -> None:
    """`assert_agree` for one of `TWINS`."""
    module, arguments = TWINS[name]

    def called(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:  # noqa: ANN401  (one output or several)
            remaining = iter(tensors)
            return operation(*(next(remaining) if isinstance(each, str) else each for each in arguments))

        return call

    shapes = [shape if each == "x" else shape[-1:] for each in arguments if isinstance(each, str)]
    assert_agree(called(getattr(module, name)), called(getattr(functional, name)), shapes, dtype, seed, bad)


def assert_agree(  # noqa: PLR0917  (two operations, and on what)
    fused: Callable[..., Any],
    eager: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    bad: float | None = None,
) -> None:
    """Compare outputs and all gradients with the eager operation's in fp64, within rounding.

    A result is rounded once or twice to its dtype; a sum of n numbers in fp32 errs by sqrt(n) roundings of the largest.
    ``bad`` replaces one number of the first input.
    """
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    if bad is not None:
        values[0].view(-1)[3] = bad
    inputs = [tensor.clone().requires_grad_() for tensor in values]
    exact_inputs = [tensor.double().requires_grad_() for tensor in values]
    outputs, exact = as_tuple(fused(*inputs)), as_tuple(eager(*exact_inputs))
    upstream = [torch.randn(out.shape, generator=generator).to(dtype) for out in exact]
    torch.autograd.backward(outputs, upstream)
    torch.autograd.backward(exact, [tensor.double() for tensor in upstream])
    actual = [*outputs, *(tensor.grad for tensor in inputs)]
    expected = [*exact, *(tensor.grad for tensor in exact_inputs)]
    for result, reference in zip(actual, expected, strict=True):
        assert result is not None
        assert reference is not None
        assert result.dtype == dtype
        finite = reference.detach()[reference.isfinite()].abs()
        largest = 1 + float(finite.max()) if finite.numel() else 1.0
        terms = max(1.0, sum(tensor.numel() for tensor in values) ** 0.5)
        bound = largest * (4 * ROUNDING[dtype] + 4 * terms * ROUNDING[torch.float32])
        torch.testing.assert_close(result.double(), reference, rtol=0, atol=bound, equal_nan=True)


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One output or several, as a tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)
