"""The head's chunked loss on one rank: equal to eager PyTorch's for any number of tokens, with few logits at once."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mtnlg_parallel.layout import CHUNK_MULTIPLE, MIN_CHUNK, head_chunk
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
    """The loss over all tokens at once."""
    return F.cross_entropy((x_SBH @ weight_VH.t()).transpose(0, 1).flatten(0, 1), targets_BS.flatten())


def chunked(x_SBH: Tensor, weight_VH: Tensor, targets_BS: Tensor) -> Tensor:
    """The loss by `head.mean_loss`."""
    return head.mean_loss(x_SBH, weight_VH, targets_BS, ALONE, head.EAGER)


def differentiate(loss: Callable[..., Tensor], x_SBH: Tensor, weight_VH: Tensor, targets_BS: Tensor) -> list[Tensor]:
    """A third of the loss, and the gradients of that."""
    third = loss(x_SBH, weight_VH, targets_BS) / 3
    return [third.detach(), *torch.autograd.grad(third, (x_SBH, weight_VH))]


def test_fp16_gradients_are_scaled_before_rounding() -> None:
    """A mean over 4,096 tokens has gradients of a probability's size / 4,096, of which fp16 has few digits or none."""
    numbers = torch.Generator().manual_seed(1)
    x_SBH = torch.randn(4096, 1, HIDDEN, generator=numbers).half().requires_grad_()
    weight_VH = (torch.randn(1024, HIDDEN, generator=numbers) / 10).half().requires_grad_()
    targets_BS = torch.randint(1024, (1, 4096), generator=numbers)
    x_exact, weight_exact = (tensor.detach().double().requires_grad_() for tensor in (x_SBH, weight_VH))
    ours = torch.autograd.grad(chunked(x_SBH, weight_VH, targets_BS) * 4096, (x_SBH, weight_VH))
    exact = torch.autograd.grad(eager(x_exact, weight_exact, targets_BS) * 4096, (x_exact, weight_exact))
    for result, expected in zip(ours, exact, strict=True):
        # Rounded three times: d, the product, and its scaling, by 2**-11 at most and a third of that on average.
        assert float((result.double() - expected).norm() / expected.norm()) < 2**-10


@given(st.integers(1, 1 << 17), st.sampled_from([64, 1024, 20480]), st.sampled_from([32, 6400, 51200]))
def test_a_chunk_holds_at_most_half_of_a_micro_batchs_tokens(tokens: int, hidden: int, width: int) -> None:
    rows = head_chunk(tokens, hidden, width)
    assert rows % CHUNK_MULTIPLE == 0
    assert rows <= max(tokens * hidden / width, MIN_CHUNK) + CHUNK_MULTIPLE
    assert -(-tokens // rows) >= 2 or tokens <= CHUNK_MULTIPLE


def test_one_buffer_holds_all_logits() -> None:
    buffers = []

    def recorded_statistics(logits_NV: Tensor, targets_N: Tensor, first: int) -> Tensor:
        buffers.append((logits_NV.data_ptr(), len(logits_NV)))
        return head.statistics(logits_NV, targets_N, first)

    head.mean_loss(*case(500), ALONE, replace(head.EAGER, statistics=recorded_statistics))
    assert [rows for _, rows in buffers] == [256, 244]
    assert buffers[0][0] == buffers[1][0]


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_nan_and_inf_propagate_as_in_eager_code(value: float) -> None:
    x_SBH, weight_VH, targets_BS = case(300)
    with torch.no_grad():
        x_SBH[200, 0, 3] = value
    expected, results = (differentiate(loss, x_SBH, weight_VH, targets_BS) for loss in (eager, chunked))
    torch.testing.assert_close(results, expected, equal_nan=True)


def test_second_backward_is_refused() -> None:
    x_SBH, weight_VH, targets_BS = case(5)
    loss = chunked(x_SBH, weight_VH, targets_BS)
    torch.autograd.grad(loss, x_SBH, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x_SBH)
