"""history.jsonl, one object per event of a run, and goodput, the share of wall time spent in steps that counted.

    start     rank 0 has started: layout, host, job
    resumed   the ranks hold the state of a step, from disk or initial; seconds trained up to it, steps and seconds lost
    stopped   the run ended cleanly, complete or on a signal
    failed    the launcher saw the run end otherwise: reason, exit status, node

A run that is killed entirely writes no last event: it is taken to have ended after its recorded steps, including those
lost. So wall time is the sum of its parts, each at least zero even if a clock steps back:

    wall = useful + checkpoint + validation    seconds of the steps in metrics.jsonl
         + lost                                seconds of steps that were trained again
         + restart                             from the last step before a failure to the next `resumed`
         + startup                             from a first start, or the one after a clean stop, to `resumed`
         + other                               from the last step to a clean stop
         + waiting                             from a clean stop to the next start

    goodput = useful / (wall - waiting)
"""

from __future__ import annotations

import json
import math
import os
import time
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal

from mtnlg_model.files import file_lines, open_to_update

from .metrics import read_steps, training_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from .metrics import Step

FILE = "history.jsonl"
LATEST = 1 << 37
"""Latest valid time, in seconds since 1970: the year 6325. Much later times are not dates."""

Name = Literal["start", "resumed", "stopped", "failed", "rollback"]
NAMES = {"start", "resumed", "stopped", "failed", "rollback"}


def append(out: Path, event: Name, **facts: str | float | None) -> None:
    """Append an event with the current time in seconds since 1970."""
    line = json.dumps({"event": event, "time": time.time(), **facts}, allow_nan=False).encode() + b"\n"
    with open_to_update(out / FILE, os.O_APPEND) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, 2)
            line = line if file.read(1) == b"\n" else b"\n" + line  # a writer died within its line
        file.write(line)


