"""Says which rank holds a job up, and in what, instead of leaving all of them to wait.

Beside each rank's work a thread tells the job's store every few seconds where the rank is: its step, and its phase,
read off the main thread's stack: data, checkpoint, communication, forward or backward. It also watches the next rank.

    a rank's thread is silent for half a minute      the process is stopped, or its machine is gone
    a step takes longer than ``guard.patience``      who is not in communication holds the others up

Whoever sees it first writes one line for all; every rank prints it and ends with a status of its own, which a launcher
takes for what it is. Nothing is added to the work itself.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from torch import distributed

from mtnlg_model.console import say

from .local import HUNG

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from mtnlg_parallel.layout import Layout

SILENCE_SECONDS: Final = 30.0
STORE_PATIENCE: Final = timedelta(seconds=30)

PHASES: Final = (
    ("communication", ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p")),
    ("data", ("mtnlg_parallel/samples", "mtnlg_data/")),
    (
        "checkpoint",
        ("mtnlg_parallel/saving", "mtnlg_parallel/sharding", "mtnlg_model/writer", "mtnlg_model/checkpoint"),
    ),
    ("backward", ("torch/autograd/",)),
)
"""By the files whose functions are being called, innermost first; what is in none of them is forward."""


def phase_of(frame: FrameType | None) -> str:
    """What a thread with this innermost frame is doing."""
    while frame:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        for phase, files in PHASES:
            if any(file in path for file in files):
                return phase
        frame = frame.f_back
    return "forward"


class Watchdog:
    """Watches this rank and the next one from a thread; a context manager around the work of the thread that enters."""

    def __init__(self, layout: Layout, rank: int, patience: float, leave: Callable[[str], None] | None = None) -> None:
        self._layout, self._rank, self._patience, self._leave = layout, rank, patience, leave or _leave
        self._silence = min(SILENCE_SECONDS, patience)
        self._step, self._since = 0, time.monotonic()
        self._begun, self._over = False, threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cease to watch."""
        self._over.set()
        self._thread.join()

    def beat(self, step: int) -> None:
        """A step is done: the patience begins anew. Before the first, no patience is lost."""
        self._step, self._since, self._begun = step, time.monotonic(), True

    def _watch(self) -> None:
        every = min(5.0, self._silence / 6)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            store = distributed.TCPStore(host, port, is_master=False, timeout=STORE_PATIENCE)  # type: ignore[attr-defined]
            followed = (self._rank + 1) % self._layout.world
            told, heard = "", time.monotonic()
            for count in itertools.count():
                store.set(_key(self._rank), json.dumps([count, self._step, phase_of(self._frame())]))
                if self._over.wait(every):
                    return
                now, answer = time.monotonic(), _beat(store, followed)
                if answer != told or not answer:  # before its first it may still be reading its checkpoint
                    told, heard = answer, now
                if now - heard > self._silence:
                    self._end(store, f"{self._name(followed)} has answered nothing for {now - heard:.0f} s")
                elif self._begun and now - self._since > self._patience:
                    self._end(store, self._diagnosis(store))
        except distributed.DistError as error:  # the store has gone with the job
            if not self._over.wait(every):
                self._leave(f"rank {self._rank} lost the job's store: {str(error).splitlines()[0]}")

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main)  # noqa: SLF001  (documented, for debuggers such as this one)

    def _end(self, store: distributed.TCPStore, line: str) -> None:  # type: ignore[name-defined]
        """The first rank to come here decides what all say."""
        if store.add("hung", 1) == 1:
            store.set("hung/line", line)
        self._leave(store.get("hung/line").decode())

    def _diagnosis(self, store: distributed.TCPStore) -> str:  # type: ignore[name-defined]
        beats = {rank: _beat(store, rank) for rank in range(self._layout.world)}
        phases = {rank: json.loads(beat)[-1] for rank, beat in beats.items() if beat}
        holding = [f"{self._name(rank)} is in {phase}" for rank, phase in phases.items() if phase != "communication"]
        who = "; ".join(holding[:4]) if holding else "every rank waits for the others in communication"
        return f"step {self._step + 1} has not ended within {self._patience:g} s: {who}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._layout.coordinates(rank)})"


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _beat(store: distributed.TCPStore, rank: int) -> str:  # type: ignore[name-defined]
    """What a rank has told last; nothing before its first."""
    return store.get(_key(rank)).decode() if store.check([_key(rank)]) else ""


def _leave(line: str) -> None:
    """End this process at once: its main thread may be anywhere."""
    say(line)
    os._exit(HUNG)
