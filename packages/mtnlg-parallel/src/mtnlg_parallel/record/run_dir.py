"""The run directory, ``--out``: prepares it for a new, resumed or complete run, and writes summary.json."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.engine.folder_lock import LOCK
from mtnlg_model.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    latest,
    list_checkpoints,
    list_steps,
    read_manifest,
)
from mtnlg_model.console import Failure, UsageFailure, say
from mtnlg_model.files import read_small, write_text
from mtnlg_model.settings import dump, toml_content
from mtnlg_parallel.identity import check_initial, check_resumed, check_same_run
from mtnlg_parallel.initial import read_initial
from mtnlg_parallel.layout import Layout, stages
from mtnlg_parallel.recipe_file import read_recipe

from . import history, metrics
from .history import Goodput, StepSeconds, read_events
from .trackers import TENSORBOARD, WANDB, WANDB_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_model.checkpoint.manifest import Manifest, Progress
    from mtnlg_parallel.identity import DataFingerprint
    from mtnlg_parallel.recipe import Recipe

SUMMARY = "summary.json"
RECIPE = "recipe.toml"
CHECKPOINTS = "checkpoints"
LOGS = "logs"
PROFILE = "profile"
FOLDERS = (CHECKPOINTS, TENSORBOARD, WANDB, LOGS, PROFILE)
FILES = (SUMMARY, WANDB_ID, metrics.FILE, history.FILE, RECIPE)
LISTING_SECONDS = 60
"""Seconds for which a folder listing may be stale: NFS caches it that long by default."""

LIBRARIES = ("torch", "deepspeed", "megatron-core")


class RunState(NamedTuple):
    """Progress of a run: steps done, total steps, and whether it is complete."""

    step: int
    steps: int
    complete: bool


def run_recipe(out: Path) -> Recipe:
    """The recipe of the run in ``out``. Raises ``Failure`` if there is no run."""
    if not _has_recipe(out):
        raise Failure(f"{out}: no run: it has no {RECIPE} of a training run; give the --out of mtnlg-parallel train")
    return read_recipe(out / RECIPE)


def check_run_dir(out: Path) -> None:
    """Raise ``UsageFailure`` if ``out`` holds no training run, but files of others under names that a run writes."""
    names = (SUMMARY, RECIPE) if (out / LOCK).exists() else (*FOLDERS, *FILES)  # a run may fail before it has these
    written = [name for name in names if (out / name).is_file() or any((out / name).glob("*"))]
    if written and not _has_recipe(out):
        raise UsageFailure(f"{out}: holds {', '.join(written)}, not a training run; give another --out")


def _has_recipe(out: Path) -> bool:
    return (out / RECIPE).is_file() and "train" in toml_content(out / RECIPE, "recipe")


def prepare_run_dir(out: Path, recipe: Recipe, data: DataFingerprint, resume: bool) -> RunState:
    """Prepare ``out`` for this recipe and return the state of its run; without ``resume`` delete the earlier run.

    Raises ``IdentityError`` if ``out`` holds the run of another recipe, or if the checkpoint to resume or to start from
    has another model, token stream or tokenizer. A refusal leaves ``out`` as it is.
    """
    recipe_file = out / RECIPE
    if resume:
        before = read_recipe(recipe_file) if recipe_file.exists() else recipe
        newest = latest(out / CHECKPOINTS)
        if newest and not (recipe.train.initial and Path(before.train.initial).exists()):
            # The run's original train.initial, which a run with checkpoints of its own does not read.
            train = recipe.train.model_copy(update={"initial": before.train.initial})
            recipe = recipe.model_copy(update={"train": train})
        check_same_run(out, before, recipe, _resumed_manifest(newest).progress.samples if newest else 0)
        if complete := _complete_state(out, recipe):
            return complete
    state = _first_state(out, recipe, data, resume)
    (_remove_unfinished if resume else _clear)(out)
    write_text(recipe_file, dump(recipe))
    (out / SUMMARY).unlink(missing_ok=True)
    return state


@contextmanager
def suggest_previous(checkpoint: Path) -> Iterator[None]:
    """In a block that reads the newest checkpoint: add to a ``CheckpointError`` which earlier one to resume from."""
    try:
        yield
    except CheckpointError as error:
        before = [path.name for _, path in list_checkpoints(checkpoint.parent) if path != checkpoint]
        hint = f"resume from {before[-1]}" if before else "start over"
        look = f"if mtnlg-model verify {checkpoint} fails too, remove {checkpoint.name}"
        raise CheckpointError(f"{error}; {look} to {hint}") from error


def _resumed_manifest(checkpoint: Path) -> Manifest:
    with suggest_previous(checkpoint):
        return read_manifest(checkpoint)


def read_summary(out: Path) -> dict[str, Any]:
    """Read the summary.json of a complete run."""
    try:
        content: dict[str, Any] = json.loads(read_small(out / SUMMARY))
    except ValueError as error:
        raise Failure(f"{out / SUMMARY}: not JSON: {error}; remove it, and the same command resumes") from None
    return content


def summarize(out: Path, recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """The content of summary.json for a complete run."""
    layout, train = recipe.layout, recipe.train
    taken, events = StepSeconds(metrics.read_steps(out)), list(read_events(out))
    seconds = taken.total
    pipeline_stages = stages(recipe.model, Layout(pp=layout.pp), train.recompute)
    return {
        "version": 1,
        "layout": layout.model_dump(),
        "ranks": [layout.place_facts(rank) for rank in range(layout.world)],
        "stages": [{"stage": s.number, "layers": list(s.parts), "parameters": s.parameters} for s in pipeline_stages],
        "parameters": recipe.model.parameters,
        "model": recipe.model.model_dump(mode="json"),
        "recompute": train.recompute,
        "sequence_parallel": train.sequence_parallel and layout.tp > 1,
        "precision": train.precision,
        "steps": progress.step,
        "skipped": taken.skipped,
        "samples": progress.samples,
        "tokens": progress.tokens,
        "start_sample": train.start_sample,
        "corpus_passes": corpus_passes(events, progress.samples),
        "loss": progress.loss,
        "validation_loss": progress.validation_loss,
        "seconds": seconds,
        "checkpoint_seconds": taken.checkpoint,
        "validation_seconds": taken.validation,
        "goodput": Goodput(events, taken).facts(),
        "tokens_per_second": progress.tokens / seconds if seconds else 0.0,
        "versions": {name: version(name) for name in LIBRARIES if find_spec(name.partition("-")[0])},
        "stream": progress.stream,
    }


def corpus_passes(events: Sequence[dict[str, Any]], samples: int) -> float | None:
    """Number of passes over the corpus that ``samples`` samples make; None if no event has the corpus size."""
    corpus = next((history.number(event, "corpus") for event in reversed(events) if "corpus" in event), 0)
    return samples / corpus if corpus else None


def _clear(out: Path) -> None:
    for folder in FOLDERS:
        shutil.rmtree(out / folder, ignore_errors=True)
    for file in FILES:
        (out / file).unlink(missing_ok=True)


def _complete_state(out: Path, recipe: Recipe) -> RunState | None:
    if (out / SUMMARY).exists() and any((out / CHECKPOINTS).glob("step-*")):
        summary = read_summary(out)
        if summary["samples"] >= recipe.train.samples:
            return RunState(summary["steps"], summary["steps"], complete=True)
    return None


def _remove_unfinished(out: Path) -> None:
    from mtnlg_model.checkpoint.writer import removing  # noqa: PLC0415  (imports torch)

    for _, unfinished in list_steps(out / CHECKPOINTS, ".tmp"):  # no rank is writing now
        with removing(unfinished):
            shutil.rmtree(unfinished)


def _first_state(out: Path, recipe: Recipe, data: DataFingerprint, resume: bool) -> RunState:
    from mtnlg_model.tokenizer import carried_chat_files  # noqa: PLC0415  (imports tokenizers)

    checkpoint = _newest(out / CHECKPOINTS) if resume else None
    step, samples = 0, 0
    if checkpoint:
        manifest = _resumed_manifest(checkpoint)
        check_resumed(checkpoint, manifest, recipe, data)
        step, samples = manifest.progress.step, manifest.progress.samples
    elif recipe.train.initial:
        initial = read_initial(recipe.train.initial, recipe.model.vocabulary)
        check_initial(initial, recipe, data)
        if not resume and out.resolve() / CHECKPOINTS in initial.folder.parents:
            raise UsageFailure(f"--from {initial.folder}: --no-resume deletes it; give another --out")
        if initial.progress and initial.progress.stream == data.stream(0):
            _say_where_it_begins(initial.progress, recipe.train.start_sample)
        if (reach := initial.config.sequence) != recipe.model.sequence:
            say(f"--from {initial.folder}: trained on {reach} tokens at a time, {recipe.model.sequence} from here on")
        if (tokens := recipe.model.tokens) > initial.config.tokens:
            say(f"--from {initial.folder}: the vocabulary grows from {initial.config.tokens} tokens to {tokens}")
        for note in carried_chat_files(initial.folder, data.tokenizer).notes:
            say(f"--from {initial.folder}: {note}")
    steps = step + recipe.batch_size.number_of_steps(recipe.train.samples, samples)
    return RunState(step, steps, complete=False)


def _say_where_it_begins(initial: Progress, start: int) -> None:
    """Print the sample at which a run begins, and the one at which the run that trained its initial weights ended."""
    end = int(initial.extra.get("start_sample", 0)) + initial.samples
    again = f" and reads samples again; --set train.start_sample={end} goes on there" if start < end else ""
    say(f"the initial weights are trained to sample {end:,} of the token stream; this run begins at {start:,}{again}")


def _newest(checkpoints: Path) -> Path | None:
    """The newest checkpoint. Raises ``Failure`` if a later step has a folder without a manifest.

    Such a step could not be written again. A manifest appears and disappears with its folder, so if it is missing, this
    node's listing may be stale: waits for up to `LISTING_SECONDS` first.
    """
    for second in range(LISTING_SECONDS):
        newest, steps = latest(checkpoints), list_steps(checkpoints)
        if not steps or steps[-1][1] == newest:
            return newest
        if second == 0:
            say(f"{steps[-1][1]}: no {MANIFEST} in it yet; waiting for it, {LISTING_SECONDS} s at most")
        time.sleep(1.0)
    step, folder = steps[-1]
    raise Failure(f"{folder}: no {MANIFEST}, so it is no checkpoint, and step {step} could not be written; remove it")
