"""Starts the local ranks of a job, shows how they come along, and sees that they end together.

The parent hosts the rendezvous store on a port that the system gives, so that two jobs never want the same one; ranks
die with it; and when one rank ends early the others are ended at once, with one line that names it. Asked to stop, by
SIGTERM or SIGUSR1, it passes that on, and the ranks end the step, write a checkpoint and leave.

Signals are only noted when they come, and acted on where that can be done in order: between two steps.
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
from mtnlg_parallel.training.metrics import Follower, described
from mtnlg_parallel.training.run_dir import CHECKPOINTS, LOGS, Start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from mtnlg_parallel.layout import Layout


PARENT = "MTNLG_PARENT"
"""Names the launching process to a rank; absent under torchrun."""

LOST_PEER = 70
"""Exit status of a rank that only saw another one go."""

HUNG = 71
"""Exit status of a rank that ended because the job hung."""

GOES_ON = "the same command goes on from the newest checkpoint"

POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0


class LostPeer(Failure):
    """A collective failed because another rank is gone."""

    exit_status = LOST_PEER


class Rank(NamedTuple):
    """A local rank."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path


def run_local(layout: Layout, command: Sequence[str], out: Path, start: Start) -> int:
    """Run ``command`` once a rank, with the environment that tells it its place, until all have ended well.

    Returns 0, or the signal that asked it to stop before the end. Raises ``Failure`` with one line where a rank failed.
    """
    import torch  # noqa: PLC0415  (slow to import; the commands that need no torch share this module)
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415  (as above)

    if torch.cuda.is_available() and torch.cuda.device_count() < layout.world:
        raise UsageFailure(
            f"layout {layout} needs {layout.world} GPUs and this machine has {torch.cuda.device_count()}; use a "
            "smaller layout, torchrun over several machines, or CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    logs = out / LOGS
    with noted(*STOPPING, signal.SIGINT) as arrived:
        ranks: list[Rank] = []
        try:
            for number in range(layout.world):  # one by one, so that what was started is ended if the next fails
                ranks += [start_rank(number, layout, command, store.port, logs)]
            return _watched(ranks, layout, out, start, arrived)
        finally:
            end_ranks(ranks)


def place(number: int, layout: Layout, port: int) -> dict[str, str]:
    """The environment that tells a process of this machine its rank, its share of the cores and the rendezvous."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // layout.world))),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(layout.world),
        "LOCAL_WORLD_SIZE": str(layout.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already: torch has rank 0 host one otherwise
    }


def start_rank(number: int, layout: Layout, command: Sequence[str], port: int, logs: Path) -> Rank:
    """Start ``command`` as a rank that ends when this process does (`die_with_parent`); its words go to a file."""
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **place(number, layout, port), PARENT: str(os.getpid())}
    log = logs / f"rank-{number}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    return Rank(number, process, log)


def _watched(ranks: Sequence[Rank], layout: Layout, out: Path, start: Start, arrived: Sequence[int]) -> int:
    """Show the steps that are recorded until every rank has ended; `run_local` says what comes of it."""
    left, stopped = start.steps - start.step, 0
    with closing(Follower(out, start.step)) as follower, progress("training", left, "steps") as advance:
        while True:
            if signal.SIGINT in arrived:
                raise KeyboardInterrupt
            if arrived and not stopped:
                stopped = arrived[0]
                for rank in ranks:
                    rank.process.send_signal(stopped)
            ended = [rank.process.poll() for rank in ranks]
            for step in follower.steps():
                advance(1, described(step))
            if any(status and not (stopped and status in {-stopped, LOST_PEER}) for status in ended):
                raise Failure(_obituary(ranks, layout))
            if any(ended) or None not in ended:  # those that were asked to stop before they could listen just ended
                return stopped
            time.sleep(POLL_SECONDS)


def _obituary(ranks: Sequence[Rank], layout: Layout) -> str:
    """One line on the rank that brought the job down: not one that merely lost its peer, if that can be told."""
    time.sleep(2 * POLL_SECONDS)  # for those that fell in the same moment
    dead = [rank for rank in ranks if rank.process.poll()]
    first = min(dead, key=lambda rank: (rank.process.returncode == LOST_PEER, rank.process.returncode > 0))
    status = first.process.returncode
    who = f"rank {first.number} ({layout.coordinates(first.number)})"
    lines = first.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1].removeprefix("cli.py: ") if lines else ""
    if status == HUNG:  # it speaks of whom it waited for
        return f"{last}; logs are in {first.log.parent}; {GOES_ON}"
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    said = f": {last}" if last and status > 0 else ""
    return f"{who} {how}{said}; its log is {first.log}; {GOES_ON}"


def stopped_line(out: Path, number: int) -> str:
    """What a run says that ended because it was asked to."""
    from mtnlg_model.checkpoint.manifest import latest  # noqa: PLC0415  (imports torch)

    newest = latest(out / CHECKPOINTS)
    where = f"its checkpoint is {newest}" if newest else "it had not begun a step"
    return f"stopped by {signal.Signals(number).name}; {where}; {GOES_ON}"


def end_ranks(ranks: Sequence[Rank]) -> None:
    """See that no rank outlives the job."""
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
    """Whether this process is a rank, of ours or of torchrun's."""
    return "RANK" in os.environ


def die_with_parent() -> bool:
    """In a rank that `run_local` started: end when the launcher does, however it ends, and leave Ctrl-C to it.

    False in a process of anyone else, such as torchrun.
    """
    if PARENT not in os.environ:
        return False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        os._exit(1)
    return True


STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What asks a run to write a checkpoint and end: Slurm sends one before preemption, the other before time is up."""


@contextmanager
def noted(*numbers: signal.Signals) -> Iterator[list[int]]:
    """A list to which these signals are added as they arrive, instead of what they would do."""
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
