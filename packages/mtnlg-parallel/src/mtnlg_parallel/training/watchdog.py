"""Ends a job that hangs, and names the rank that holds it up and what that rank is doing.

In each rank a thread writes a heartbeat to the job's store every few seconds. It contains the step, the phase that the
loop has declared (`Watchdog.during`), the remaining patience, and what the main thread's stack shows: data,
communication, forward or backward. Once half of a step's patience is used up, it also contains a summary of the flight
recorder. It contains no time of day. Rank 0's thread reads the heartbeats of all ranks, the others' only rank 0's:

    a heartbeat is missing for half a minute     that process is stopped, or its machine is gone
    the store does not answer for a minute       this rank's machine is cut off
    a step or a phase exceeds its patience       the ranks that have not entered a collective hold up the others;
                                                 without a flight recorder, those whose stack is not in communication

Patience is ``guard.patience`` for a step, and each phase has its own. Until the first step is done it is at least
``start_patience``, since that step compiles kernels and creates communicators. Rank 0 does not end the job while the
ranks that hold it up have patience left. Collectives time out `engine.process.MARGIN` after the longest patience, so
that the watchdog reports before NCCL or gloo aborts.

The verdict is written to the store. Each rank that reads it writes it into its failure file and exits with `Exit.HUNG`.
The watchdog does not slow training.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn

from mtnlg_model.console import say
from mtnlg_parallel import rendezvous
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.statuses import Exit, Failed, write_failure

from .flight_recorder import Trace, local_trace, missing_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import FrameType

    from torch.distributed import Store  # type: ignore[attr-defined]

    from mtnlg_parallel.layout import Layout

SILENCE_SECONDS: Final = 30.0
STORE_TIMEOUT: Final = timedelta(seconds=30)
MAX_NAMED: Final = 4
FRESH_ROUNDS: Final = 3
"""A heartbeat unchanged for fewer rounds than this is fresh: its rank may just write at the pace of its readers."""

Phase = Literal["validation", "saving a checkpoint", "publishing a checkpoint", "loading a checkpoint"]
"""Phases outside a step that a rank may declare."""

PHASES: Final = (
    (
        "communication",
        ("torch/distributed/", "mtnlg_parallel/waiting.py", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p"),
    ),
    ("data", ("mtnlg_parallel/training/samples.py", "mtnlg_data/")),
    ("backward", ("torch/autograd/",)),
)
"""Source files of each phase. The innermost frame in any of them determines the phase; without one it is forward."""


def phase_of(frame: FrameType | None) -> str:
    """The phase of a thread whose innermost frame is ``frame``."""
    while frame:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        for phase, files in PHASES:
            if any(file in path for file in files):
                return phase
        frame = frame.f_back
    return "forward"


class Clock(NamedTuple):
    """Clock of this rank's step or phase: start time, patience in seconds, and declared phase, "" in a step."""

    began: float
    patience: float
    phase: str

    @property
    def left(self) -> float:
        """Seconds of patience left."""
        return self.began + self.patience - time.monotonic()


class Heartbeat(NamedTuple):
    """A rank's state as written to the store; ``stack`` is `phase_of` its main thread."""

    number: int
    step: int
    phase: str
    left: float
    stack: str
    node: str
    trace: Trace | None

    @classmethod
    def parse(cls, text: bytes) -> Heartbeat | None:
        """Parse a rank's heartbeat; None before its first and after its end."""
        if not text:
            return None
        heartbeat = cls(*json.loads(text))
        return heartbeat._replace(trace=heartbeat.trace and Trace(*heartbeat.trace))

    @property
    def doing(self) -> str:
        """What the rank is doing, as text to follow "is"."""
        return self.phase or f"in {self.stack}"


class Verdict(NamedTuple):
    """Which ranks hold up the job: a line, their node if all are on one, and the least patience left, in seconds."""

    line: str
    node: str = ""
    left: float = 0.0


