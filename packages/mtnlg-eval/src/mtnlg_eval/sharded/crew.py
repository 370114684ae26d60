"""Starts the ranks of a sharded evaluation and sees that they end together.

The process that the person started is rank 0: it hosts the rendezvous on a port that the system gives, starts the
other ranks, and ends with one line when one of them dies; they end when it does, however it ends. Under torchrun the
ranks are there already, and all but rank 0 serve.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mtnlg_eval.quiet import quiet
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.tokenizer import Tokenizer
from mtnlg_parallel.inference import Share, join
from mtnlg_parallel.launch.local import Rank, die_with_parent, end_ranks, is_rank, place, start_rank
from mtnlg_parallel.layout import Layout, parse_layout, refusal

from .driver import Driver, Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    os.environ.update(place(0, layout, store.port))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    command = [sys.executable, "-c", SERVE, str(checkpoint.directory), str(layout)]
    others: list[Rank] = []
    ended = threading.Event()
    threading.Thread(target=_watch, args=(others, layout, ended), daemon=True).start()
    try:
        for number in range(1, layout.world):  # one by one, so that what was started is ended if the next fails
            others += [start_rank(number, layout, command, store.port, logs)]
        with _joined(checkpoint, layout) as driver:
            try:
                yield driver
            except RuntimeError:  # a collective that lost its peer, perhaps: then who fell is what matters
                time.sleep(2 * POLL_SECONDS)
                if who := _fallen(others, layout):
                    raise Failure(who) from None
                raise
            finally:
                ended.set()  # from here on they may go
    finally:
        ended.set()
        end_ranks(others)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _joined(checkpoint: Checkpoint, layout: Layout) -> Iterator[Driver | None]:
    """Join as the rank that the environment says; rank 0 gets the driver, another serves until it is let go."""
    device = join(layout)
    dtype = checkpoint.dtype(checkpoint.names[0]) if device.type == "cuda" else torch.float32
    share, tokenizer = Share(checkpoint, layout, device, dtype), Tokenizer(checkpoint.tokenizer_path)
    try:
        if distributed.get_rank() == 0:
            driver = Driver(share, tokenizer)
            yield driver
            driver.close()
        else:
            Server(share, tokenizer).serve()
            yield None
    finally:
        distributed.destroy_process_group()


def serve(checkpoint: str, layout: str) -> None:
    """Be the rank that the environment says, until rank 0 lets go or dies."""
    quiet()
    die_with_parent()
    with _joined(Checkpoint.open(Path(checkpoint)), Layout(**parse_layout(layout))):
        pass


def _watch(others: Sequence[Rank], layout: Layout, done: threading.Event) -> None:
    """End this process with one line when a rank ends before its time: a collective would wait for it for an hour."""
    while not done.wait(POLL_SECONDS):
        if who := _fallen(others, layout):
            sys.stderr.write(f"mtnlg-eval: {who}\n")  # a failure, --quiet or not
            sys.stderr.flush()
            os._exit(1)


def _fallen(others: Sequence[Rank], layout: Layout) -> str | None:
    """One line on a rank that has ended: first one that was killed, for the rest may have ended for want of it."""
    dead = [rank for rank in tuple(others) if rank.process.poll() is not None]
    if not dead:
        return None
    number, process, log = min(dead, key=lambda rank: rank.process.returncode >= 0)
    told = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    how = f"killed by {signal.Signals(-process.returncode).name}" if process.returncode < 0 else told
    return f"rank {number} ({layout.coordinates(number)}) ended: {how}; its log is {log}"
