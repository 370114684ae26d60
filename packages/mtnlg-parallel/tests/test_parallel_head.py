"""The chunked loss of the head on one rank: as eager PyTorch's, over any number of tokens, in logits that are few."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mtnlg_parallel.layout import CHUNK, LEAST_CHUNK, head_chunk
from mtnlg_parallel.model import head

if TYPE_CHECKING:
    from mtnlg_parallel.model.slicing import Slicing

HIDDEN, WIDTH = 8, 24


ALONE = cast("Slicing", SimpleNamespace(rank=0, degree=1, sequence_parallel=False))
Case = tuple[Tensor, Tensor, Tensor]


def case(sequence: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> Case:
    """x_SBH, the weight, the targets."""
    numbers = torch.Generator().manual_seed(sequence)
    x_SBH = torch.randn(sequence, batch, HIDDEN, generator=numbers, dtype=dtype)
    weight_VH = torch.randn(WIDTH, HIDDEN, generator=numbers, dtype=dtype)
    targets_BS = torch.randint(WIDTH, (batch, sequence), generator=numbers)
    return x_SBH.requires_grad_(), weight_VH.requires_grad_(), targets_BS


def eager(x_SBH: Tensor, weight_VH: Tensor, targets_BS: Tensor) -> Tensor:
    """The same in one piece."""
    return F.cross_entropy((x_SBH @ weight_VH.t()).transpose(0, 1).flatten(0, 1), targets_BS.flatten())


def chunked(x_SBH: Tensor, weight_VH: Tensor, targets_BS: Tensor) -> Tensor:
    """In chunks."""
    return head.mean_loss(x_SBH, weight_VH, targets_BS, ALONE, head.EAGER)


def found(loss: Callable[..., Tensor], x_SBH: Tensor, weight_VH: Tensor, targets_BS: Tensor) -> list[Tensor]:
    """A third of the loss, and its gradients."""
    third = loss(x_SBH, weight_VH, targets_BS) / 3
    return [third.detach(), *torch.autograd.grad(third, (x_SBH, weight_VH))]


@settings(max_examples=20)
@given(st.sampled_from([1, 7, 128, 129, 300, 1100]), st.integers(1, 2))
def test_loss_and_gradients_are_those_of_eager_pytorch(sequence: int, batch: int) -> None:
    given_ = case(sequence, batch)
    expected = found(eager, *given_)
    torch.testing.assert_close(found(chunked, *given_), expected)
    with torch.no_grad():
        validated = chunked(*given_)
    torch.testing.assert_close(validated / 3, expected[0])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-6)])
def test_the_models_dtype_rounds_and_no_more(dtype: torch.dtype, bound: float) -> None:
    given_ = case(1100, 4, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in given_[:2]]
    for result, expected in zip(found(chunked, *given_), found(eager, exact[0], exact[1], given_[2]), strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=bound, atol=bound * float(expected.abs().max()))


@given(st.integers(1, 1 << 17), st.sampled_from([64, 1024, 20480]), st.sampled_from([32, 6400, 51200]))
def test_logits_of_a_micro_batch_never_exist_whole(tokens: int, hidden: int, width: int) -> None:
    rows = head_chunk(tokens, hidden, width)
    assert rows % CHUNK == 0
    assert rows <= max(tokens * hidden / width, LEAST_CHUNK) + CHUNK
    assert -(-tokens // rows) >= 2 or tokens <= CHUNK


def test_one_buffer_holds_all_logits() -> None:
    held = []

    def noted(logits_NV: Tensor, targets_N: Tensor, first: int) -> Tensor:
        held.append((logits_NV.data_ptr(), len(logits_NV)))
        return head.statistics(logits_NV, targets_N, first)

    head.mean_loss(*case(500), ALONE, replace(head.EAGER, statistics=noted))
    assert [rows for _, rows in held] == [256, 244]
    assert held[0][0] == held[1][0]


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_travels_as_in_eager_code(value: float) -> None:
    x_SBH, weight_VH, targets_BS = case(300)
    with torch.no_grad():
        x_SBH[200, 0, 3] = value
    expected, results = (found(loss, x_SBH, weight_VH, targets_BS) for loss in (eager, chunked))
    torch.testing.assert_close(results, expected, equal_nan=True)


def test_a_second_backward_pass_is_refused_and_does_not_scale_twice() -> None:
    x_SBH, weight_VH, targets_BS = case(5)
    loss = chunked(x_SBH, weight_VH, targets_BS)
    torch.autograd.grad(loss, x_SBH, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x_SBH)
