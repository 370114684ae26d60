"""Starts a job's ranks on this machine, shows their progress, and ends them together.

The parent hosts the rendezvous store on a free port, so that two jobs never want the same one. Ranks die with the
parent. When one rank fails, the parent ends the others at once, names it in one line, and starts all again from the
newest checkpoint where `supervise.decide` says so. The signals that stop a run are passed on to the
ranks, which end the step, write a checkpoint and exit.

Signals are only recorded when they arrive, and acted on between two steps.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, NamedTuple

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.console import Failure, IoFailure, UsageFailure, progress, say
from mtnlg_model.files import FILE_MODE
from mtnlg_parallel.environment import Environment, this_rank
from mtnlg_parallel.record.history import append, number, read_events
from mtnlg_parallel.record.metrics import Follower, progress_line
from mtnlg_parallel.record.run_dir import CHECKPOINTS, LOGS, SUMMARY, RunState
from mtnlg_parallel.rendezvous import HostedStore
from mtnlg_parallel.training.watchdog import HUNG_STATUS

from .supervise import CRASHED, PERMANENT, STOP_SIGNALS, Failed, decide, record_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from mtnlg_model.console import Advance
    from mtnlg_parallel.layout import Layout


PEER_FAILED = 70
"""Exit status of a rank that ended because another rank had."""

ERROR_PREFIX = "cli.py: "
"""What a rank's command writes before the line by which it fails."""

RESUME_HINT = "the same command resumes from the newest checkpoint"

RANKS_ON_CPU = 64
"""Ranks that a machine takes on its CPU, or one for each of more cores; each is a process of some 250 MB."""

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0


class PeerFailure(Failure):
    """A collective failed because another rank is gone."""

    exit_status = PEER_FAILED


class Rank(NamedTuple):
    """A rank on this machine; what it prints is in ``log`` from byte ``begin`` on."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    begin: int = 0


class AttemptFailure(Failure):
    """The ranks ended before the run's end, and nobody had told the launcher to stop; ``logs`` says where to look."""

    def __init__(self, reason: str, status: int, logs: str) -> None:
        super().__init__(reason)
        self.exit_status, self.logs = status, logs


def run_local(  # noqa: PLR0917  (two of them are the run's state, now and at a restart)
    layout: Layout,
    command: Sequence[str],
    out: Path,
    state: RunState,
    prepare_again: Callable[[], object],
    max_restarts: int,
) -> int:
    """Run ``command`` once per rank until the run is complete; where a rank fails, restart all as `decide` says.

    ``state`` is that of the run prepared in ``out``, which ``prepare_again`` prepares for a restart. Returns 0, or the
    signal that stopped the run. Raises ``Failure`` with one line where ranks fail and are not restarted.
    """
    failures: list[Failed] = []
    with (
        record_signals(*STOP_SIGNALS, signal.SIGINT) as signals,
        progress("training", state.steps - state.step, "steps") as advance,
        closing(Display(out, state.step, advance)) as display,
    ):
        while True:
            try:
                if failures:
                    prepare_again()
                display.attempt_begins()
                return _run_attempt(layout, command, out, display, signals, restarts=len(failures))
            except AttemptFailure as failure:
                if (out / SUMMARY).exists():  # the run was complete before
                    return 0
                failures.append(record_failure(out, str(failure), failure.exit_status))
                logs = failure.logs
            except OSError as error:  # of the run's folder, or in starting a process
                reason = f"{error.filename or out}: {error.strerror}, while the ranks were started"
                failures.append(record_failure(out, reason, IoFailure.exit_status))
                logs = f"logs are in {out / LOGS}"
            decision = decide(failures, max_restarts)
            if decision.action == "end" or signals:
                hint = "" if failures[-1].status in PERMANENT else f"; {RESUME_HINT}"  # else its reason says how
                raise Failure(f"{decision.reason or failures[-1].reason}; {logs}{hint}")
            wait = f" in {decision.pause:.0f} s" if decision.pause else ""
            start = f"restarting{wait} ({len(failures)} of {max_restarts})"
            say(f"{failures[-1].reason}; {start}")
            signals.wait(decision.pause)
            if signals:
                return _stop_without_ranks(out, signals[0])


def _newest_step(out: Path) -> int:
    with suppress(OSError):
        if newest := latest(out / CHECKPOINTS):
            return int(newest.name.removeprefix("step-"))
    return 0


