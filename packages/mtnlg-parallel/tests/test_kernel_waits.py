"""A norm's gradient is one launch whose programs wait for sums of programs before them: when, and for what.

The interpreter runs one program after the other. So here one starts too early, and shows that it waits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from triton.runtime import interpreter

from mtnlg_parallel.kernels import norm, tiles

ROWS, COLUMNS, GROUP = 8, 48, {"ROWS": 4, "COLUMNS": 16}
GROUPS, ACROSS = ROWS // GROUP["ROWS"], COLUMNS // GROUP["COLUMNS"]


class EarlyStart:
    """A launch of `_norm_backward`; before the first group's last program, the first of the next group is tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: list[int] = []
        self.zeros = 0
        self.started, self.add = tiles.launch, interpreter.interpreter_builder.create_atomic_rmw
        monkeypatch.setattr(norm, "launch", self.launch)
        self.read = interpreter.interpreter_builder.create_load
        monkeypatch.setattr(interpreter.interpreter_builder, "create_atomic_rmw", self.count)
        monkeypatch.setattr(interpreter.interpreter_builder, "create_load", self.poll)

    def launch(self, kernel: Any, grid: tuple[int], *arguments: Any, **constants: Any) -> None:  # noqa: ANN401  (Triton's)
        if kernel is not norm._norm_backward:
            self.started(kernel, grid, *arguments, **constants)
            return
        grad, self.means, self.counters = arguments[6], arguments[11], arguments[13]
        shapes = [grad.shape, self.means.shape, self.counters.numel()]
        assert shapes == [(ROWS, COLUMNS), (2, 2, ROWS), 2 * GROUPS + ACROSS]
        grad.fill_(torch.nan)
        self.means.fill_(torch.nan)
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]

        builder = vars(interpreter.interpreter_builder)

        def run(*programs: int) -> None:
            for program in programs:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setitem(builder, "set_grid_idx", lambda *_, x=program: builder.update(grid_idx=(x, 0, 0)))
                    kernel[1,](*arguments, **constants)

        run(*range(ACROSS - 1))
        before, counted = [tensor.clone() for tensor in tensors], len(self.counted)
        with pytest.raises(interpreter.InterpreterError, match=f"waits for counter {GROUPS}"):
            run(ACROSS)
        assert grad.isnan().all(), "nothing is written before"
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        del self.counted[counted:]
        run(*range(ACROSS - 1, grid[0]))

    def count(self, operation: Any, at: Any, value: Any, *rest: Any) -> Any:  # noqa: ANN401  (the interpreter's)
        """Note which counter an atomic addition counts."""
        counter = self.counter(at)
        if value.data.item():
            self.counted.append(counter)
            if GROUPS <= counter < 2 * GROUPS:  # says that a group's sums are there
                group = slice((counter - GROUPS) * GROUP["ROWS"], (counter - GROUPS + 1) * GROUP["ROWS"])
                assert not self.means[:, 1, group].isnan().any()
        return self.add(operation, at, value, *rest)

    def poll(self, at: Any, *rest: Any) -> Any:  # noqa: ANN401  (as above)
        """Read a counter, which raises if it is 0 again."""
        counter = self.counter(at)
        if 0 <= counter < self.counters.numel() and not self.counters[counter]:
            self.zeros += 1
            if self.zeros > 1:
                raise TimeoutError(f"waits for counter {counter}")
        return self.read(at, *rest)

    def counter(self, at: Any) -> int:  # noqa: ANN401  (as above)
        """Number of the counter at a pointer."""
        return (int(at.data.item()) - int(self.counters.data_ptr())) // int(self.counters.itemsize)


def test_program_waits_for_sums_of_earlier_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in GROUP.items():
        monkeypatch.setitem(norm.GROUP, name, size)
    counted = EarlyStart(monkeypatch).counted
    x_RH, upstream_RH = torch.randn(ROWS, COLUMNS, requires_grad=True), torch.randn(ROWS, COLUMNS)
    weight_H, shift_H = torch.randn(COLUMNS, requires_grad=True), torch.randn(COLUMNS, requires_grad=True)
    inputs = (x_RH, weight_H, shift_H)
    ours = torch.autograd.grad(norm.layer_norm(*inputs, 1e-5), inputs, upstream_RH)
    exact = torch.autograd.grad(torch.layer_norm(x_RH, (COLUMNS,), weight_H, shift_H, 1e-5), inputs, upstream_RH)
    for result, reference in zip(ours, exact, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-5)
    # Each group: its programs, then that its sums are there; beside them those that have stored sums for all rows.
    assert [counter for counter in counted if counter < 2 * GROUPS] == [0, 0, 0, 2, 1, 1, 1, 3]
    assert sorted(counter for counter in counted if counter >= 2 * GROUPS) == sorted([*range(4, 7)] * GROUPS)
