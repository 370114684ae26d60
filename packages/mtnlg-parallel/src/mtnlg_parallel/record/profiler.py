"""Profiles a window of steps with torch's profiler and writes one trace per pipeline stage, for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from mtnlg_model.console import say
from mtnlg_model.files import naming, new_or_regular

from .run_dir import PROFILE

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.layout import Coordinates


class StepProfiler:
    """Profiles the steps of ``window`` on one rank of every stage, into ``out``/profile/rank-N.json.gz."""

    def __init__(self, window: range | None, out: Path, rank: int, coordinates: Coordinates) -> None:
        profiled = window if coordinates.tp == coordinates.dp == coordinates.cp == 0 else None
        self._first, self._last = (profiled[0], profiled[-1]) if profiled else (0, 0)
        self._path = out / PROFILE / f"rank-{rank}.json.gz"
        self._profiler: profile | None = None

    def before_step(self, step: int) -> None:
        """Start profiling at the first step of the window."""
        if step == self._first:
            gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu], record_shapes=True)
            self._profiler.start()

    def after_step(self, step: int) -> None:
        """Write the trace after the last step of the window."""
        if self._profiler and step == self._last:
            self._profiler.stop()
            self._path.parent.mkdir(exist_ok=True)
            with naming(self._path):
                self._profiler.export_chrome_trace(str(new_or_regular(self._path)))
            self._profiler = None
            say(f"{self._path} holds steps {self._first} to {self._last}")