class Watchdog:
    """Watches, from its own thread, the thread that starts it and rank 0; on rank 0, all ranks.

    ``patience`` is the seconds that a step may take; until the first step is done, the larger of it and
    ``start_patience`` applies. A verdict is written to the rank's failure file in ``out``.
    """

    def __init__(self, layout: Layout, rank: int, out: Path, patience: float, start_patience: float = 3600.0) -> None:
        self._layout, self._rank, self._out, self._patience = layout, rank, out, patience
        self._silence = min(SILENCE_SECONDS, patience)
        self._interval = min(5.0, self._silence / 6)
        self._step, self._any_step_done, self._count = 0, False, 0
        self._clock = Clock(time.monotonic(), max(patience, start_patience), "")
        self._heard = dict.fromkeys([0] if rank else range(layout.world), (b"", 0))  # and for how many rounds
        self._closed, self._main = threading.Event(), 0
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._watch_store)]

    def start(self) -> None:
        """Start watching the calling thread. The job's store must be up."""
        self._main = threading.get_ident()
        self._clock = self._clock._replace(began=time.monotonic())
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop watching. A thread that still waits for a lost store is abandoned."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    def beat(self, step: int) -> None:
        """Report that ``step`` is done, which restarts the clock. Must not be called inside a phase."""
        self._step, self._any_step_done = step, True
        self._clock = Clock(time.monotonic(), self._patience, "")

    @contextmanager
    def during(self, phase: Phase, patience: float) -> Iterator[None]:
        """Declare a phase, such as "publishing a checkpoint", which may take ``patience`` seconds.

        The clock restarts when the phase begins and when it ends. All ranks should enter it: the stacks of those that
        wait in it for another show that they wait. Phases may be nested; only the watched thread declares them.
        """
        outer, self._clock = self._clock, Clock(time.monotonic(), patience, phase)
        try:
            yield
        finally:
            self._clock = outer._replace(began=time.monotonic())

    def _watch(self) -> None:
        # Imported here, so that the launcher can import this module without torch.
        from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined] # noqa: PLC0415

        try:
            store = PrefixStore("watchdog", rendezvous.connect(STORE_TIMEOUT))
            while True:
                self._write_heartbeat(store)
                if self._closed.wait(self._interval):
                    store.set(_key(self._rank), "")  # so that the silence that follows alarms nobody
                    return
                self._look(store)
        except DistError as error:  # the store ends with the job
            if not self._closed.wait(self._interval):
                self._end_cut_off(str(error).splitlines()[0])

    def _watch_store(self) -> None:
        """End this rank if the store does not answer, which TCP would notice only after a quarter of an hour.

        Counts rounds instead of seconds, since a process that was suspended for a while has not lost the store.
        """
        count, rounds = -1, 0
        while not self._closed.wait(self._interval):
            count, rounds = self._count, rounds + 1 if count == self._count else 0
            if rounds * self._interval > 2 * self._silence:
                self._end_cut_off(f"no answer for {rounds * self._interval:.0f} s")

    def _end_cut_off(self, reason: str) -> NoReturn:
        place = this_rank()
        name = _name(self._layout, self._rank)
        self._end(Verdict(f"{name} lost the job's store at {place.address}:{place.port}: {reason}"))

    def _look(self, store: Store) -> None:
        """End this rank if the job has ended, or the job if it hangs."""
        if store.check(["verdict"]):
            self._end(Verdict(*json.loads(store.get("verdict"))))
        for rank, text in _read(store, list(self._heard)).items():
            before, rounds = self._heard[rank]
            self._heard[rank] = text, rounds + 1 if text and text == before else 0  # "": not begun, or ended
        rounds = max(rounds for _, rounds in self._heard.values())
        if rounds * self._interval > self._silence:
            self._end_silent(store, rounds)
        elif self._rank == 0 and self._clock.left < 0 and rounds < FRESH_ROUNDS:  # else one may turn out to be silent
            self._judge(store)

    def _write_heartbeat(self, store: Store) -> None:
        clock = self._clock
        stuck = time.monotonic() - clock.began > self._patience / 2
        trace = local_trace() if stuck else None
        stack = phase_of(sys._current_frames().get(self._main))  # noqa: SLF001  (documented, for debuggers)
        node = this_rank().node
        heartbeat = Heartbeat(self._count, self._step, clock.phase, round(clock.left, 1), stack, node, trace)
        store.set(_key(self._rank), json.dumps(heartbeat))
        self._count += 1

    def _judge(self, store: Store) -> None:
        """End the job unless the ranks that hold it up have patience left."""
        heartbeats = {rank: Heartbeat.parse(text) for rank, (text, _) in self._heard.items()}
        verdict = diagnose(self._layout, heartbeats)
        if verdict.left <= 0:
            clock = self._clock
            what = clock.phase or (f"step {self._step + 1}" if self._any_step_done else "the first step")
            line = f"{what} has not ended within {clock.patience:g} s: {verdict.line}"
            self._end_job(store, verdict._replace(line=line))

    def _end_silent(self, store: Store, rounds: int) -> NoReturn:
        """End the job, naming all ranks whose heartbeat has stopped: often all ranks of one machine."""
        silent = {rank: text for rank, (text, count) in self._heard.items() if count > rounds - FRESH_ROUNDS}
        names = _shortened([_name(self._layout, rank) for rank in silent])
        have = "have" if len(silent) > 1 else "has"
        line = f"{names} {have} answered nothing for {rounds * self._interval:.0f} s"
        self._end_job(store, Verdict(line, _node(map(Heartbeat.parse, silent.values()))))

    def _end_job(self, store: Store, verdict: Verdict) -> NoReturn:
        """Exit with the verdict of the rank that called this first."""
        self._end(Verdict(*json.loads(store.compare_set("verdict", "", json.dumps(verdict)))))

    def _end(self, verdict: Verdict) -> NoReturn:
        write_failure(self._out, self._rank, Failed(verdict.line, Exit.HUNG, verdict.node))
        _exit_hung(verdict.line)


