"""Ends a job that hangs, naming the rank that holds it up and what that rank is doing.

In each rank a thread writes a heartbeat to the job's store every few seconds: a count, the step, and the phase (data,
checkpoint, communication, forward or backward), read off the main thread's stack. It also watches the next rank's.

    a heartbeat is missing for half a minute        that process is stopped, or its machine is gone
    a step takes longer than ``guard.patience``     the ranks that are not in communication hold up the others

The first rank to notice writes one line to the store. Every rank prints it and exits with `HUNG_STATUS`, by which the
launcher knows a hang. Training itself is not slowed.
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

from mtnlg_model.console import say

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from mtnlg_parallel.layout import Layout

HUNG_STATUS: Final = 71
"""Exit status of a rank that ended because the job hung."""

SILENCE_SECONDS: Final = 30.0
STORE_TIMEOUT: Final = timedelta(seconds=30)

PHASES: Final = (
    ("communication", ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p")),
    ("data", ("mtnlg_parallel/training/samples.py", "mtnlg_data/")),
    (
        "checkpoint",
        ("mtnlg_parallel/training/checkpointing.py", "mtnlg_parallel/engine/zero.py", "mtnlg_model/checkpoint/"),
    ),
    ("backward", ("torch/autograd/",)),
)
"""The source files of each phase. The innermost frame in one of them names the phase; with none it is forward."""


def phase_of(frame: FrameType | None) -> str:
    """The phase of a thread whose innermost frame is ``frame``."""
    while frame:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        for phase, files in PHASES:
            if any(file in path for file in files):
                return phase
        frame = frame.f_back
    return "forward"


class Watchdog:
    """Watches the thread that enters it, and the next rank, from a thread of its own."""

    def __init__(self, layout: Layout, rank: int, patience: float) -> None:
        self._layout, self._rank, self._patience = layout, rank, patience
        self._silence = min(SILENCE_SECONDS, patience)
        self._step, self._step_began = 0, time.monotonic()
        self._first_step_done, self._closed = False, threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def beat(self, step: int) -> None:
        """Report that ``step`` is done, which restarts the patience. The first step may take any time."""
        self._step, self._step_began, self._first_step_done = step, time.monotonic(), True

    def _watch(self) -> None:
        # Here, so that the launcher can import this module without torch.
        from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined] # noqa: PLC0415

        interval = min(5.0, self._silence / 6)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            store = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT)
            neighbour = (self._rank + 1) % self._layout.world
            last_heartbeat, heard_at = "", time.monotonic()
            for count in itertools.count():
                store.set(_key(self._rank), json.dumps([count, self._step, phase_of(self._main_frame())]))
                if self._closed.wait(interval):
                    return
                now, heartbeat = time.monotonic(), _heartbeat(store, neighbour)
                if heartbeat != last_heartbeat or not heartbeat:  # without a first one it may be reading its checkpoint
                    last_heartbeat, heard_at = heartbeat, now
                if now - heard_at > self._silence:
                    self._end_job(store, f"{self._name(neighbour)} has answered nothing for {now - heard_at:.0f} s")
                elif self._first_step_done and now - self._step_began > self._patience:
                    self._end_job(store, self._diagnosis(store))
        except DistError as error:  # the store ends with the job
            if not self._closed.wait(interval):
                _exit_hung(f"rank {self._rank} lost the job's store: {str(error).splitlines()[0]}")

    def _main_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main)  # noqa: SLF001  (documented, for debuggers such as this one)

    def _end_job(self, store: TCPStore, line: str) -> None:
        """Exit with the line of the first rank that called this."""
        if store.add("hung", 1) == 1:
            store.set("hung/line", line)
        _exit_hung(store.get("hung/line").decode())

    def _diagnosis(self, store: TCPStore) -> str:
        heartbeats = {rank: _heartbeat(store, rank) for rank in range(self._layout.world)}
        phases = {rank: json.loads(heartbeat)[-1] for rank, heartbeat in heartbeats.items() if heartbeat}
        culprits = [f"{self._name(rank)} is in {phase}" for rank, phase in phases.items() if phase != "communication"]
        who = "; ".join(culprits[:4]) if culprits else "every rank waits for the others in communication"
        return f"step {self._step + 1} has not ended within {self._patience:g} s: {who}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._layout.coordinates(rank)})"


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _heartbeat(store: TCPStore, rank: int) -> str:
    """The last heartbeat of a rank; empty before its first."""
    return store.get(_key(rank)).decode() if store.check([_key(rank)]) else ""


def _exit_hung(line: str) -> None:
    """End this process at once: its main thread may be blocked anywhere."""
    say(line)
    os._exit(HUNG_STATUS)
