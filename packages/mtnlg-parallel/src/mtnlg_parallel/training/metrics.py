"""What a run says of itself: metrics.jsonl, one object a step; the same to boards that a person watches.

A run that goes on from a checkpoint first cuts metrics.jsonl back to it, so that every step stands there once, as if
nothing had happened. A loss or norm that is not a number stands as null.

How fast a step was, in floating-point operations: of the model, and of the hardware, which are not the same.

MFU counts what the model needs, forward and backward; HFU also what was computed again to save memory (paper.md section
1). Both are shares of a device's dense 16-bit peak, where that is known.
"""

from __future__ import annotations

import json
import os
from typing import IO, TYPE_CHECKING, Self, TypedDict

from mtnlg_model.console import Failure
from mtnlg_model.files import replacing
from mtnlg_parallel.planner.cluster import load_cluster, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

    from .trackers import Board


FILE = "metrics.jsonl"
LINE_BYTES = 1024
"""More than a line takes."""


class Step(TypedDict, total=False):
    """One line of metrics.jsonl; ``samples`` and ``tokens`` count the run so far, ``seconds`` this step alone.

    ``data_seconds`` are those spent waiting for samples, ``checkpoint_seconds`` those in which a checkpoint held the
    step up. ``skipped`` says why the step was not taken.
    """

    step: int
    samples: int
    tokens: int
    loss: float | None
    lr: float
    grad_norm: float | None
    batch_size: int
    seconds: float
    tokens_per_second: float
    model_tflops: float
    hardware_tflops: float
    mfu: float
    hfu: float
    data_seconds: float
    checkpoint_seconds: float
    validation_loss: float
    skipped: str


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


def last_steps(out: Path, count: int) -> list[Step]:
    """The last ``count`` whole lines, or as many as there are, without reading those before."""
    path = out / FILE
    if not path.exists():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - (count + 1) * LINE_BYTES)
        file.seek(begin)
        *lines, _torn = file.read().split(b"\n")
    return [json.loads(line) for line in (lines[1:] if begin else lines)][-count:]


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
    """Appends steps to metrics.jsonl and shows them on boards; used by one rank of the job."""

    def __init__(self, path: Path, file: IO[bytes], boards: Sequence[Board]) -> None:
        self._path, self._file, self._boards = path, file, boards

    @classmethod
    def open(cls, out: Path, boards: Sequence[Board]) -> Self:
        """Go on after the step to which `cut_back` has cut the file."""
        return cls(out / FILE, (out / FILE).open("ab"), boards)

    def add(self, step: Step) -> None:
        """Record a step; it is on its way to whoever follows the file when this returns."""
        try:
            self._file.write(json.dumps(step, allow_nan=False).encode() + b"\n")
            self._file.flush()
            if "checkpoint_seconds" in step:  # on disk before the checkpoint that holds it can appear
                os.fsync(self._file.fileno())
            figures = {key: value for key, value in step.items() if isinstance(value, int | float) and key != "step"}
            for board in self._boards:
                board.show(step["step"], figures)
        except OSError as error:
            raise Failure(f"{self._path}: {error.strerror}; make room, and the same command goes on") from error

    def close(self) -> None:
        """Finish all of them."""
        self._file.close()
        for board in self._boards:
            board.close()


def described(step: Step) -> str:
    """A step in the words of a progress line."""
    loss = "not finite" if step["loss"] is None else f"{step['loss']:.4f}"
    words = [f"step {step['step']}  loss {loss}"]
    if "validation_loss" in step:
        words.append(f"validation {step['validation_loss']:.4f}")
    if "skipped" in step:
        words.append(f"skipped: {step['skipped']}")
    words.append(f"lr {step['lr']:.2e}  batch {step['batch_size']}  {step['tokens_per_second']:,.0f} tokens/s")
    words.append(f"{step['model_tflops']:.3g} TFLOP/s")
    if "mfu" in step:
        words.append(f"MFU {step['mfu']:.1%}  HFU {step['hfu']:.1%}")
    return "  ".join(words)


def peak_of(device: str) -> float | None:
    """Operations a second of a GPU by CUDA's name for it, such as NVIDIA A100-SXM4-80GB; None where unknown."""
    gpus = [load_cluster(name).gpu for name in names()]
    return next((gpu.peak_flops for gpu in gpus if gpu.name.partition("-")[0] in device), None)


def hardware_flops(recipe: Recipe, batch: int) -> float:
    """Operations of a step over ``batch`` samples, those done again included: 4 s² h a layer for an attention core."""
    config, recompute = recipe.model, recipe.train.recompute
    if recompute == "full":
        return config.hardware_flops(batch)
    again = 4 * batch * config.layers * config.sequence**2 * config.hidden if recompute == "selective" else 0
    return config.model_flops(batch) + again


def speed(recipe: Recipe, batch: int, seconds: float, peak: float | None) -> Step:
    """Figures of a step of these seconds; operations are those of one rank."""
    ranks = recipe.layout.world
    model, hardware = (
        flops / seconds / ranks for flops in (recipe.model.model_flops(batch), hardware_flops(recipe, batch))
    )
    found: Step = {
        "seconds": seconds,
        "tokens_per_second": batch * recipe.model.sequence / seconds,
        "model_tflops": model / 1e12,
        "hardware_tflops": hardware / 1e12,
    }
    if peak:
        found |= {"mfu": model / peak, "hfu": hardware / peak}
    return found
