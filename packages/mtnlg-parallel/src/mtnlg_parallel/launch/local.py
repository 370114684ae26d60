"""Starts a job's ranks on this machine, shows their progress, and ends them together.

The parent hosts the rendezvous store on a free port, so that two jobs never want the same one. Ranks die with the
parent. When one rank fails, the parent ends the others at once and names it in one line. SIGTERM and SIGUSR1 are passed
on to the ranks, which end the step, write a checkpoint and exit.

Signals are only recorded when they arrive, and acted on between two steps.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.console import Failure, UsageFailure, progress
from mtnlg_parallel.record.metrics import Follower, progress_line
from mtnlg_parallel.record.run_dir import CHECKPOINTS, LOGS, RunState
from mtnlg_parallel.training.watchdog import HUNG_STATUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from mtnlg_parallel.layout import Layout


PARENT = "MTNLG_PARENT"
"""Environment variable with the launching process' id; not set under torchrun."""

PEER_FAILED = 70
"""Exit status of a rank that ended because another rank had."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that make a run write a checkpoint and exit; Slurm sends them before preemption and before the time limit."""

RESUME_HINT = "the same command resumes from the newest checkpoint"

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0


class PeerFailure(Failure):
    """A collective failed because another rank is gone."""

    exit_status = PEER_FAILED


class Rank(NamedTuple):
    """A rank on this machine."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path


def run_local(layout: Layout, command: Sequence[str], out: Path, state: RunState) -> int:
    """Run ``command`` once per rank until all ranks have exited.

    Returns 0, or the signal that stopped the run. Raises ``Failure`` with one line where a rank failed.
    """
    import torch  # noqa: PLC0415  (slow to import; the commands that need no torch share this module)
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415  (as above)

    if torch.cuda.is_available() and torch.cuda.device_count() < layout.world:
        raise UsageFailure(
            f"layout {layout} needs {layout.world} GPUs and this machine has {torch.cuda.device_count()}; use a "
            "smaller layout, torchrun over several machines, or CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with record_signals(*STOP_SIGNALS, signal.SIGINT) as signals:
        ranks: list[Rank] = []
        try:
            for number in range(layout.world):  # one by one: if one fails to start, those before it are ended
                ranks += [start_rank(number, layout, command, store.port, out / LOGS)]
            return _watch_ranks(ranks, layout, out, state, signals)
        finally:
            end_ranks(ranks)


def start_rank(number: int, layout: Layout, command: Sequence[str], port: int, logs: Path) -> Rank:
    """Start ``command`` as a rank that logs to ``logs``/rank-N.log and dies with this process (`die_with_parent`)."""
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **rank_environment(number, layout, port), PARENT: str(os.getpid())}
    log = logs / f"rank-{number}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    return Rank(number, process, log)


def rank_environment(number: int, layout: Layout, port: int) -> dict[str, str]:
    """The environment variables of a rank: its number, the rendezvous, and its share of the cores."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // layout.world))),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(layout.world),
        "LOCAL_WORLD_SIZE": str(layout.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the parent hosts the store; else torch lets rank 0 host one
    }


def _watch_ranks(ranks: Sequence[Rank], layout: Layout, out: Path, state: RunState, signals: Sequence[int]) -> int:
    """Show the recorded steps until every rank has exited; returns and raises as `run_local` does."""
    steps_left, stop_signal = state.steps - state.step, 0
    with closing(Follower(out, state.step)) as follower, progress("training", steps_left, "steps") as advance:
        while True:
            if signal.SIGINT in signals:
                raise KeyboardInterrupt
            if signals and not stop_signal:
                stop_signal = signals[0]
                for rank in ranks:
                    rank.process.send_signal(stop_signal)
            statuses = [rank.process.poll() for rank in ranks]
            for step in follower.steps():
                advance(1, progress_line(step))
            if any(status and not (stop_signal and status in {-stop_signal, PEER_FAILED}) for status in statuses):
                raise Failure(_failure_line(ranks, layout))
            if any(statuses) or None not in statuses:  # a rank that got the signal before it could handle it just died
                return stop_signal
            time.sleep(POLL_SECONDS)


def _failure_line(ranks: Sequence[Rank], layout: Layout) -> str:
    """One line on the rank that failed first: preferably one that was killed, and not one that only lost its peer."""
    time.sleep(2 * POLL_SECONDS)  # for ranks that fail at the same moment
    failed = [rank for rank in ranks if rank.process.poll()]
    first = min(failed, key=lambda rank: (rank.process.returncode == PEER_FAILED, rank.process.returncode > 0))
    status = first.process.returncode
    lines = first.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last_line = lines[-1].removeprefix("cli.py: ") if lines else ""
    if status == HUNG_STATUS:  # its last line names the rank that it waited for
        return f"{last_line}; logs are in {first.log.parent}; {RESUME_HINT}"
    end = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    reason = f": {last_line}" if last_line and status > 0 else ""
    name = f"rank {first.number} ({layout.coordinates(first.number)})"
    return f"{name} {end}{reason}; its log is {first.log}; {RESUME_HINT}"


def stopped_line(out: Path, number: int) -> str:
    """The last line of a run that signal ``number`` stopped."""
    from mtnlg_model.checkpoint.manifest import latest  # noqa: PLC0415  (imports torch)

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


def is_rank() -> bool:
    """Whether this process is a rank, started by `start_rank`, torchrun or Slurm."""
    return "RANK" in os.environ


def die_with_parent() -> bool:
    """In a rank that `start_rank` started: die when the launcher does, and leave Ctrl-C to it. False elsewhere."""
    if PARENT not in os.environ:
        return False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        os._exit(1)
    return True


@contextmanager
def record_signals(*numbers: signal.Signals) -> Iterator[list[int]]:
    """Append these signals to a list as they arrive, instead of their default action."""
    signals: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    previous = {number: signal.signal(number, record) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
