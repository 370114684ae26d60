"""Kernels address elements past 2^31: only their last program runs, on a matrix of that size.

Untouched memory is never allocated, so only the last rows of these gigabytes exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from mtnlg_model import functional
from mtnlg_parallel.model import head
from mtnlg_parallel.model.eight_bit import FORWARD

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from triton.runtime import interpreter

from mtnlg_parallel.kernels import dropout, gelu, loss, norm, rotary, rounding, swiglu

WIDTH = 20480
ROWS = 2**31 // WIDTH + 3
LAST = slice(ROWS - 2, ROWS)
EPS = 1e-5
BLOCK = slice(WIDTH - 128, WIDTH)
"""Columns that the last program covers in every slab and tile kernel."""


@pytest.fixture(autouse=True)
def _run_only_the_last_program(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = interpreter.interpreter_builder

    def launch(kernel: Any, grid: tuple[int], *arguments: Any, **constants: Any) -> None:  # noqa: ANN401
        programs = [grid[0] - 1]
        if kernel is norm._norm_backward:  # its last program reads what those of its group have added up
            across = WIDTH // constants["COLUMNS"]
            (counters,) = (x for x in arguments if isinstance(x, Tensor) and x.dtype == torch.int32)
            counters[2 * (grid[0] // across) - 4] = 1  # as if the group before had done so
            programs = list(range(grid[0] - 2 * across, grid[0] - across)) + programs
        for program in programs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(builder, "set_grid_idx", lambda *_, x=program: vars(builder).update(grid_idx=(x, 0, 0)))
                kernel[1,](*arguments, **constants)

    monkeypatch.setitem(norm.GROUP, "COLUMNS", 4096)  # fewer programs to interpret
    for module in (dropout, gelu, loss, norm, rotary, rounding, swiglu):
        monkeypatch.setattr(module, "launch", launch)


def huge_matrix() -> Tensor:
    """A matrix of more than 2^31 elements, of which only the last two rows are set."""
    x_RH = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)
    x_RH[LAST] = torch.randn(2, WIDTH).bfloat16()
    return x_RH.requires_grad_()


def row() -> Tensor:
    """A bias or a norm's weight."""
    return torch.randn(WIDTH).bfloat16().requires_grad_()


def assert_end_close(actual: Tensor, expected: Tensor) -> None:
    """Compare the last row and block, within rounding to bf16 of numbers up to 8."""
    torch.testing.assert_close(actual[-1, BLOCK].float(), expected[-1, BLOCK].float(), rtol=2**-7, atol=2**-6)


def last_rows(tensor: Tensor) -> Tensor:
    """A copy of the last two rows."""
    return tensor.detach()[LAST].clone().requires_grad_()


def test_rounding_to_8_bits() -> None:
    x_RH = torch.empty(ROWS + 8, WIDTH, dtype=torch.bfloat16)  # so that the last column begins past 2^31
    x_RH[-2:] = torch.randint(-7, 8, (2, WIDTH)).bfloat16()  # numbers of 8 bits, and 7 becomes the largest of these
    x_RH[-1, -1] = 7
    (values_RH, _), (values_HR, _) = rounding.rounded(x_RH, FORWARD, True)
    assert torch.equal(values_RH[-1, -64:].float(), x_RH[-1, -64:].float() * 64)
    assert torch.equal(values_HR[-64:, -1].float(), x_RH[-1, -64:].float() * 64)
    assert torch.equal(rounding.transpose(values_RH)[-64:, -1].float(), x_RH[-1, -64:].float() * 64)


def test_gelu() -> None:
    x_RH, bias_H = huge_matrix(), row()
    assert_agree(gelu.bias_gelu(x_RH, bias_H), functional.bias_gelu(few := last_rows(x_RH), bias_H), {x_RH: few})


def test_swiglu() -> None:
    gate_RH, x_RH = huge_matrix(), huge_matrix()
    few = {gate_RH: last_rows(gate_RH), x_RH: last_rows(x_RH)}
    assert_agree(swiglu.swiglu(gate_RH, x_RH), functional.swiglu(*few.values()), few)


def test_rotary() -> None:
    x_RH = huge_matrix()
    angles_R1111D = torch.zeros(2, ROWS, 1, 1, 1, 128, dtype=torch.bfloat16)
    angles_R1111D[:, LAST] = torch.randn(2, 2, 1, 1, 1, 64).bfloat16().repeat(1, 1, 1, 1, 1, 2)
    angles_R1111D[1, LAST, ..., :64] *= -1

    def turned(rotate: Callable[..., Tensor], rows_RH: Tensor, angles: Tensor) -> Tensor:
        return rotate(rows_RH.view(-1, 1, 1, WIDTH // 128, 128), *angles).flatten(1)

    expected_RH = turned(functional.rotate, few_RH := last_rows(x_RH), angles_R1111D[:, LAST])
    assert_agree(turned(rotary.rotate, x_RH, angles_R1111D), expected_RH, {x_RH: few_RH})


def test_dropout() -> None:
    x_RH, residual_RH, bias_H = huge_matrix(), huge_matrix(), row()
    few_RH = last_rows(x_RH)
    expected_RH = functional.bias_dropout_add(few_RH, bias_H, last_rows(residual_RH), 0.0)
    assert_agree(dropout.bias_dropout_add(x_RH, bias_H, residual_RH, 0.0), expected_RH, {x_RH: few_RH})


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_norm() -> None:
    """Backward's last program walks down rows whose statistics no program has set: they may be any number."""
    x_RH, weight_H, shift_H = huge_matrix(), row(), row()
    few_RH = last_rows(x_RH)
    expected_RH = functional.layer_norm(few_RH, weight_H, shift_H, EPS)
    assert_agree(norm.layer_norm(x_RH, weight_H, shift_H, EPS), expected_RH, {x_RH: few_RH})


def test_loss() -> None:
    logits_RV, targets_R, logsumexp_R = huge_matrix().detach(), torch.full((ROWS,), WIDTH - 1), torch.full((ROWS,), 9.0)
    few_RV = logits_RV[LAST].clone()
    expected_3R = head.statistics(few_RV, targets_R[LAST], 0)
    torch.testing.assert_close(loss.statistics(logits_RV, targets_R, 0)[:, -1], expected_3R[:, -1])
    head.gradient(few_RV, targets_R[LAST], 0, logsumexp_R[LAST], 1.0)
    loss.gradient(logits_RV, targets_R, 0, logsumexp_R, 1.0)
    assert_end_close(logits_RV, few_RV)


def assert_agree(out_RH: Tensor, expected_RH: Tensor, inputs: dict[Tensor, Tensor]) -> None:
    """Compare output and gradients at the end of huge ``inputs`` with those of copies of their last rows."""
    assert_end_close(out_RH, expected_RH)
    upstream_RH = huge_matrix().detach()
    actual = torch.autograd.grad(out_RH, list(inputs), upstream_RH)
    expected = torch.autograd.grad(expected_RH, list(inputs.values()), last_rows(upstream_RH))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_end_close(ours, theirs)
