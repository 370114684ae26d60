"""Ends a job that hangs, naming the rank that holds it up and what that rank is doing.

In each rank a thread writes a heartbeat to the job's store every few seconds, and watches the next rank's. It holds the
step, the phase that the loop has declared (`Watchdog.during`), how much of its patience is left, and what the main
thread's stack shows: data, communication, forward or backward. Once half of a step's patience is gone it also holds a
summary of the flight recorder. There is no time of day in it: each rank compares its own monotonic clock alone.

    a heartbeat is missing for half a minute     that process is stopped, or its machine is gone
    the store does not answer for a minute       this rank's machine is cut off
    a step or a phase outlasts its patience      the ranks that have not entered a collective hold up the others;
                                                 without a flight recorder, those whose stack is not in communication

Patience is ``guard.patience`` for a step, and each phase has its own. Until the first step is done it is at least
``start_patience``, as that step compiles kernels and makes communicators. A rank whose patience is over does not end
the job while those that hold it up have patience left. Collectives time out `engine.process.MARGIN` after the longest
patience, so that the watchdog speaks before NCCL or gloo aborts.

The first rank to notice reads all heartbeats and writes one line to the store: a diagnosis costs O(ranks) in all. It
prints the line, as others do that read it before they lose a peer, and exits with `HUNG_STATUS`, by which the launcher
knows a hang. Training is not slowed. What the store holds may be a stranger's (`rendezvous`), so a heartbeat or a line
that no watchdog writes is passed over.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, get_args

from mtnlg_model.console import say
from mtnlg_parallel import rendezvous
from mtnlg_parallel.environment import this_rank

from .flight_recorder import COLLECTIVE, MISSED, Trace, entered_by_all, local_trace, missing_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from torch.distributed import Store  # type: ignore[attr-defined]

    from mtnlg_parallel.layout import Layout

HUNG_STATUS: Final = 71
"""Exit status of a rank that ended because the job hung."""

SILENCE_SECONDS: Final = 30.0
STORE_TIMEOUT: Final = timedelta(seconds=30)
MAX_NAMED: Final = 4
MAX_BYTES: Final = 1 << 16
"""Size of a heartbeat; a longer one is not read."""

Phase = Literal["validation", "saving a checkpoint", "publishing a checkpoint", "loading a checkpoint"]
"""What a rank may declare that it is at, beside a step."""

PHASES: Final = (
    ("communication", ("torch/distributed/", "deepspeed/comm/", "deepspeed/runtime/pipe/p2p")),
    ("data", ("mtnlg_parallel/training/samples.py", "mtnlg_data/")),
    ("backward", ("torch/autograd/",)),
)
"""The source files of each phase. The innermost frame in one of them names the phase; with none it is forward."""

_STACKS: Final = ("forward", *(phase for phase, _ in PHASES))
_RANK: Final = r"rank \d+ \(tp \d+, pp \d+, dp \d+\)"
_RANKS: Final = rf"{_RANK}(?:, {_RANK})*(?:, and \d+ more)?"
_DOING: Final = "|".join((*get_args(Phase), *(f"in {stack}" for stack in _STACKS)))
_CULPRIT: Final = rf"{_RANK} is (?:{_DOING})(?: and (?:{MISSED}))?"
_LINE: Final = re.compile(
    rf"{_RANKS} (?:has|have) answered nothing for \d+ s|"
    rf"(?:{'|'.join(get_args(Phase))}|step \d+|the first step) has not ended within [\d.e+]+ s: "
    rf"(?:{_RANKS} (?:has|have) not begun, or ended|every rank waits for the others in communication|"
    rf"every rank is (?:{_DOING})|"
    rf"all ranks have entered {COLLECTIVE}, which does not end: a GPU or the network hangs|"
    rf"{_CULPRIT}(?:; {_CULPRIT})*(?:; and \d+ more)?)",
    re.ASCII,
)
"""The lines that `_judge` and `_end_silent` write."""


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
    """What this rank is at: since when, for how long it may be, and its declared phase; "" in a step."""

    began: float
    patience: float
    phase: str

    @property
    def left(self) -> float:
        """Seconds of patience left."""
        return self.began + self.patience - time.monotonic()


class Heartbeat(NamedTuple):
    """A rank's state as the store holds it; ``stack`` is `phase_of` its main thread."""

    number: int
    step: int
    phase: str
    left: float
    stack: str
    trace: Trace | None

    @classmethod
    def parse(cls, text: bytes) -> Heartbeat | None:
        """The heartbeat that another rank has written; None of what is not one."""
        try:
            number, step, phase, left, stack, data = json.loads(text[:MAX_BYTES])
            trace = None if data is None else Trace.parse(data)
            heartbeat = cls(int(number), int(step), phase, float(left), stack, trace)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        known = phase in {"", *get_args(Phase)} if isinstance(phase, str) else False
        return heartbeat if known and stack in _STACKS and math.isfinite(heartbeat.left) else None

    @property
    def doing(self) -> str:
        """What the rank does, after "is"."""
        return self.phase or f"in {self.stack}"


