"""Starts the ranks of a sharded evaluation, or joins torchrun's, and sees that they end together.

The process of the command is rank 0: it hosts the rendezvous on a free port, starts the other ranks and exits with one
line when one of them dies; they die when it does, however it ends. Under torchrun the ranks exist already, and all but
rank 0 serve.
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

from mtnlg_eval.evaluation import silence_lm_eval
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure, UsageFailure, printable
from mtnlg_model.tokenizer import Tokenizer
from mtnlg_parallel.environment import read_environment
from mtnlg_parallel.inference import TIMEOUT, DecoderShard, init_distributed
from mtnlg_parallel.launch.local import (
    Rank,
    check_ranks,
    die_with_parent,
    end_ranks,
    last_line,
    rank_environment,
    start_rank,
)
from mtnlg_parallel.layout import Layout, layout_error, parse_layout
from mtnlg_parallel.rendezvous import HostedStore

from .coordinator import Coordinator, Worker
from .messages import Channels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_SECONDS = 0.2
SERVE = "import sys, mtnlg_parallel.engine.process; from mtnlg_eval.sharded.ranks import serve; serve(*sys.argv[1:])"
"""The environment that the first module sets spares a rank torch.compile's import by megatron-core, 2 seconds."""


@contextmanager
def open_coordinator(checkpoint: Checkpoint, text: str, logs: Path) -> Iterator[Coordinator | None]:
    """Shard ``checkpoint`` by the layout ``text`` (tp=2,pp=2,dp=1); yields None on torchrun's other ranks, once done.

    Raises ``UsageFailure`` if the layout does not fit the model or the machine.
    """
    layout = Layout(**parse_layout(text))
    if error := layout_error(layout, checkpoint.config):
        raise UsageFailure(f"--layout {text}: {error}")
    started = read_environment()
    if started.launcher != "none":
        if started.world != layout.world:
            raise UsageFailure(f"--layout {text} is {layout.world} ranks, WORLD_SIZE = {started.world}")
        with _join(checkpoint, layout) as coordinator:
            yield coordinator
        return
    check_ranks(layout)
    store = HostedStore()
    environment = dict(os.environ)
    os.environ.update(rank_environment(0, layout, store))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    command = [sys.executable, "-c", SERVE, str(checkpoint.directory), str(layout)]
    workers: list[Rank] = []
    done = threading.Event()
    threading.Thread(target=_watch, args=(workers, layout, store, done), daemon=True).start()
    try:
        for number in range(1, layout.world):  # one by one, so that the ones started are ended if the next fails
            workers += [start_rank(number, layout, command, store, logs)]
        with _join(checkpoint, layout) as coordinator:
            try:
                yield coordinator
            except RuntimeError:  # perhaps a collective without its peer: then the dead rank is what matters
                time.sleep(2 * POLL_SECONDS)
                if failure := _dead_rank(workers, layout):
                    raise Failure(failure) from None
                raise
            finally:
                done.set()  # from here on they may exit
    finally:
        done.set()
        end_ranks(workers)
        store.close()
        os.environ.clear()
        os.environ.update(environment)


@contextmanager
def _join(checkpoint: Checkpoint, layout: Layout) -> Iterator[Coordinator | None]:
    """Join the process group; rank 0 gets the coordinator, another rank serves until it is stopped."""
    device = init_distributed()
    dtype = checkpoint.dtype(checkpoint.names[0]) if device.type == "cuda" else torch.float32
    shard, tokenizer = DecoderShard(checkpoint, layout, device, dtype), Tokenizer(checkpoint.tokenizer_path)
    channels = Channels.open(TIMEOUT)
    try:
        if distributed.get_rank() == 0:
            coordinator = Coordinator(shard, tokenizer, channels)
            yield coordinator
            coordinator.close()
        else:
            Worker(shard, tokenizer, channels).serve()
            yield None
    finally:
        distributed.destroy_process_group()


def serve(checkpoint: str, layout: str) -> None:
    """Entry point of a worker process: serve until rank 0 stops it or dies."""
    silence_lm_eval()
    die_with_parent()
    with _join(Checkpoint.open(Path(checkpoint)), Layout(**parse_layout(layout))):
        pass


def _watch(workers: Sequence[Rank], layout: Layout, store: HostedStore, done: threading.Event) -> None:
    """Exit with one line when a rank dies early: a collective would wait for it for an hour."""
    while not done.wait(POLL_SECONDS):
        store.shut_if_all_are_here()
        if failure := _dead_rank(workers, layout):
            sys.stderr.write(f"mtnlg-eval: {printable(failure)}\n")  # a failure is shown despite --quiet
            sys.stderr.flush()
            os._exit(1)


def _dead_rank(workers: Sequence[Rank], layout: Layout) -> str | None:
    """Describe a rank that has died, preferably one that was killed: the others may have died because of it."""
    dead = [rank for rank in tuple(workers) if rank.process.poll() is not None]
    if not dead:
        return None
    first = min(dead, key=lambda rank: rank.process.returncode >= 0)
    status = first.process.returncode
    cause = f"killed by {signal.Signals(-status).name}" if status < 0 else last_line(first)
    return f"rank {first.number} ({layout.coordinates(first.number)}) ended: {cause}; its log is {first.log}"