def diagnose(layout: Layout, heartbeats: dict[int, Heartbeat | None]) -> Verdict:
    """Find the ranks that hold up the others.

    The flight recorder takes precedence, except for a rank whose stack shows that it waits, since gloo records no
    receives. A stack in data, or in a declared phase, is evidence; one in forward or backward is not, since ranks on
    CUDA may wait there too.
    """
    if absent := [_name(layout, rank) for rank, heartbeat in heartbeats.items() if heartbeat is None]:
        return Verdict(f"{_shortened(absent)} {'have' if len(absent) > 1 else 'has'} not begun, or ended")
    reported = {rank: heartbeat for rank, heartbeat in heartbeats.items() if heartbeat}
    traces = {rank: heartbeat.trace for rank, heartbeat in reported.items() if heartbeat.trace}
    busy = {rank: heartbeat for rank, heartbeat in reported.items() if heartbeat.stack != "communication"}
    missing, collective = missing_ranks(traces)
    missed = {rank: text for rank, text in missing.items() if rank in busy}
    evident = [rank for rank, heartbeat in busy.items() if heartbeat.phase or heartbeat.stack == "data"]
    if not missed and len(evident) in {0, len(reported)}:
        if collective:
            return Verdict(f"all ranks have entered {collective}, which does not end: a GPU or the network hangs")
        if not busy:
            return Verdict("every rank waits for the others in communication")
        places = {heartbeat.doing for heartbeat in reported.values()}
        if len(reported) > len(places) == 1:
            return Verdict(f"every rank is {places.pop()}")
    culprits = list(missed) or evident or list(busy)
    lines = [
        f"{_name(layout, rank)} is {busy[rank].doing}" + (f" and {missed[rank]}" if rank in missed else "")
        for rank in culprits
    ]
    remaining = min(busy[rank].left for rank in culprits)
    return Verdict(_shortened(lines, "; "), _node(busy[rank] for rank in culprits), remaining)


def _node(heartbeats: Iterable[Heartbeat | None]) -> str:
    """The node of these ranks; "" if they are on several."""
    nodes = {heartbeat.node for heartbeat in heartbeats if heartbeat}
    return nodes.pop() if len(nodes) == 1 else ""


def _name(layout: Layout, rank: int) -> str:
    return f"rank {rank} ({layout.coordinates(rank)})"


def _shortened(items: list[str], separator: str = ", ") -> str:
    """The first `MAX_NAMED` items, and how many more there are, as text."""
    more = len(items) - MAX_NAMED
    return separator.join(items[:MAX_NAMED]) + (f"{separator}and {more} more" if more > 0 else "")


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _read(store: Store, ranks: list[int]) -> dict[int, bytes]:
    """Read the last heartbeats, empty before a rank's first; takes two calls if all ranks have one."""
    keys = [_key(rank) for rank in ranks]
    if store.check(keys):
        return dict(zip(ranks, store.multi_get(keys), strict=True))
    return {rank: store.get(key) if store.check([key]) else b"" for rank, key in zip(ranks, keys, strict=True)}


def _exit_hung(line: str) -> NoReturn:
    """End this process at once: its main thread may be blocked anywhere."""
    say(line)
    os._exit(Exit.HUNG)