class _Judged(NamedTuple):
    """How often this rank has asked to be the judge of a clock that ran out, and when it asks again."""

    clock: Clock | None
    attempts: int
    again: float


class Watchdog:
    """Watches the thread that starts it, and the next rank, from a thread of its own.

    ``patience`` is a step's, in seconds; until the first step is done the longer of it and ``start_patience`` counts.
    """

    def __init__(self, layout: Layout, rank: int, patience: float, start_patience: float = 3600.0) -> None:
        self._layout, self._rank, self._patience = layout, rank, patience
        self._silence = min(SILENCE_SECONDS, patience)
        self._interval = min(5.0, self._silence / 6)
        self._step, self._any_step_done, self._count = 0, False, 0
        self._clock = Clock(time.monotonic(), max(patience, start_patience), "")
        self._neighbour, self._heard = (rank + 1) % layout.world, (b"", time.monotonic())
        self._judged = _Judged(None, 0, 0.0)
        self._closed, self._main = threading.Event(), 0
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._watch, self._watch_store)]

    def start(self) -> None:
        """Start watching the calling thread. The job's store must be up."""
        self._main = threading.get_ident()
        self._clock = self._clock._replace(began=time.monotonic())
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop watching. A thread that waits for a lost store is left behind."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    def beat(self, step: int) -> None:
        """Report that ``step`` is done, which restarts the clock. Not inside a phase."""
        self._step, self._any_step_done = step, True
        self._clock = Clock(time.monotonic(), self._patience, "")

    @contextmanager
    def during(self, phase: Phase, patience: float) -> Iterator[None]:
        """Name what this rank is at, such as "publishing a checkpoint", which may take ``patience`` seconds.

        The clock restarts when the phase begins and when it ends. All ranks should enter it: those that wait inside for
        another are told apart by their stacks. Phases may be nested; only the watched thread declares them.
        """
        outer, self._clock = self._clock, Clock(time.monotonic(), patience, phase)
        try:
            yield
        finally:
            self._clock = outer._replace(began=time.monotonic())

    def _watch(self) -> None:
        # Here, so that the launcher can import this module without torch.
        from torch.distributed import DistError  # noqa: PLC0415

        try:
            store = _connect(self._layout.world)
            while True:
                self._write_heartbeat(store)
                if self._closed.wait(self._interval):
                    store.set(_key(self._rank), "")  # so that the silence that follows alarms nobody
                    return
                self._look(store)
        except DistError as error:  # the store ends with the job
            if not self._closed.wait(self._interval):
                self._exit_cut_off(str(error).splitlines()[0])

    def _watch_store(self) -> None:
        """End this rank where the store stays silent, which TCP notices after a quarter of an hour.

        Rounds are counted, not seconds: a process that was stopped for a while has not lost the store.
        """
        count, rounds = -1, 0
        while not self._closed.wait(self._interval):
            count, rounds = self._count, rounds + 1 if count == self._count else 0
            if rounds * self._interval > 2 * self._silence:
                self._exit_cut_off(f"no answer for {rounds * self._interval:.0f} s")

    def _exit_cut_off(self, reason: str) -> NoReturn:
        place = this_rank()
        _exit_hung(f"{_name(self._layout, self._rank)} lost the job's store at {place.address}:{place.port}: {reason}")

    def _look(self, store: Store) -> None:
        """End this rank with the job, or the job where it hangs."""
        rendezvous.shut()
        if store.check(["line"]) and (line := store.get("line").decode("ascii", "replace")) and _LINE.fullmatch(line):
            _exit_hung(line)
        heartbeat = _read(store, self._neighbour)
        if heartbeat != self._heard[0] or not heartbeat:  # without one it has not begun, or has ended
            self._heard = heartbeat, time.monotonic()
        if (silence := time.monotonic() - self._heard[1]) > self._silence:
            self._end_silent(store, silence)
        elif self._clock.left < 0:
            self._judge(store)

    def _write_heartbeat(self, store: Store) -> None:
        clock = self._clock
        stuck = time.monotonic() - clock.began > self._patience / 2
        trace = local_trace(self._layout, self._rank) if stuck else None
        stack = phase_of(sys._current_frames().get(self._main))  # noqa: SLF001  (documented, for debuggers)
        heartbeat = Heartbeat(self._count, self._step, clock.phase, round(clock.left, 1), stack, trace)
        store.set(_key(self._rank), json.dumps(heartbeat))
        self._count += 1

    def _judge(self, store: Store) -> None:
        """End the job if no other rank does, and those that hold it up have no patience left.

        Of each attempt one rank is the judge. The others expect its line, and try again after their patience.
        """
        clock, now = self._clock, time.monotonic()
        if clock != self._judged.clock:
            self._judged = _Judged(clock, 0, now)
        if now < self._judged.again:
            return
        attempt = self._judged.attempts + 1
        self._judged = _Judged(clock, attempt, now + max(clock.patience, self._silence))
        if store.add(f"judge/{self._step}/{clock.phase}/{attempt}", 1) > 1:
            return
        line, patience_left = diagnose(self._layout, _read_all(store, self._layout.world))
        if patience_left > 0:
            self._judged = _Judged(clock, attempt, now + patience_left + self._interval)
            return
        what = clock.phase or (f"step {self._step + 1}" if self._any_step_done else "the first step")
        self._end_job(store, f"{what} has not ended within {clock.patience:g} s: {line}")

    def _end_silent(self, store: Store, seconds: float) -> None:
        """End the job, naming all ranks whose heartbeat stands still: often those of one machine."""
        before = _read_all(store, self._layout.world)
        for _ in range(3):  # each rank writes twice meanwhile
            self._write_heartbeat(store)
            self._closed.wait(self._interval)
        after = _read_all(store, self._layout.world)
        silent = [rank for rank in before if before[rank] and before[rank] == after[rank]]
        if self._neighbour in silent:
            names = _shortened([_name(self._layout, rank) for rank in silent])
            have = "have" if len(silent) > 1 else "has"
            self._end_job(store, f"{names} {have} answered nothing for {seconds:.0f} s")

    def _end_job(self, store: Store, line: str) -> NoReturn:
        """Exit with the line of the first rank that called this."""
        first = store.compare_set("line", "", line).decode("ascii", "replace")
        _exit_hung(first if _LINE.fullmatch(first) else line)


