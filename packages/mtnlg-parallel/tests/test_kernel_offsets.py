"""Kernels reach what lies past 2^31 elements: of a matrix as large their last program alone is run.

Memory that nobody touches is never taken, so that only the last rows of these gigabytes exist.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mtnlg_model import functional
from mtnlg_parallel.model import head

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from triton.runtime import interpreter

from mtnlg_parallel.kernels import dropout, gelu, loss, norm, softmax

WIDTH = 20480
ROWS = 2**31 // WIDTH + 3
LAST = slice(ROWS - 2, ROWS)
EPS = 1e-5
BLOCK = slice(WIDTH - 256, WIDTH)
"""Columns that the last program of a slab or tile kernel has at least."""


@pytest.fixture(autouse=True)
def _last_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = interpreter.interpreter_builder

    def launch(kernel: Any, grid: tuple[int], *arguments: Any, **constants: Any) -> None:  # noqa: ANN401
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(builder, "set_grid_idx", lambda *_: vars(builder).update(grid_idx=(grid[0] - 1, 0, 0)))
            kernel[1,](*arguments, **constants)

    for module in (dropout, gelu, loss, norm, softmax):
        monkeypatch.setattr(module, "launch", launch)


def endless() -> Tensor:
    """A matrix of more than 2^31 elements whose last two rows are set, the last of all with them."""
    x_RH = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)
    x_RH[LAST] = torch.randn(2, WIDTH).bfloat16()
    return x_RH.requires_grad_()


def row() -> Tensor:
    """A bias, or a norm's weights."""
    return torch.randn(WIDTH).bfloat16().requires_grad_()


def close(found: Tensor, wanted: Tensor) -> None:
    """Of the last row and block, within rounding to bf16 of numbers up to 8."""
    torch.testing.assert_close(found[-1, BLOCK].float(), wanted[-1, BLOCK].float(), rtol=2**-7, atol=2**-6)


def end(tensor: Tensor) -> Tensor:
    """The last two rows by themselves."""
    return tensor.detach()[LAST].clone().requires_grad_()


def test_gelu() -> None:
    x_RH, bias_H = endless(), row()
    agree(gelu.bias_gelu(x_RH, bias_H), functional.bias_gelu(few := end(x_RH), bias_H), {x_RH: few})


def test_dropout() -> None:
    x_RH, residual_RH, bias_H = endless(), endless(), row()
    few_RH = end(x_RH)
    expected_RH = functional.bias_dropout_add(few_RH, bias_H, end(residual_RH), 0.0, True)
    agree(dropout.bias_dropout_add(x_RH, bias_H, residual_RH, 0.0, True), expected_RH, {x_RH: few_RH})


def test_norm() -> None:
    x_RH, weight_H, shift_H = endless(), row(), row()
    few_RH = end(x_RH)
    expected_RH = functional.layer_norm(few_RH, weight_H, shift_H, EPS)
    agree(norm.layer_norm(x_RH, weight_H, shift_H, EPS), expected_RH, {x_RH: few_RH})


def test_softmax() -> None:
    p_RT = endless().detach()
    expected_RT = (p_RT[LAST].float() * 0.5).softmax(-1)
    inside = vars(softmax)  # its products would fill the matrix
    inside["launch"](inside["_softmax_forward"], (ROWS,), p_RT, WIDTH, 1, 0.5, True, COLUMNS=2048, num_warps=8)
    close(p_RT, expected_RT)


def test_loss() -> None:
    logits_RV, targets_R, logsumexp_R = endless().detach(), torch.full((ROWS,), WIDTH - 1), torch.full((ROWS,), 9.0)
    few_RV = logits_RV[LAST].clone()
    wanted_3R = head.statistics(few_RV, targets_R[LAST], 0)
    torch.testing.assert_close(loss.statistics(logits_RV, targets_R, 0)[:, -1], wanted_3R[:, -1])
    head.gradient(few_RV, targets_R[LAST], 0, logsumexp_R[LAST], 1.0)
    loss.gradient(logits_RV, targets_R, 0, logsumexp_R, 1.0)
    close(logits_RV, few_RV)


def agree(out_RH: Tensor, expected_RH: Tensor, inputs: dict[Tensor, Tensor]) -> None:
    """Output and gradients of the endless ``inputs`` are at their end those of the few rows that stand for it."""
    close(out_RH, expected_RH)
    upstream_RH = endless().detach()
    found = torch.autograd.grad(out_RH, list(inputs), upstream_RH)
    wanted = torch.autograd.grad(expected_RH, list(inputs.values()), end(upstream_RH))
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours, theirs)
