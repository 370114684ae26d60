"""The agent of a node: starts its ranks, and ends all of them when one fails.

A local run has one agent for all ranks; a Slurm job has one agent per node. Ranks die with their agent. The agent
forwards stop signals to the ranks, which finish the step, write a checkpoint and exit with `Exit.STOPPED`. Signal
handlers only record signals; the agent acts on them when it next polls the ranks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_data.engine.machine import cores
from mtnlg_model.console import UsageFailure
from mtnlg_model.files import open_regular, open_to_update
from mtnlg_parallel.environment import Environment, this_rank
from mtnlg_parallel.record.metrics import last_step, progress_line
from mtnlg_parallel.statuses import FOLDER, Exit, Failed, cause_of, failure_file, read_failure, write_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from mtnlg_model.console import Advance
    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.rendezvous import HostedStore

POLL_SECONDS: Final = 0.1
GRACE_SECONDS = 5.0
RANKS_ON_CPU: Final = 64
"""Most ranks on a machine's CPU, or one per core if it has more cores; each is a process of about 250 MB."""


class Rank(NamedTuple):
    """A rank on this machine; its output is in ``log`` from byte ``begin`` on."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    begin: int = 0


class Ended(NamedTuple):
    """How an attempt ended: the signal that stopped it, or 0, and the failures of this node's ranks."""

    stop_signal: int
    failures: list[Failed]

    @property
    def stopped(self) -> bool:
        """Whether the signal ended the attempt, including by killing ranks that had not started to train."""
        return bool(self.stop_signal) and all(cause_of(failed.status) == "stop" for failed in self.failures)


def check_ranks(layout: Layout, device: Literal["auto", "cpu"] = "auto") -> None:
    """Raise ``UsageFailure`` if the layout has more ranks than this machine has GPUs, or than its CPU can run."""
    ranks, on_gpus = ranks_here(device)
    if layout.world > ranks:
        lacks = f"GPUs and this machine has {ranks}" if on_gpus else f"ranks and this machine's CPU takes {ranks}"
        hint = f"use a smaller layout, or torchrun over several machines{', or, to train, --device cpu' * on_gpus}"
        raise UsageFailure(f"layout {layout} needs {layout.world:,} {lacks}; {hint}")


def ranks_here(device: Literal["auto", "cpu"] = "auto") -> tuple[int, bool]:
    """How many ranks this machine can run, and whether on GPUs."""
    import torch  # noqa: PLC0415  (slow to import, and agents do without)

    gpus = torch.cuda.device_count() if device == "auto" and torch.cuda.is_available() else 0
    return gpus or max(RANKS_ON_CPU, cores()), bool(gpus)


def run_attempt(
    first: Environment, command: Sequence[str], out: Path, signals: Signals, update: Callable[[], None]
) -> Ended:
    """Run ``command`` for each rank of this node until all have exited or one fails; ``first`` is its first rank.

    ``update`` is called at each poll. Writes a failure file to ``out`` for a failed rank that left none.
    """
    ranks: list[Rank] = []
    try:
        for number in range(first.local_world):  # one by one: if one fails to start, those before it are ended
            place = replace(first, rank=first.rank + number, local_rank=number)
            ranks += [start_rank(place.rank, command, _variables(place), out / FOLDER, append=first.restarts > 0)]
        stop_signal = _wait(ranks, signals, update)
    finally:
        ended_here = end_ranks(ranks)
    # Checked after all have ended: a rank that lost its peer may be noticed first. Ranks ended here are not to blame.
    failed = [
        rank for rank in _failed_ranks(ranks, stop_signal) if rank not in ended_here or rank.process.returncode > 0
    ]
    return Ended(stop_signal, [_failure(rank, out, first.node) for rank in failed])


