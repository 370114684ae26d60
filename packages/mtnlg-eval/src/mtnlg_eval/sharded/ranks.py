"""Starts the ranks of a sharded evaluation, or joins torchrun's, and ensures that they end together.

The process of the command is rank 0: it hosts the rendezvous on a free port, starts the other ranks, each of which
calls the same function with the same arguments, and exits with one line when one of them dies. The others die when
rank 0 does, for whatever reason. Under torchrun the ranks exist already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch

from mtnlg_model.console import UsageFailure, printable
from mtnlg_parallel.environment import read_environment
from mtnlg_parallel.launch.agent import (
    Rank,
    check_ranks,
    die_with_parent,
    end_ranks,
    last_line,
    rank_environment,
    start_rank,
)
from mtnlg_parallel.layout import Layout, evaluation_error, parse_layout
from mtnlg_parallel.rendezvous import HostedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_model.config import ModelConfig

POLL_SECONDS = 0.2
CALL = "import sys; from mtnlg_eval.sharded.ranks import call; call(*sys.argv[1:])"


@contextmanager
def all_ranks(
    text: str, config: ModelConfig, function: str, arguments: Mapping[str, Any], logs: Path
) -> Iterator[None]:
    """Run all ranks of the layout ``text`` (tp=2,pp=2,dp=1) during the block, which this one runs.

    The others call ``function``, MODULE:NAME, with the JSON ``arguments``. Raises ``UsageFailure`` if the layout does
    not fit the model or the machine.
    """
    layout, started = Layout(**parse_layout(text)), read_environment()
    if error := evaluation_error(layout, config):
        raise UsageFailure(f"--layout {text}: {error}")
    if started.launcher != "none":
        if started.world != layout.world:
            raise UsageFailure(f"--layout {text} is {layout.world} ranks, WORLD_SIZE = {started.world}")
        yield
        return
    check_ranks(layout)
    store = HostedStore()
    environment = dict(os.environ)
    os.environ.update(rank_environment(0, layout, store))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    command = [sys.executable, "-c", CALL, function, json.dumps(arguments, default=str)]
    workers: list[Rank] = []
    done = threading.Event()
    threading.Thread(target=_watch, args=(workers, layout, done), daemon=True).start()
    try:
        for number in range(1, layout.world):  # one by one, so that the ones started are ended if the next fails
            workers += [start_rank(number, command, rank_environment(number, layout, store), logs)]
        yield
    except RuntimeError:
        # Perhaps a collective without its peer: then the dead rank is what matters, and `_watch` exits.
        time.sleep(2 * POLL_SECONDS)
        raise
    finally:
        done.set()  # from here on they may exit
        end_ranks(workers)
        store.close()
        os.environ.clear()
        os.environ.update(environment)


def call(function: str, arguments: str) -> None:
    """Entry point of another rank's process: call ``function``, MODULE:NAME, with JSON ``arguments``."""
    die_with_parent()
    resolve_name(function)(**json.loads(arguments))


def _watch(workers: Sequence[Rank], layout: Layout, done: threading.Event) -> None:
    """Exit with one line when a rank dies early, since a collective would wait an hour for it."""
    while not done.wait(POLL_SECONDS):
        if dead := [rank for rank in tuple(workers) if rank.process.poll()]:
            first = min(dead, key=lambda rank: rank.process.returncode >= 0)  # the others may have died because of it
            status, place = first.process.returncode, layout.coordinates(first.number)
            cause = f"killed by {signal.Signals(-status).name}" if status < 0 else last_line(first)
            failure = f"rank {first.number} ({place}) ended: {cause}; its log is {first.log}"
            sys.stderr.write(f"mtnlg-eval: {printable(failure)}\n")  # a failure is shown despite --quiet
            sys.stderr.flush()
            os._exit(1)