def read_events(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in order; skips torn lines."""
    path = out / FILE
    if not path.exists():
        return
    for line in file_lines(path):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") in NAMES and 0 <= number(event, "time", -1) < LATEST:
            yield event


def number(event: dict[str, Any], key: str, default: float = 0.0) -> float:
    """The number under ``key`` in an event; ``default`` if it is missing or not finite."""
    value = event.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else default


TOTALS = ("useful", "checkpoint", "validation", "skipped", "last_skip", "validation_loss")


class StepSeconds:
    """Cumulative seconds of a run's steps, number of skipped steps and the last of them, and last validation loss.

    The steps may be the last ones alone, if they have totals; ``trained`` then has the seconds up to earlier steps.
    """

    def __init__(self, steps: Iterable[Step] = (), trained: Mapping[int, float] = {}) -> None:
        self._steps, self._seconds = array("q", sorted(trained)), array("d")
        self._seconds.extend(trained[step] for step in self._steps)
        self.useful, self.checkpoint, self.validation = 0.0, 0.0, 0.0
        self.skipped = 0
        self.last_skip: Step | None = None
        self.validation_loss: float | None = None
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        """Add the next step."""
        self.useful += training_seconds(step)
        self.checkpoint += step.get("checkpoint_seconds", 0.0)
        self.validation += step.get("validation_seconds", 0.0)
        if "skipped" in step:
            self.skipped += 1
            self.last_skip = {"step": step["step"], "skipped": step["skipped"], "skip_reason": step["skip_reason"]}
        self.validation_loss = step.get("validation_loss", self.validation_loss)
        for name in TOTALS if "totals" in step else ():
            setattr(self, name, step["totals"][name])
        if not self._steps or step["step"] > self._steps[-1]:
            self._steps.append(step["step"])
            self._seconds.append(self.total)

    @property
    def totals(self) -> dict[str, Any]:
        """The figures of all steps."""
        return {name: getattr(self, name) for name in TOTALS}

    @property
    def total(self) -> float:
        """Seconds of all steps, including their checkpoints and validations."""
        return self.useful + self.checkpoint + self.validation

    def between(self, begin: float, end: float) -> float:
        """Seconds of the steps after ``begin`` up to ``end``."""
        first, last = bisect_right(self._steps, begin), bisect_right(self._steps, end)
        return max(0.0, (self._seconds[last - 1] if last else 0.0) - (self._seconds[first - 1] if first else 0.0))


class Goodput:
    """Where the wall time of a run went: ``seconds`` by what they were spent on, and restarts, each with its downtime.

    A stretch of training begins with `resumed`. It is booked at the next `resumed`, whose event says how much of the
    stretch was lost. ``clock_stepped_back``: an event is older than the previous one, so some seconds are missing.
    """

    def __init__(self, events: Iterable[dict[str, Any]], steps: StepSeconds) -> None:
        self.seconds = {"useful": steps.useful, "checkpoint": steps.checkpoint, "validation": steps.validation}
        self.seconds |= dict.fromkeys(("lost", "restart", "startup", "other", "waiting"), 0.0)
        self.lost_steps, self.clock_stepped_back = 0, False
        self.restarts: list[dict[str, Any]] = []
        self._steps = steps
        self._stretch: dict[str, Any] | None = None  # the `resumed` that began it
        self._stopped: dict[str, Any] | None = None  # the clean stop that ended it
        self._failed: dict[str, Any] = {}  # the failure that ended it
        self._down_since: float | None = None  # since this start: the first, or the one after a clean stop
        last: dict[str, Any] = {"event": "", "time": -math.inf}
        for event in events:
            self.clock_stepped_back |= event["time"] < last["time"]
            self._enter(event)
            last = event
        end = self._end_of_stretch(math.inf, 0.0)
        if last["event"] in {"start", "failed"}:
            self._book_down_time(last["time"], end, bool(self._failed))

    @property
    def running(self) -> float:
        """Seconds since the first start, as far as the files show, but those between a clean stop and a start."""
        return sum(self.seconds.values()) - self.seconds["waiting"]

    @property
    def share(self) -> float | None:
        """Goodput; None before the first step."""
        return self.seconds["useful"] / self.running if self.seconds["useful"] and self.running else None

    def facts(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "share": self.share,
            "wall": sum(self.seconds.values()),
            **self.seconds,
            "lost_steps": self.lost_steps,
            "restarts": self.restarts,
            "clock_stepped_back": self.clock_stepped_back,
        }

    def _enter(self, event: dict[str, Any]) -> None:
        now = event["time"]
        match event["event"]:
            case "start" if self._down_since is None and (self._stopped or not self._stretch):
                self.seconds["waiting"] += max(0.0, now - self._stopped["time"]) if self._stopped else 0.0
                self._down_since = now
            case "start" if not self._failed:
                self._failed = {"time": now, "reason": "it ended without a message"}
            case "resumed":
                self._resume(event)
            case "stopped":
                self._stopped = event
            case "failed":
                self._failed = event

    def _resume(self, event: dict[str, Any]) -> None:
        step, lost = int(number(event, "step")), max(0.0, number(event, "lost_seconds"))
        lost_steps = int(number(event, "lost_steps"))
        after_failure = bool(self._failed or (self._stretch and not self._stopped))
        down = self._book_down_time(event["time"], self._end_of_stretch(step, lost), after_failure)
        self.seconds["lost"] += lost
        self.lost_steps += lost_steps
        if after_failure:
            restart = {"time": event["time"], "step": step, "source": str(event.get("source") or "")}
            restart |= {"lost_steps": lost_steps, "lost_seconds": lost, "seconds": down}
            restart |= {key: str(self._failed.get(key) or "") for key in ("reason", "node")}
            self.restarts.append(restart)
        self._stretch, self._stopped, self._failed, self._down_since = event, None, {}, None

    def _end_of_stretch(self, step: float, lost: float) -> float:
        """Time at which the previous stretch ended, given that its steps up to ``step`` count."""
        if self._stretch is None:
            return math.inf
        end = float(self._stretch["time"]) + self._steps.between(number(self._stretch, "step"), step) + lost
        if self._stopped:
            self.seconds["other"] += max(0.0, self._stopped["time"] - end)
            return float(self._stopped["time"])
        return min(end, float(self._failed.get("time", math.inf)))

    def _book_down_time(self, now: float, end_of_stretch: float, after_failure: bool) -> float:
        since = end_of_stretch if self._down_since is None else self._down_since
        down = max(0.0, now - since)
        self.seconds["restart" if after_failure else "startup"] += down
        return down


def goodput(out: Path) -> Goodput:
    """Where the wall time of the run in ``out`` went, up to its last event or step."""
    return Goodput(read_events(out), StepSeconds(read_steps(out)))


class RunningGoodput:
    """Goodput of the run in ``out`` while it trains, from its files at the start and each step since."""

    def __init__(self, out: Path) -> None:
        self.taken = StepSeconds(read_steps(out))
        self._running = Goodput(read_events(out), self.taken).running

    def after(self, step: Step) -> float:
        """Goodput once this step has ended."""
        self.taken.add(step)
        self._running += step["seconds"]
        return self.taken.useful / self._running
