"""Rolls a run back to an earlier checkpoint, and skips samples that it read after that.

Later checkpoints and steps are removed, and the skipped range is written as ``skip`` into the run's own recipe. A
resume refuses a recipe without it.
"""

from __future__ import annotations

import re
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

    from mtnlg_parallel.recipe import Change, Train

LAST = "last"


def rollback(out: Path, step: int, skip: str | None = None) -> list[tuple[int, int]]:
    """Make the checkpoint of ``step`` the newest of the run in ``out``; returns all ranges that its streams skip.

    ``skip``: "last" for all samples that the run has read since that checkpoint, or "A:B" for samples [A, B) of the
    stream that it was reading. Raises ``UsageFailure`` if the run has no such checkpoint or range.
    """
    with lock_folder(out):
        recipe = read_recipe(out / RECIPE)
        checkpoints = dict(list_checkpoints(out / CHECKPOINTS))
        if step not in checkpoints:
            raise UsageFailure(f"{out}: no checkpoint step-{step}; there are steps {', '.join(map(str, checkpoints))}")
        begin = read_manifest(checkpoints[step]).progress.samples
        read = max((line["samples"] for line in metrics.read_steps(out)), default=begin)
        train = recipe.train if skip is None else _skipping(recipe.train, skip, begin, read)
        write_text(out / RECIPE, dump(recipe.model_copy(update={"train": train})))
        later = [path for number, path in checkpoints.items() if number > step]
        for path in later:  # renamed first: half removed, it is no checkpoint
            path.rename(path.with_name(f"{path.name}.tmp"))
        for _, path in list_steps(out / CHECKPOINTS, ".tmp"):
            shutil.rmtree(path)
        metrics.truncate_after(out, step)
        (out / SUMMARY).unlink(missing_ok=True)
        history.append(out, "rollback", step=step, skip=str(skip))
    return [*train.skip, *(each for change in train.change for each in change.skip)]


def _skipping(train: Train, skip: str, begin: int, read: int) -> Train:
    """The settings with another skipped range, in the stream that is read at sample ``begin``."""
    parts = train.stream_parts
    part = next(each for each in reversed(parts) if each.at <= begin)
    first = part.number(begin)
    if skip == LAST:
        beyond = next((each.at for each in parts if each.at > begin), read)
        if not begin < read <= beyond:
            raise UsageFailure(
                f"--skip last: samples {begin} to {read} of the run are empty, or in two streams; give A:B"
            )
        end = part.number(read - 1) + 1
    elif match := re.fullmatch(r"(\d{1,18}):(\d{1,18})", skip):
        begins, end = int(match[1]), int(match[2])
        if not first <= begins < end:
            raise UsageFailure(
                f"--skip {skip}: write A:B with {first} <= A < B; the checkpoint has read the samples before"
            )
        first = begins
    else:
        raise UsageFailure(f"--skip {skip}: write last, or A:B, samples of the token stream")
    owners = (change for change in train.change if change.data == part.data)
    owner: Train | Change = next(owners) if part.data else train
    within = [each for each in owner.skip if each[0] < end and each[1] > first]
    merged = min(first, *(each[0] for each in within), first), max(end, *(each[1] for each in within), end)
    kept = {"skip": tuple(sorted([*(each for each in owner.skip if each not in within), merged]))}
    if owner is train:
        return train.model_copy(update=kept)
    changes = tuple(change.model_copy(update=kept) if change is owner else change for change in train.change)
    return train.model_copy(update={"change": changes})
