"""Starts the ranks of a sharded evaluation and sees that they end together.

The process that the person started is rank 0: it hosts the rendezvous on a port that the system gives, starts the
other ranks, and ends with one line when one of them dies; they end when it does, however it ends. Under torchrun the
ranks are there already, and all but rank 0 serve.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mtnlg_eval.quiet import quiet
from mtnlg_model.checkpoint import Checkpoint
from mtnlg_model.console import UsageFailure, say
from mtnlg_parallel.inference import Share, join
from mtnlg_parallel.launch import PARENT, die_with_parent, is_rank
from mtnlg_parallel.layout import Layout, parse_layout, refusal

from .driver import Driver, Rank

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_SECONDS = 0.2
SERVE = "import sys; from mtnlg_eval.sharded.crew import serve; serve(*sys.argv[1:])"


@contextmanager
def crew(checkpoint: Checkpoint, text: str, logs: Path) -> Iterator[Driver | None]:
    """The model of ``checkpoint`` cut as ``text`` says (tp=2,pp=2,dp=1), on rank 0; None on a rank that has served.

    Raises ``UsageFailure`` where it cannot be cut so.
    """
    layout = Layout(**parse_layout(text))
    if why := refusal(layout, checkpoint.config):
        raise UsageFailure(f"--layout {text}: {why}")
    if is_rank():
        if int(os.environ["WORLD_SIZE"]) != layout.world:
            raise UsageFailure(f"--layout {text} is {layout.world} ranks, WORLD_SIZE = {os.environ['WORLD_SIZE']}")
        with _joined(checkpoint, layout) as driver:
            yield driver
        return
    if torch.cuda.is_available() and torch.cuda.device_count() < layout.world:
        raise UsageFailure(f"--layout {text} needs {layout.world} GPUs and there are {torch.cuda.device_count()}")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before = dict(os.environ)
    os.environ.update(_place(0, layout, store.port))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    others = [_start(number, layout, store.port, checkpoint.directory, logs) for number in range(1, layout.world)]
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(others, layout, logs, ended), daemon=True)
    watch.start()
    try:
        with _joined(checkpoint, layout) as driver:
            try:
                yield driver
            finally:
                ended.set()  # from here on they may go
    finally:
        ended.set()
        for process in others:
            process.terminate()
            process.wait()
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _joined(checkpoint: Checkpoint, layout: Layout) -> Iterator[Driver | None]:
    """Join as the rank that the environment says; rank 0 gets the driver, another serves until it is let go."""
    device = join(layout)
    dtype = checkpoint.dtype(checkpoint.names[0]) if device.type == "cuda" else torch.float32
    share = Share(checkpoint, layout, device, dtype)
    try:
        if distributed.get_rank() == 0:
            driver = Driver(share)
            yield driver
            driver.close()
        else:
            Rank(share).serve()
            yield None
    finally:
        distributed.destroy_process_group()


def _place(number: int, layout: Layout, port: int) -> dict[str, str]:
    """The environment that tells a process its rank."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    threads = str(max(1, cores // layout.world))
    world = str(layout.world)
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already: torch has rank 0 host one otherwise
    }


def _start(number: int, layout: Layout, port: int, checkpoint: Path, logs: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **_place(number, layout, port), PARENT: str(os.getpid())}
    logs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", SERVE, str(checkpoint), str(layout)]
    with (logs / f"rank-{number}.log").open("wb") as file:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def serve(checkpoint: str, layout: str) -> None:
    """Be the rank that the environment says, until rank 0 lets go or dies."""
    quiet()
    die_with_parent()
    with _joined(Checkpoint.open(Path(checkpoint)), Layout(**parse_layout(layout))):
        pass


def _watch(others: list[subprocess.Popen[bytes]], layout: Layout, logs: Path, done: threading.Event) -> None:
    """End this process with one line when a rank ends before its time: a collective would wait for it for an hour."""
    while not done.wait(POLL_SECONDS):
        for number, process in enumerate(others, start=1):
            if process.poll() is not None:
                log = logs / f"rank-{number}.log"
                told = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                how = f"killed by {signal.Signals(-process.returncode).name}" if process.returncode < 0 else told
                say(f"rank {number} ({layout.coordinates(number)}) ended: {how}; its log is {log}")
                os._exit(1)
