"""What a run's ``--out`` folder holds already, and so what the command has to do: begin, go on, or nothing at all."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_model.console import UsageFailure
from mtnlg_model.files import write_text
from mtnlg_model.settings import dump
from mtnlg_parallel.layout import Layout, stages
from mtnlg_parallel.recipe import Recipe, disagreement, load_recipe

from . import metrics
from .trackers import TENSORBOARD, WANDB, WANDB_ID

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_model.checkpoint.manifest import Progress

RECIPE = "recipe.toml"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
LOGS = "logs"
PROFILE = "profile"


class Start(NamedTuple):
    """Where a run stands: steps done and to come, and whether it is complete."""

    step: int
    samples: int
    steps: int
    complete: bool


def prepare(out: Path, recipe: Recipe, stream: str, resume: bool) -> Start:
    """Make ``out`` ready for this recipe, and say where it stands; without ``resume`` an earlier run is removed.

    Raises ``UsageFailure`` where ``out`` is the run of another recipe, ``Failure`` where its token stream is another
    than that of this fingerprint.
    """
    before = out / RECIPE
    if not resume:
        _clear(out)
    elif before.exists() and (difference := disagreement(load_recipe(before), recipe)):
        raise UsageFailure(f"{out}: another run: {difference}; give another --out, or --no-resume to begin again")
    if done := _finished(out, recipe):
        return done
    start = _start(out, recipe, stream)
    write_text(before, dump(recipe))
    metrics.cut_back(out, start.step)
    (out / SUMMARY).unlink(missing_ok=True)
    return start


def read_summary(out: Path) -> dict[str, Any]:
    """The summary.json of a complete run."""
    content: dict[str, Any] = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
    return content


def summary(out: Path, recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """What summary.json holds of a complete run."""
    layout, train, steps = recipe.layout, recipe.train, list(metrics.read_steps(out))
    seconds = sum(step["seconds"] for step in steps)
    cut = stages(recipe.model, Layout(pp=layout.pp), train.recompute)
    return {
        "version": 1,
        "layout": layout.model_dump(),
        "ranks": [{"rank": rank, **layout.coordinates(rank)._asdict()} for rank in range(layout.world)],
        "stages": [{"stage": s.number, "layers": list(s.parts), "parameters": s.parameters} for s in cut],
        "parameters": recipe.model.parameters,
        "model": recipe.model.model_dump(),
        "recompute": train.recompute,
        "sequence_parallel": train.sequence_parallel and layout.tp > 1,
        "precision": train.precision,
        "steps": progress.step,
        "skipped": sum("skipped" in step for step in steps),
        "samples": progress.samples,
        "tokens": progress.tokens,
        "loss": progress.loss,
        "validation_loss": progress.validation_loss,
        "seconds": seconds,
        "tokens_per_second": progress.tokens / seconds if seconds else 0.0,
        "versions": {name: version(name) for name in ("torch", "deepspeed", "megatron-core")},
        "stream": progress.stream,
    }


def _clear(out: Path) -> None:
    for folder in (CHECKPOINTS, TENSORBOARD, WANDB, LOGS, PROFILE):
        shutil.rmtree(out / folder, ignore_errors=True)
    for file in (SUMMARY, WANDB_ID, metrics.FILE, RECIPE):
        (out / file).unlink(missing_ok=True)


def _finished(out: Path, recipe: Recipe) -> Start | None:
    """Where the run stands if it is complete."""
    if not (out / SUMMARY).exists() or not any((out / CHECKPOINTS).glob("step-*")):
        return None
    summary = read_summary(out)
    if summary["samples"] < recipe.train.samples:
        return None
    return Start(summary["steps"], summary["samples"], summary["steps"], complete=True)


def _start(out: Path, recipe: Recipe, stream: str) -> Start:
    from mtnlg_model.checkpoint.manifest import latest  # noqa: PLC0415  (imports torch)
    from mtnlg_parallel.engine.zero import open_checkpoint  # noqa: PLC0415  (as above)

    for unfinished in (out / CHECKPOINTS).glob("step-*.tmp"):  # nobody writes now: give its room back
        shutil.rmtree(unfinished)
    found = latest(out / CHECKPOINTS)
    step, samples = 0, 0
    if found:
        progress = open_checkpoint(found, recipe.model, stream).progress
        step, samples = progress.step, progress.samples
    return Start(step, samples, step + recipe.batch_size.number_of_steps(recipe.train.samples, samples), complete=False)