def start_rank(
    number: int, command: Sequence[str], variables: Mapping[str, str], logs: Path, *, append: bool = False
) -> Rank:
    """Start ``command`` as a rank that logs to ``logs``/rank-N.log and dies with this process (`die_with_parent`)."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"rank-{number}.log"
    with open_to_update(log, os.O_APPEND if append else os.O_TRUNC) as file:
        end, environment = file.seek(0, os.SEEK_END), {**os.environ, **variables}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        return Rank(number, process, log, end)


def local_rank(number: int, layout: Layout, store: HostedStore, restarts: int = 0) -> Environment:
    """The place of a rank in a job that runs only on this machine."""
    return Environment(
        rank=number,
        world=layout.world,
        local_rank=number,
        local_world=layout.world,
        address=store.address,
        port=store.port,
        agent_store=True,
        secret=store.secret,
        restarts=restarts,
        parent=os.getpid(),
        node=os.uname().nodename,
    )


def rank_environment(number: int, layout: Layout, store: HostedStore) -> dict[str, str]:
    """The environment variables of `local_rank`."""
    return _variables(local_rank(number, layout, store))


def _variables(place: Environment) -> dict[str, str]:
    """A rank's variables; if unset also its share of the cores and, on one machine, the loopback interface."""
    defaults = {"OMP_NUM_THREADS": str(max(1, cores() // place.local_world))}
    if place.agent_store:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        defaults |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | place.variables()


def _wait(ranks: Sequence[Rank], signals: Signals, update: Callable[[], None]) -> int:
    """Wait until all ranks have exited or one has failed; returns the signal that stopped them, or 0."""
    stop_signal = 0
    while True:
        if signal.SIGINT in signals:
            return signal.SIGINT
        if signals and not stop_signal:
            stop_signal = signals[0]
            for rank in ranks:
                rank.process.send_signal(stop_signal)
        running = [rank for rank in ranks if rank.process.poll() is None]
        update()
        if _failed_ranks(ranks, stop_signal) or not running:
            return stop_signal
        signals.wait(POLL_SECONDS)


def _failed_ranks(ranks: Sequence[Rank], stop_signal: int) -> list[Rank]:
    """The ranks that have failed. After a stop signal, losing a peer is no failure: the peer may have stopped first."""
    passed = {None, Exit.COMPLETE, Exit.STOPPED, Exit.PEER_LOST if stop_signal else None}
    return [rank for rank in ranks if rank.process.poll() not in passed]


def _failure(rank: Rank, out: Path, node: str) -> Failed:
    """How a rank failed, from its failure file; writes that file if the rank could not."""
    status = rank.process.returncode
    if (said := read_failure(failure_file(out, rank.number))) and said.status == status:
        return said
    if status < 0:
        end = f"was killed by {signal.Signals(-status).name}"
    else:
        end = f"ended with status {status}" + (f": {text}" if (text := last_line(rank)) else "")
    failed = Failed(f"rank {rank.number} on {node} {end}; its log is {rank.log}", status, node, time=time.time())
    write_failure(out, rank.number, failed)
    return failed


def last_line(rank: Rank) -> str:
    """The last line that a rank printed."""
    with open_regular(rank.log) as file:
        file.seek(rank.begin)
        return (file.read().decode(errors="replace").splitlines() or [""])[-1].removeprefix("cli.py: ")


def end_ranks(ranks: Sequence[Rank]) -> list[Rank]:
    """Terminate the ranks that still run, and kill those that do not exit in time; returns them."""
    running = [rank for rank in ranks if rank.process.poll() is None]
    for rank in running:
        rank.process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for rank in running:
        try:
            rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()
    return running


def follow(out: Path, step: int, advance: Advance) -> Callable[[], None]:
    """Return a function that moves a progress bar from ``step`` to the last recorded step, or back after a resume."""
    at = [step]

    def update() -> None:
        with suppress(OSError):  # of a shared folder
            if (last := last_step(out)) and last["step"] != at[0]:
                advance(last["step"] - at[0], progress_line(last))
                at[0] = last["step"]

    return update


def die_with_parent() -> None:
    """Make this rank die when its launcher dies, and ignore Ctrl-C, which the launcher handles."""
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
        """Wait until the next signal, for at most ``seconds``."""
        with suppress(Empty):
            self._arrived.get(timeout=seconds)


@contextmanager
def record_signals(*numbers: signal.Signals) -> Iterator[Signals]:
    """Append these signals to a list as they arrive. Ignored signals, such as SIGHUP under nohup, stay ignored."""
    signals = Signals()
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, signals.record) for number in heeded}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
