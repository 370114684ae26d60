"""A window of steps under torch's profiler: where the time of a rank goes, as a trace for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

from mtnlg_model.console import say

from .run_dir import PROFILE

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.layout import Coordinates


class Profile:
    """Profiles the steps of ``window`` on one rank of every stage, into ``out``/profile/rank-N.json.gz."""

    def __init__(self, window: range | None, out: Path, rank: int, place: Coordinates) -> None:
        chosen = window if place.tp == place.dp == 0 else None
        self._first, self._last = (chosen[0], chosen[-1]) if chosen else (0, 0)
        self._path = out / PROFILE / f"rank-{rank}.json.gz"
        self._profiler: profile | None = None

    def before(self, step: int) -> None:
        """Begin at the window's first step."""
        if step == self._first:
            gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu], record_shapes=True)
            self._profiler.start()

    def after(self, step: int) -> None:
        """Write the trace at its last."""
        if self._profiler and step == self._last:
            self._profiler.stop()
            self._path.parent.mkdir(exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._profiler = None
            say(f"{self._path} holds steps {self._first} to {self._last}")
