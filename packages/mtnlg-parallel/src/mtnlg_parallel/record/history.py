"""history.jsonl, one object per event of a run in wall time: starts, resumptions, stops, failures.

    start     rank 0 has started: layout, host, job
    resumed   the ranks hold the state of a step: from the disk, from memory or initial; steps and seconds lost
    stopped   the run ended cleanly, complete or on a signal
    failed    the launcher saw the run end otherwise: reason, exit status, node

A run that is killed whole writes no last event, so a reader must take a ``start`` after a ``resumed`` as its end.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = "history.jsonl"
Name = Literal["start", "resumed", "stopped", "failed"]


def append(out: Path, event: Name, **facts: str | float | None) -> None:
    """Append an event, with the time now in seconds since the epoch."""
    line = json.dumps({"event": event, "time": time.time(), **facts}, allow_nan=False)
    with (out / FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read_events(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in order; a torn last line is left out."""
    path = out / FILE
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)
