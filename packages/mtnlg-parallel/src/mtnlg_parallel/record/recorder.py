"""Writes rank 0's records while a run trains: metrics.jsonl and trackers, and at the end history and summary.json."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from mtnlg_model.console import IoFailure
from mtnlg_model.files import open_to_update, write_json

from . import history, metrics
from .run_dir import SUMMARY, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_parallel.recipe import Recipe

    from .metrics import Step
    from .trackers import Tracker


class Recorder:
    """Records the steps of the run in ``out``, from the step at which it resumed."""

    def __init__(self, out: Path, recipe: Recipe, trackers: Sequence[Tracker]) -> None:
        self._out, self._recipe, self._trackers = out, recipe, trackers
        self._path = out / metrics.FILE
        self._file = open_to_update(self._path, os.O_APPEND)
        self._goodput = history.RunningGoodput(out)

    def record(self, step: Step) -> None:
        """Add goodput to a step, append and log the step. Raises ``IoFailure`` if it cannot be written."""
        step["goodput"] = self._goodput.after(step)
        try:
            line = {**step, "totals": self._goodput.taken.totals}
            self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise IoFailure(f"{self._path}: {error.strerror}; make room, and the same command resumes") from error
        figures = dict(metrics.figures(step))
        for tracker in self._trackers:
            tracker.log(step["step"], figures)

    def close(self, progress: Progress, stop_signal: int = 0) -> None:
        """Record a clean end, on a signal or at the end of the run; only the latter writes a summary."""
        self._file.close()
        history.append(self._out, "stopped", step=progress.step, signal=stop_signal)
        if progress.samples >= self._recipe.train.samples:
            write_json(self._out / SUMMARY, summarize(self._out, self._recipe, progress))
        for tracker in self._trackers:  # last, as it may take a while
            tracker.close()
