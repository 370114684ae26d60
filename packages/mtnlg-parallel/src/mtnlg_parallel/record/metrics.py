"""metrics.jsonl, one object per step, and the throughput figures in it: tokens/s, FLOP/s, MFU and HFU.

A resumed run first truncates metrics.jsonl after its checkpoint's step, so each step appears once. A loss or gradient
norm that is not finite is null.

MFU (model FLOPs utilisation) counts the operations that the model needs, forward and backward; HFU (hardware FLOPs
utilisation) counts recomputed ones too (paper.md section 1). Both are shares of the device's dense 16-bit peak.
Attention within isolated documents counts by their mean length in `planner.run.SAMPLES` samples of the run.
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict

from mtnlg_model.files import atomic_open, file_lines, open_regular
from mtnlg_parallel.planner.cluster import cluster_with, load_cluster
from mtnlg_parallel.planner.run import train_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe


FILE = "metrics.jsonl"
TAIL_BYTES = 1 << 16  # more than a line has


class Step(TypedDict, total=False):
    """One line of metrics.jsonl. ``samples`` and ``tokens`` count from the start of the run.

    ``seconds``: wall time from the end of the previous step to the end of this one, including ``data_seconds`` waiting
    for samples, ``checkpoint_seconds`` delayed by a checkpoint and ``validation_seconds`` validating. FLOP/s are per
    rank, over wall time. ``goodput``: of the run so far. ``learned_tokens``: targets of the step that the loss counts,
    where a mask leaves some out. ``skipped``: why the guard skipped the step, as a code: no_targets,
    loss_not_finite, grad_norm_not_finite, loss_spike or grad_norm_spike, or other if a release before 0.3 skipped it;
    ``skip_reason``: the same in words.
    ``validation_error``: why there is no validation loss. Keys that do not apply are absent.

    Every ``watch.every`` steps also: ``sources``, by name, with the tokens read so far, the passes over the source, and
    the mean loss since the previous measurement; the norm of all weights, and that of this step's update relative to
    it; the largest hidden state and the layer that output it; bytes of GPU memory, the maximum over ranks; the rank
    that worked longest on the step, and by how many seconds longer than the median of the others; ``slow_rank`` if it
    is the same rank again.

    ``totals``: of all steps up to this one (`history.StepSeconds.totals`), so that a reader needs only the last lines.
    """

    step: int
    samples: int
    tokens: int
    loss: float | None
    lr: float
    grad_norm: float | None
    learned_tokens: int
    batch_size: int
    seconds: float
    tokens_per_second: float
    model_tflops: float
    hardware_tflops: float
    mfu: float
    hfu: float
    data_seconds: float
    checkpoint_seconds: float
    validation_seconds: float
    goodput: float
    validation_loss: float
    validation_error: str
    skipped: str
    skip_reason: str
    sources: dict[str, dict[str, float]]
    parameter_norm: float
    update_ratio: float
    activation_max: float
    activation_layer: str
    memory_allocated: int
    memory_reserved: int
    memory_peak: int
    slowest_rank: int
    slowest_by: float
    slow_rank: str
    totals: dict[str, Any]


def read_steps(out: Path) -> Iterator[Step]:
    """Yield the steps of a run's metrics.jsonl in order; skips torn and damaged lines."""
    path = out / FILE
    if not path.exists():
        return
    yield from _parsed(line for line in file_lines(path) if line.endswith(b"\n"))


def _parsed(lines: Iterable[bytes]) -> Iterator[Step]:
    """The steps in these lines; skips lines that a power cut left incomplete."""
    for line in lines:
        with suppress(ValueError):
            step: Step = json.loads(line)
            if isinstance(step, dict) and isinstance(step.get("step"), int):
                if "skipped" in step and "skip_reason" not in step:  # before 0.3 the reason was the code
                    step["skip_reason"] = step["skipped"]
                    step["skipped"] = "no_targets" if step["skipped"] == "none of its targets is learned" else "other"
                yield step


def last_steps(out: Path, tail_bytes: int = TAIL_BYTES) -> list[Step]:
    """The steps in the last bytes of a run's metrics.jsonl; if there are none, the last of all."""
    if not (out / FILE).exists():
        return []
    with open_regular(out / FILE) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - tail_bytes))
        *lines, _ = file.read().split(b"\n")
    return [*_parsed(lines)] or [*deque(read_steps(out), maxlen=1)]


def last_step(out: Path) -> Step | None:
    """The last step; None if there is none."""
    *_, last = (None, *last_steps(out))
    return last


def truncate_after(out: Path, step: int) -> tuple[list[Step], list[Step]]:
    """Remove the steps after ``step`` from metrics.jsonl; returns those kept and those removed."""
    kept: list[Step] = []
    removed: list[Step] = []
    for line in read_steps(out):
        (kept if line["step"] <= step else removed).append(line)
    with atomic_open(out / FILE) as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in kept)
    return kept, removed


def figures(step: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a step, except the step number; a source's under names such as ``sources/books/loss``."""
    for key, value in step.items():
        if isinstance(value, dict):
            yield from figures(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and key != "step":
            yield prefix + key, value


def training_seconds(step: Step) -> float:
    """Seconds of a step, without its checkpoint and validation."""
    return step["seconds"] - step.get("checkpoint_seconds", 0.0) - step.get("validation_seconds", 0.0)


def progress_line(step: Step) -> str:
    """A step's figures, as the note next to the progress bar."""
    loss = "not finite" if step["loss"] is None else f"{step['loss']:.4f}"
    words = [f"step {step['step']}  loss {loss}"]
    if "validation_loss" in step:
        words.append(f"validation {step['validation_loss']:.4f}")
    if "validation_error" in step:
        words.append(f"no validation: {step['validation_error']}")
    if "skipped" in step:
        words.append(f"skipped: {step['skip_reason']}")
    words.append(f"lr {step['lr']:.2e}  batch {step['batch_size']}  {step['tokens_per_second']:,.0f} tokens/s")
    words.append(f"{step['model_tflops']:.3g} TFLOP/s")
    if "mfu" in step:
        words.append(f"MFU {step['mfu']:.1%}  HFU {step['hfu']:.1%}")
    return "  ".join(words)


def peak_flops(device: str) -> float | None:
    """Dense 16-bit FLOP/s of a GPU by its CUDA name, such as NVIDIA A100-SXM4-80GB; None if unknown."""
    name = cluster_with(device)
    return load_cluster(name).gpu.peak_flops if name else None


def throughput(recipe: Recipe, batch: int, seconds: float, peak: float | None, document: float | None = None) -> Step:
    """The throughput keys of a step that took ``seconds``; includes MFU and HFU if the GPU's ``peak`` is known.

    Attention counts the ``document`` length of isolated documents (`planner.run.document_length`), else whole samples.
    """
    ranks = recipe.layout.world
    run = train_run(recipe, document)._replace(batch=batch)
    model, hardware = (flops / seconds / ranks for flops in (run.model_flops, run.hardware_flops))
    figures: Step = {
        "seconds": seconds,
        "tokens_per_second": batch * recipe.model.sequence / seconds,
        "model_tflops": model / 1e12,
        "hardware_tflops": hardware / 1e12,
    }
    if peak:
        figures |= {"mfu": model / peak, "hfu": hardware / peak}
    return figures
