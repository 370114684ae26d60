"""Experiment trackers: TensorBoard event files, and Weights & Biases on request.

`BackgroundTracker` runs each of them in a thread, so that none can delay or stop the training.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from mtnlg_model.console import UsageFailure, say
from mtnlg_model.files import atomic_open, read_small, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mtnlg_parallel.recipe import Recipe

    Entry = tuple[int, Mapping[str, Any]]

TENSORBOARD = "tensorboard"
WANDB, WANDB_ID = "wandb", "wandb.id"
FIRST_PAUSE: Final = 1.0
MAX_PAUSE: Final = 300.0
"""Longest pause in seconds before a failed tracker is opened again; the pause doubles with each failure."""

WRITE_SECONDS: Final = 1.0

CLOSE_SECONDS: Final = 60.0
LAST_TRIES: Final = 3
"""Seconds, and failures in a row, for which the end of a run waits for a tracker to write its remaining steps."""


class Tracker(Protocol):
    """Logs metrics by step."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step."""

    def close(self) -> None:
        """Flush what was logged."""


class BackgroundTracker:
    """Opens, feeds and closes a tracker in a thread, whose errors and waits do not reach the caller.

    The first error is printed. After each error the tracker is opened again by ``open_after(step)``, where ``step`` is
    the last step that it logged, and the failed step is logged again. Waiting steps are kept, about 2 KB each.
    """

    def __init__(self, name: str, open_after: Callable[[int], Tracker], step: int) -> None:
        self._name, self._open_after = name, open_after
        self._written = self._last = step
        self._warned = self._closed = False
        self._closing, self._entries = Event(), SimpleQueue["Entry | None"]()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Queue the metrics of a step."""
        self._last = step
        self._entries.put((step, metrics))

    def close(self) -> None:
        """Wait until all steps are logged, for at most `CLOSE_SECONDS`, and print what is missing."""
        self._closing.set()
        self._entries.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            # Exit before the tracker's own exit handler, registered earlier, which would wait for its server again.
            atexit.register(os._exit, 0)
        if self.missing:
            say(f"WARNING: {self._name}: {self.missing}; metrics.jsonl has every step")

    @property
    def missing(self) -> str:
        """Steps that the tracker lacks, or may lack, as text; "" once all are logged and the tracker is closed."""
        if self._written < self._last:
            return f"steps {self._written + 1} to {self._last} are missing"
        return "" if self._closed else "did not close, so that its last steps may be missing"

    def _run(self) -> None:
        tracker: Tracker | None = None
        entry, failures = self._entries.get(), 0
        while failures < LAST_TRIES or not self._closing.is_set():
            try:
                if entry is None:
                    if tracker:
                        tracker.close()
                    self._closed = True
                    return
                tracker = tracker or self._open_after(self._written)
                tracker.log(*entry)
            except Exception as error:  # noqa: BLE001  (of any library)
                tracker = None
                self._warn(error)
                if entry is None:
                    return
                self._closing.wait(min(FIRST_PAUSE * 2**failures, MAX_PAUSE))
                failures += 1
            else:
                self._written, entry, failures = entry[0], self._entries.get(), 0

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"WARNING: {self._name}: {reason}; training goes on, and it is tried again")
        self._warned = True


def open_trackers(
    out: Path, recipe: Recipe, step: int, project: str | None, others: Iterable[Tracker] = ()
) -> list[BackgroundTracker]:
    """Open the trackers of the run in ``out``, resumed at ``step``: TensorBoard, W&B if ``project``, and ``others``."""
    openers: dict[str, Callable[[int], Tracker]] = {"TensorBoard": lambda step: TensorBoard(out, step)}
    if project:
        openers["Weights & Biases"] = lambda _step: WeightsAndBiases(project, out, recipe)
    if recipe.watch.openmetrics:
        openers["OpenMetrics"] = lambda _step: OpenMetrics(Path(recipe.watch.openmetrics), out.resolve().name)
    for number, tracker in enumerate(others):
        openers[f"{type(tracker).__name__} {number}"] = lambda _step, tracker=tracker: tracker  # type: ignore[misc]
    return [BackgroundTracker(name, open_after, step) for name, open_after in openers.items()]


class TensorBoard:
    """Event files in ``out``/tensorboard; events after ``step`` are purged."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (slow to import, and one rank needs it)

        self._writer = SummaryWriter(str(out / TENSORBOARD), purge_step=step + 1)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write each metric as a scalar under train/. Raises ``OSError`` if the disk is full or fails."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"train/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class OpenMetrics:
    """Writes the newest figures as OpenMetrics text to a file, atomically, at most once per `WRITE_SECONDS`."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run, self._written = path, run, -math.inf
        self._newest: dict[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Update the figures; figures that this step lacks keep their values."""
        self._newest |= {"step": step, **metrics}
        if time.monotonic() - self._written > WRITE_SECONDS:
            self.close()

    def close(self) -> None:
        """Write the newest figures. Raises ``OSError`` if the disk is full or fails."""
        families: dict[str, list[str]] = {}
        for key, value in self._newest.items():
            kind, _, rest = key.partition("/")
            source, _, figure = rest.rpartition("/")
            labels = {"run": self._run} | ({"source": source} if source else {})
            text = ",".join(f"{name}={_quoted(label)}" for name, label in labels.items())
            family = f"mtnlg_source_{figure}" if source else f"mtnlg_{kind}"
            families.setdefault(family, []).append(f"{family}{{{text}}} {value}\n")
        lines = [
            f"# HELP {family} As in metrics.jsonl.\n# TYPE {family} gauge\n{''.join(samples)}"
            for family, samples in families.items()
        ]
        with atomic_open(self._path) as file:
            os.fchmod(file.fileno(), 0o644)  # another user's exporter reads it
            file.write("".join([*lines, "# EOF\n"]).encode())
        self._written = time.monotonic()


def _quoted(label: str) -> str:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class WeightsAndBiases:
    """A run of a W&B project; a resumed training run with the same ``out`` continues the same W&B run."""

    def __init__(self, project: str, out: Path, recipe: Recipe) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415  (an extra)

        if not (out / WANDB_ID).exists():
            write_text(out / WANDB_ID, uuid4().hex)
        identity = {"id": read_small(out / WANDB_ID).decode(), "resume": "allow"}
        config = recipe.model_dump(mode="json")
        self._run = wandb.init(project=project, **identity, name=out.resolve().name, dir=str(out), config=config)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics under train/."""
        self._run.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Upload the rest and finish the W&B run."""
        self._run.finish()


def check_wandb() -> None:
    """Raise ``UsageFailure`` if the package wandb is not installed."""
    if find_spec("wandb") is None:
        raise UsageFailure("--wandb needs the package wandb; pip install 'mtnlg-parallel[wandb]'")
