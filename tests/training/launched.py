"""Runs of the train command in process groups of their own, for tests that disturb them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from training.reference_loop import FP32, reference_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mtnlg_parallel.recipe import Recipe

CLI = ["-m", "mtnlg_parallel.cli", "train"]
MINUTES = 4 * 60


class Run:
    """A command that trains `recipe` into ``out``, in a process group of its own."""

    def __init__(self, command: list[str], out: Path) -> None:
        self.out = out
        self.lines: list[str] = []
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0)

    @property
    def steps(self) -> int:
        """The last step recorded."""
        return max(steps_of(self.out), default=0)

    @property
    def failures(self) -> list[int]:
        """Statuses of the failures recorded."""
        return [event["status"] for event in read_events(self.out) if event["event"] == "failed"]

    def until_trained(self, failures: int) -> None:
        """Wait until so many failures are recorded, and five new steps after them."""
        self.until(lambda: len(self.failures) == failures)
        before = self.steps
        self.until(lambda: self.steps > before + 5)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, some minutes at most."""
        for _ in range(5000):
            if condition():
                return
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        pytest.fail(f"ended with {self.process.returncode} at step {self.steps}: {self.process.communicate()[1]}")

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        variables = {child: Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children}
        return next(int(child) for child, found in variables.items() if f"RANK={number}".encode() in found)

    def end(self, status: int = 0) -> str:
        """Wait for the run's end with a status, and return what it printed."""
        _, stderr = self.process.communicate(timeout=MINUTES)
        assert self.process.returncode == status, stderr
        return stderr


@contextmanager
def running(out: Path, *command: object) -> Iterator[Run]:
    run = Run([sys.executable, *map(str, command)], out)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.communicate()


def steps_of(out: Path) -> list[int]:
    """The steps recorded."""
    return [step["step"] for step in read_steps(out)]


def assert_undisturbed(out: Path, recipe: Recipe, data: Path) -> None:
    """Every step is there once, with loss and gradient norm of a run without failures."""
    reference, _ = reference_run(recipe, data)
    steps = list(read_steps(out))
    assert steps_of(out) == list(range(1, len(reference) + 1))
    for step, expected in zip(steps, reference, strict=True):
        assert [step[key] for key in ("loss", "grad_norm")] == pytest.approx(
            [expected[key] for key in ("loss", "grad_norm")], rel=FP32
        )