def diagnose(layout: Layout, heartbeats: dict[int, Heartbeat | None]) -> tuple[str, float]:
    """Who holds up the others, and the seconds of patience that all of these have left.

    The flight recorder comes first, except on a rank whose stack shows that it waits, as gloo records no receives. A
    stack is evidence of data and of a declared phase; in forward and backward ranks on CUDA wait, too.
    """
    if absent := [_name(layout, rank) for rank, heartbeat in heartbeats.items() if heartbeat is None]:
        return f"{_shortened(absent)} {'have' if len(absent) > 1 else 'has'} not begun, or ended", 0.0
    known = {rank: heartbeat for rank, heartbeat in heartbeats.items() if heartbeat}
    traces = {rank: heartbeat.trace for rank, heartbeat in known.items()}
    busy = {rank: heartbeat for rank, heartbeat in known.items() if heartbeat.stack != "communication"}
    missed = {rank: text for rank, text in missing_ranks(layout, traces).items() if rank in busy}
    evident = [rank for rank, heartbeat in busy.items() if heartbeat.phase or heartbeat.stack == "data"]
    if not missed and len(evident) in {0, len(known)}:
        if collective := entered_by_all(layout, traces):
            return f"all ranks have entered {collective}, which does not end: a GPU or the network hangs", 0.0
        if not busy:
            return "every rank waits for the others in communication", 0.0
        places = {heartbeat.doing for heartbeat in known.values()}
        if len(known) > len(places) == 1:
            return f"every rank is {places.pop()}", 0.0
    culprits = list(missed) or evident or list(busy)
    lines = [
        f"{_name(layout, rank)} is {busy[rank].doing}" + (f" and {missed[rank]}" if rank in missed else "")
        for rank in culprits
    ]
    return _shortened(lines, "; "), min(busy[rank].left for rank in culprits)


def _name(layout: Layout, rank: int) -> str:
    return f"rank {rank} ({layout.coordinates(rank)})"


def _shortened(items: list[str], separator: str = ", ") -> str:
    """The first few items, and how many more there are."""
    more = len(items) - MAX_NAMED
    return separator.join(items[:MAX_NAMED]) + (f"{separator}and {more} more" if more > 0 else "")


def _key(rank: int) -> str:
    return f"beat/{rank}"


def _connect(world: int) -> Store:
    """The watchdog's part of the job's store, by this rank's last connection to it."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined] # noqa: PLC0415  (as in _watch)

    store = rendezvous.connect(STORE_TIMEOUT)
    rendezvous.arrive(store, world)
    return PrefixStore("watchdog", store)


def _read(store: Store, rank: int) -> bytes:
    """The last heartbeat of a rank; empty before its first."""
    return store.get(_key(rank)) if store.check([_key(rank)]) else b""


def _read_all(store: Store, world: int) -> dict[int, Heartbeat | None]:
    """The last heartbeat of every rank, in two calls where all have one."""
    keys = [_key(rank) for rank in range(world)]
    if store.check(keys):
        return {rank: Heartbeat.parse(text) for rank, text in enumerate(store.multi_get(keys))}
    return {rank: Heartbeat.parse(_read(store, rank)) for rank in range(world)}


def _exit_hung(line: str) -> NoReturn:
    """End this process at once: its main thread may be blocked anywhere."""
    say(line)
    os._exit(HUNG_STATUS)
