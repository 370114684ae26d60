"""The two kernels of the head's loss, interpreted, against their eager twins in fp64.

Logits are exact in both. Sums of positive numbers and exponentials, of arguments to 60, are right in fp32 to a part in
2**17 (measured 2**-20); a gradient, at most ``scale``, to that and its own rounding to the logits' dtype.
"""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtnlg_parallel.model import head

pytest.importorskip("triton", reason="kernels need Triton: pip install mtnlg-parallel[kernels]")

from mtnlg_parallel.kernels import loss

FP32 = 2**-17
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Chunk(NamedTuple):
    logits: Tensor
    targets: Tensor
    first: int


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Of one block of columns or of several, whole and ragged; about half of the targets are in other slices."""
    rows, width = draw(st.integers(1, 9)), draw(st.sampled_from([1, 31, 64, 513, 2048, 2049, 4100]))
    first, seed = draw(st.sampled_from([0, 1, width, 3 * width])), draw(st.integers(0, 1 << 32))
    numbers = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=numbers) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    targets = torch.randint(max(0, first - width // 2), first + 2 * width, (rows,), generator=numbers)
    return Chunk(logits.to(draw(st.sampled_from(DTYPES))), targets, first)


def logsumexp(chunk: Chunk) -> Tensor:
    """As if the slice were the whole vocabulary."""
    figures_3N = head.statistics(chunk.logits.double(), chunk.targets, chunk.first)
    return figures_3N[0] + figures_3N[1].log()


def gradients(chunk: Chunk, scale: float) -> tuple[Tensor, Tensor]:
    """What the kernel puts in place of the logits, and its twin in place of theirs in fp64."""
    found, expected, whole_N = chunk.logits.clone(), chunk.logits.double(), logsumexp(chunk)
    loss.gradient(found, chunk.targets, chunk.first, whole_N.float(), scale)
    head.gradient(expected, chunk.targets, chunk.first, whole_N, scale)
    return found, expected


@settings(max_examples=25)
@given(chunks())
def test_statistics_are_those_of_eager_code_in_fp64(chunk: Chunk) -> None:
    found = loss.statistics(*chunk)
    expected = head.statistics(chunk.logits.double(), chunk.targets, chunk.first)
    assert found.dtype == torch.float32
    assert torch.equal(found[0].double(), expected[0])
    torch.testing.assert_close(found[1].double(), expected[1], rtol=FP32, atol=0)
    assert torch.equal(found[2].double(), expected[2])


@settings(max_examples=25)
@given(chunks(), st.sampled_from([1.0, 1 / 2048]))
def test_the_gradient_is_that_of_eager_code_in_fp64(chunk: Chunk, scale: float) -> None:
    found, expected = gradients(chunk, scale)
    bounds = torch.finfo(found.dtype)
    rounding = scale * FP32 + bounds.smallest_normal * bounds.eps
    torch.testing.assert_close(found.double(), expected, rtol=bounds.eps, atol=rounding)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of Inf - Inf
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_travels_as_in_eager_code(dtype: torch.dtype) -> None:
    logits = torch.randn(8, 2100)
    logits[0, 5] = logits[1, 2099] = torch.inf
    logits[2, 5] = logits[3, 2099] = torch.nan
    logits[4, 1] = logits[5, :2048] = -torch.inf
    logits[6] = -torch.inf
    chunk = Chunk(logits.to(dtype), torch.tensor([5, 0, 5, 0, 1, 3, 4, 2099]), 0)
    found, expected = loss.statistics(*chunk), head.statistics(*chunk)
    assert found[1].isnan().tolist() == [True] * 4 + [False] * 4
    assert found[1, 6] == expected[1, 6] == 0
    torch.testing.assert_close(found[1:], expected[1:], equal_nan=True, rtol=FP32, atol=0)
    finite = ~expected[1].isnan()
    assert torch.equal(found[0, finite], expected[0, finite])
    gradient, reference = gradients(chunk, 1.0)
    torch.testing.assert_close(gradient.double(), reference, equal_nan=True, rtol=2**-7, atol=FP32)
    assert reference.isnan().all(1).tolist() == [True] * 4 + [False] * 2 + [True, False]