def _stop_without_ranks(out: Path, number: int) -> int:
    """Record that a signal stopped the run, where rank 0 cannot; returns it, or raises what Ctrl-C does."""
    with suppress(OSError):
        append(out, "stopped", step=_newest_step(out), signal=number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    return number


def _run_attempt(  # noqa: PLR0917  (as run_local)
    layout: Layout, command: Sequence[str], out: Path, display: Display, signals: Signals, restarts: int
) -> int:
    """Run ``command`` once per rank until all have exited; returns 0 or the signal that stopped the run."""
    store = HostedStore()
    ranks: list[Rank] = []

    def update() -> None:
        display.update()
        store.shut_if_all_are_here(restarts)

    try:
        for number in range(layout.world):  # one by one: if one fails to start, those before it are ended
            ranks += [start_rank(number, layout, command, store, out / LOGS, restarts)]
        return _watch_ranks(ranks, layout, out, update, signals)
    finally:
        end_ranks(ranks)
        store.close()


def check_ranks(layout: Layout, device: Literal["auto", "cpu"] = "auto") -> None:
    """Raise ``UsageFailure`` where the layout has more ranks than this machine has GPUs, or than its CPU takes."""
    import torch  # noqa: PLC0415  (slow to import; the commands that need no torch share this module)

    gpus = torch.cuda.device_count() if device == "auto" and torch.cuda.is_available() else 0
    if layout.world <= (gpus or max(RANKS_ON_CPU, cores())):
        return
    if gpus:
        lacks, more = f"GPUs and this machine has {gpus}", ", or, to train, --device cpu"
    else:
        lacks, more = f"ranks and this machine's CPU takes {max(RANKS_ON_CPU, cores())}", ""
    hint = f"use a smaller layout, or torchrun over several machines{more}"
    raise UsageFailure(f"layout {layout} needs {layout.world:,} {lacks}; {hint}")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def start_rank(  # noqa: PLR0917  (which rank of what, and where)
    number: int, layout: Layout, command: Sequence[str], store: HostedStore, logs: Path, restarts: int = 0
) -> Rank:
    """Start ``command`` as a rank that logs to ``logs``/rank-N.log and dies with this process (`die_with_parent`).

    The log is a new one for a first start, and goes on after ``restarts``.
    """
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **rank_environment(number, layout, store, restarts, parent=os.getpid())}
    log = logs / f"rank-{number}.log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if restarts else os.O_TRUNC)
    with os.fdopen(os.open(log, flags, FILE_MODE), "ab" if restarts else "wb") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        return Rank(number, process, log, file.tell())


