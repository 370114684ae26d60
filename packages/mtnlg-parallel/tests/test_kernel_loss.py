"""The head's two loss kernels, interpreted, against their eager twins in fp64.

Logits are the same in both. Sums and exponentials of arguments up to 60 have a relative error of at most 2**-17 in fp32
(measured 2**-20); a gradient, at most ``scale``, has that error plus its rounding to the logits' dtype.
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
    """One or several blocks of columns, full and partial; about half of the targets are in other slices."""
    rows, width = draw(st.integers(1, 9)), draw(st.sampled_from([1, 31, 64, 513, 2048, 2049, 4100]))
    first, seed = draw(st.sampled_from([0, 1, width, 3 * width])), draw(st.integers(0, 1 << 32))
    numbers = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=numbers) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    targets = torch.randint(max(0, first - width // 2), first + 2 * width, (rows,), generator=numbers)
    return Chunk(logits.to(draw(st.sampled_from(DTYPES))), targets, first)


def logsumexp(chunk: Chunk) -> Tensor:
    """Logsumexp if the slice were the full vocabulary."""
    statistics_3N = head.statistics(chunk.logits.double(), chunk.targets, chunk.first)
    return statistics_3N[0] + statistics_3N[1].log()


def gradients(chunk: Chunk, scale: float) -> tuple[Tensor, Tensor]:
    """The kernel's gradient, and that of its twin in fp64."""
    fused, eager, logsumexp_N = chunk.logits.clone(), chunk.logits.double(), logsumexp(chunk)
    loss.gradient(fused, chunk.targets, chunk.first, logsumexp_N.float(), scale)
    head.gradient(eager, chunk.targets, chunk.first, logsumexp_N, scale)
    return fused, eager


@settings(max_examples=25)
@given(chunks())
def test_statistics_match_eager_fp64(chunk: Chunk) -> None:
    fused = loss.statistics(*chunk)
    expected = head.statistics(chunk.logits.double(), chunk.targets, chunk.first)
    assert fused.dtype == torch.float32
    assert torch.equal(fused[0].double(), expected[0])
    torch.testing.assert_close(fused[1].double(), expected[1], rtol=FP32, atol=0)
    assert torch.equal(fused[2].double(), expected[2])


@settings(max_examples=25)
@given(chunks(), st.sampled_from([1.0, 1 / 2048]))
def test_the_gradient_is_that_of_eager_code_in_fp64(chunk: Chunk, scale: float) -> None:
    fused, expected = gradients(chunk, scale)
    bounds = torch.finfo(fused.dtype)
    rounding = scale * FP32 + bounds.smallest_normal * bounds.eps
    torch.testing.assert_close(fused.double(), expected, rtol=bounds.eps, atol=rounding)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy warns of Inf - Inf
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_inf_propagate_as_in_eager_code(dtype: torch.dtype) -> None:
    logits = torch.randn(8, 2100)
    logits[0, 5] = logits[1, 2099] = torch.inf
    logits[2, 5] = logits[3, 2099] = torch.nan
    logits[4, 1] = logits[5, :2048] = -torch.inf
    logits[6] = -torch.inf
    chunk = Chunk(logits.to(dtype), torch.tensor([5, 0, 5, 0, 1, 3, 4, 2099]), 0)
    fused, expected = loss.statistics(*chunk), head.statistics(*chunk)
    assert fused[1].isnan().tolist() == [True] * 4 + [False] * 4
    assert fused[1, 6] == expected[1, 6] == 0
    torch.testing.assert_close(fused[1:], expected[1:], equal_nan=True, rtol=FP32, atol=0)
    finite = ~expected[1].isnan()
    assert torch.equal(fused[0, finite], expected[0, finite])
    gradient, reference = gradients(chunk, 1.0)
    torch.testing.assert_close(gradient.double(), reference, equal_nan=True, rtol=2**-7, atol=FP32)
    assert reference.isnan().all(1).tolist() == [True] * 4 + [False] * 2 + [True, False]
