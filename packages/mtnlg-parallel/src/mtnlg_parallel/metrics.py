"""What a run says of itself: metrics.jsonl, one object a step; the same to TensorBoard; summary.json at the end.

A run that goes on from a checkpoint first cuts metrics.jsonl back to it, so that every step stands there once, as if
nothing had happened.
"""

from __future__ import annotations

import json
import os
from typing import IO, TYPE_CHECKING, Self, TypedDict

from mtnlg_model.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

FILE = "metrics.jsonl"


class Step(TypedDict, total=False):
    """One line of metrics.jsonl; ``samples`` and ``tokens`` count the run so far, ``seconds`` this step alone."""

    step: int
    samples: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    batch_size: int
    seconds: float
    tokens_per_second: float
    validation_loss: float


def read_steps(out: Path) -> Iterator[Step]:
    """The whole lines of a run's metrics.jsonl, in order; a torn last line is left out."""
    path = out / FILE
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                step: Step = json.loads(line)
                yield step


def cut_back(out: Path, step: int) -> None:
    """Leave the steps up to ``step`` in metrics.jsonl."""
    kept = [line for line in read_steps(out) if line["step"] <= step]
    with replacing(out / FILE) as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in kept)


class Follower:
    """Gives the steps that another process adds to a run's metrics.jsonl beyond ``step``."""

    def __init__(self, out: Path, step: int) -> None:
        self._file = (out / FILE).open("rb")
        self._step, self._torn = step, b""

    def steps(self) -> Iterator[Step]:
        """What is new since the last call."""
        *lines, self._torn = (self._torn + self._file.read()).split(b"\n")
        for line in lines:
            step: Step = json.loads(line)
            if step["step"] > self._step:
                self._step = step["step"]
                yield step

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Recorder:
    """Appends steps to metrics.jsonl and to TensorBoard's events; used by one rank of the job."""

    def __init__(self, file: IO[bytes], board: SummaryWriter) -> None:
        self._file, self._board = file, board

    @classmethod
    def open(cls, out: Path, step: int) -> Self:
        """Go on after ``step``, to which `cut_back` has cut the file."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (slow to import, and one rank needs it)

        board = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)
        return cls((out / FILE).open("ab"), board)

    def add(self, step: Step) -> None:
        """Record a step; it is on its way to whoever follows the file when this returns."""
        self._file.write(json.dumps(step).encode() + b"\n")
        self._file.flush()
        for name, value in step.items():
            if name != "step":
                self._board.add_scalar(f"train/{name}", value, step["step"])

    def sync(self) -> None:
        """Have the steps so far on disk, as the checkpoint that follows them will be."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Finish both files."""
        self._file.close()
        self._board.close()


def described(step: Step) -> str:
    """A step in the words of a progress line."""
    validation = f"  validation {step['validation_loss']:.4f}" if "validation_loss" in step else ""
    figures = f"loss {step['loss']:.4f}{validation}  lr {step['lr']:.2e}  batch {step['batch_size']}"
    return f"{figures}  {step['tokens_per_second']:,.0f} tokens/s"