def rank_environment(
    number: int, layout: Layout, store: HostedStore, restarts: int = 0, parent: int = 0
) -> dict[str, str]:
    """The variables of a rank on this machine: its `Environment`, the loopback interface, its share of the cores."""
    place = Environment(
        rank=number,
        world=layout.world,
        local_rank=number,
        local_world=layout.world,
        address=store.address,
        port=store.port,
        agent_store=True,
        secret=store.secret,
        restarts=restarts,
        parent=parent,
    )
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    defaults = {"OMP_NUM_THREADS": str(max(1, cores() // layout.world))}
    defaults |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    return {**{name: os.environ.get(name, value) for name, value in defaults.items()}, **place.variables()}


class Display:
    """Shows the steps that rank 0 records, beside the progress bar that ``advance`` moves."""

    def __init__(self, out: Path, step: int, advance: Advance) -> None:
        self._out, self._step, self._advance = out, step, advance
        self._events = 0
        self._follower: Follower | None = None

    def attempt_begins(self) -> None:
        """Ranks are about to start; the history will say at which step they resume."""
        self.close()
        self._events = sum(1 for _ in read_events(self._out))

    def update(self) -> None:
        """Show what was recorded since the last update. A step where the run resumes may be before the last one."""
        with suppress(OSError):  # of a shared folder: the ranks go on
            if self._follower is None:
                self._find_resumed()
            for step in self._follower.steps() if self._follower else ():
                self._advance(1, progress_line(step))
                self._step = step["step"]

    def _find_resumed(self) -> None:
        for event in islice(read_events(self._out), self._events, None):
            if event["event"] == "resumed":
                self.close()
                step = int(number(event, "step"))
                self._follower = Follower(self._out, step)
                self._advance(step - self._step, f"from step {step}")
                self._step = step

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self._follower:
            self._follower.close()
        self._follower = None


def _watch_ranks(ranks: Sequence[Rank], layout: Layout, out: Path, update: Callable[[], None], signals: Signals) -> int:
    """Call ``update`` now and then until every rank has exited; raises `AttemptFailure` where that is too early."""
    stop_signal = 0
    while True:
        if signal.SIGINT in signals:
            _stop_without_ranks(out, signal.SIGINT)
        if signals and not stop_signal:
            stop_signal = signals[0]
            for rank in ranks:
                rank.process.send_signal(stop_signal)
        statuses = [rank.process.poll() for rank in ranks]
        update()
        if any(status and not (stop_signal and status in {-stop_signal, PEER_FAILED}) for status in statuses):
            raise _attempt_failure(ranks, layout)
        if any(statuses):  # a rank that got the signal before it could handle it just died
            return _stop_without_ranks(out, stop_signal)
        if None not in statuses:
            if stop_signal or (out / SUMMARY).exists():
                return stop_signal
            raise AttemptFailure("a rank was told to stop, and all stopped", 0, f"logs are in {out / LOGS}")
        signals.wait(POLL_SECONDS)


def _attempt_failure(ranks: Sequence[Rank], layout: Layout) -> AttemptFailure:
    """One line on the rank that failed first: preferably one that was killed, and not one that only lost its peer."""
    deadline = time.monotonic() + GRACE_SECONDS
    failed: list[Rank] = []
    while not failed or time.monotonic() < deadline:
        time.sleep(2 * POLL_SECONDS)  # for ranks that fail at the same moment
        failed = [rank for rank in ranks if rank.process.poll()]
        if len(failed) == len(ranks) or any(rank.process.returncode != PEER_FAILED for rank in failed):
            break  # else the rank that they lost has yet to end
    first = min(failed, key=_order_of_suspicion)
    status = first.process.returncode
    said = last_line(first)
    if status == HUNG_STATUS:  # it names the rank that it waited for
        return AttemptFailure(said, status, f"logs are in {first.log.parent}")
    end = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    reason = f": {said}" if said and status > 0 else ""
    name = f"rank {first.number} ({layout.coordinates(first.number)})"
    return AttemptFailure(f"{name} {end}{reason}", status, f"its log is {first.log}")


def last_line(rank: Rank) -> str:
    """The last line that a rank printed, its reason where it failed; or that its log, and so the reason, is cut off.

    A full disk takes a traceback up to some byte. What it takes later, once there is room, follows in the same line.
    """
    with rank.log.open("rb") as file:
        file.seek(rank.begin)
        text = file.read().decode(errors="replace")
    last = (text.strip("\n").splitlines() or [""])[-1]
    _, is_error, error = last.rpartition(ERROR_PREFIX)
    if text and not is_error and (last[:1].isspace() or not text.endswith("\n")):
        return "its log breaks off, as on a full disk"
    return error


def _order_of_suspicion(rank: Rank) -> tuple[bool, bool, int]:
    status = rank.process.returncode
    return status == PEER_FAILED, status == CRASHED, status


def stopped_line(out: Path, number: int) -> str:
    """The last line of a run that signal ``number`` stopped."""
    newest = latest(out / CHECKPOINTS)
    checkpoint = f"its checkpoint is {newest}" if newest else "it had not begun a step"
    return f"stopped by {signal.Signals(number).name}; {checkpoint}; {RESUME_HINT}"


def end_ranks(ranks: Sequence[Rank]) -> None:
    """Terminate the ranks that still run, and kill those that do not exit in time."""
    running = [rank.process for rank in ranks if rank.process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def die_with_parent() -> None:
    """In a rank that `start_rank` started: die when the launcher does, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != this_rank().parent:
        os._exit(1)


class Signals(list[int]):
    """Signals in the order in which they arrived."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = SimpleQueue[int]()  # unlike an Event, it may be used in a signal handler

    def record(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: append it."""
        self.append(number)
        self._arrived.put(number)

    def wait(self, seconds: float) -> None:
        """Wait until the next signal, or so long."""
        with suppress(Empty):
            self._arrived.get(timeout=seconds)


@contextmanager
def record_signals(*numbers: signal.Signals) -> Iterator[Signals]:
    """Append these signals to a list as they arrive. One that is ignored, as SIGHUP under nohup, stays ignored."""
    signals = Signals()
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, signals.record) for number in heeded}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
