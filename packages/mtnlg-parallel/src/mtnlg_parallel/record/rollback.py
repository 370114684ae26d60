"""Rolls a run back to an earlier checkpoint, and skips samples that it read after that.

Later checkpoints and steps are removed, and the skipped range is written as ``skip`` into the run's own recipe. A
resume refuses a recipe without it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from mtnlg_data.engine.folder_lock import lock_folder
from mtnlg_model.checkpoint.manifest import list_checkpoints, list_steps, read_manifest
from mtnlg_model.console import UsageFailure
from mtnlg_model.files import write_text
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe_file import read_recipe

from . import history, metrics
from .run_dir import CHECKPOINTS, RECIPE, SUMMARY

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.recipe import Train


def rollback(out: Path, step: int, skip: bool = False) -> list[tuple[int, int]]:
    """Make the checkpoint of ``step`` the newest of the run in ``out``; returns all ranges that its streams skip.

    With ``skip`` the run skips all samples that it has read since that checkpoint. Raises ``UsageFailure`` if the run
    has no such checkpoint or samples.
    """
    recipe = read_recipe(out / RECIPE)  # before a folder that holds no run gets a lock
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
    return [*train.skip, *(each for change in train.change for each in change.skip)]


def _skipping(train: Train, begin: int, read: int) -> Train:
    """The settings that also skip what the run's samples from ``begin`` up to ``read`` have read."""
    parts = train.stream_parts
    part = next(each for each in reversed(parts) if each.at <= begin)
    beyond = next((each.at for each in parts if each.at > begin), read)
    if not begin < read <= beyond:
        hint = "write the range of the token stream as train.skip"
        raise UsageFailure(f"--skip last: samples {begin} to {read} of the run are empty, or in two streams; {hint}")
    first, end = part.number(begin), part.number(read - 1) + 1  # neither of which is in a range that is skipped now

    def skipping(skip: tuple[tuple[int, int], ...]) -> dict[str, object]:
        return {"skip": tuple(sorted([*(each for each in skip if not first <= each[0] < end), (first, end)]))}

    if not part.data:
        return train.model_copy(update=skipping(train.skip))
    changes = list(train.change)
    number = next(number for number, change in enumerate(changes) if change.data == part.data)
    changes[number] = changes[number].model_copy(update=skipping(changes[number].skip))
    return train.model_copy(update={"change": tuple(changes)})
