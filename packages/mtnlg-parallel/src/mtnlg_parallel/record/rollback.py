"""Rolls a run back to an earlier checkpoint, and skips samples that it read after that.

Later checkpoints and steps are removed, and the skipped ranges, one per token folder that was read, are written as
``skip`` into the run's own recipe. A resume refuses a recipe without them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from mtnlg_data.engine.folder_lock import lock_folder
from mtnlg_model.checkpoint.manifest import list_checkpoints, list_steps, read_manifest
from mtnlg_model.console import UsageFailure
from mtnlg_model.files import write_text
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import Change

from . import history, metrics
from .run_dir import CHECKPOINTS, RECIPE, SUMMARY, run_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.recipe import Train


def rollback(out: Path, step: int, skip: bool = False) -> Train:
    """Make the checkpoint of ``step`` the newest of the run in ``out``; returns the run's settings from then on.

    With ``skip`` the run skips all samples that it has read since that checkpoint. Raises ``UsageFailure`` if the run
    has no such checkpoint or samples.
    """
    recipe = run_recipe(out)  # before a folder that holds no run gets a lock
    with lock_folder(out):
        checkpoints = dict(list_checkpoints(out / CHECKPOINTS))
        if step not in checkpoints:
            raise UsageFailure(f"{out}: no checkpoint step-{step}; there are steps {', '.join(map(str, checkpoints))}")
        train = recipe.train
        if skip:
            begin = read_manifest(checkpoints[step]).progress.samples
            train = _skipping(train, begin, max((each["samples"] for each in metrics.read_steps(out)), default=begin))
        write_text(out / RECIPE, dump(recipe.model_copy(update={"train": train})))
        later = [path for number, path in checkpoints.items() if number > step]
        for path in later:  # renamed first: half removed, it is no checkpoint
            path.rename(path.with_name(f"{path.name}.tmp"))
        for _, path in list_steps(out / CHECKPOINTS, ".tmp"):
            shutil.rmtree(path)
        metrics.truncate_after(out, step)
        (out / SUMMARY).unlink(missing_ok=True)
        history.append(out, "rollback", step=step, skip=skip)
    return train


def _skipping(train: Train, begin: int, read: int) -> Train:
    """The settings that also skip what the run's samples from ``begin`` up to ``read`` have read, in each folder."""
    if begin >= read:
        raise UsageFailure(f"--skip last: samples {begin} to {read} of the run are empty")
    parts = train.stream_parts
    lost: dict[str, tuple[int, int]] = {}
    for part, end in zip(parts, [*(each.at for each in parts[1:]), read], strict=True):
        first, last = max(part.at, begin), min(end, read) - 1
        if first <= last:  # a folder is read on from where it stopped
            since = lost[part.data][0] if part.data in lost else part.number(first)
            lost[part.data] = since, part.number(last) + 1
    folder, changes, written = "", list[Change](), set[str]()

    def skipping(skip: tuple[tuple[int, int], ...]) -> dict[str, object]:
        first, end = lost.get(folder, (0, 0))
        ranges = {each for each in skip if not first <= each[0] < end}  # the others are within the new one
        ranges |= {(first, end)} if folder in lost.keys() - written else set()
        written.add(folder)
        return {"skip": tuple(sorted(ranges))}

    settings = skipping(train.skip)
    for change in train.change:
        folder = folder if change.data is None else change.data
        changes.append(change.model_copy(update=skipping(change.skip)))
    return train.model_copy(update={**settings, "change": tuple(changes)})
