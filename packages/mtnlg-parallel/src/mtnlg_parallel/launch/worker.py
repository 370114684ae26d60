"""One rank of a job: joins the process group, trains, and leaves."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from torch import distributed

from mtnlg_model.console import Failure, progress, say
from mtnlg_parallel.engine.process import init_distributed
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.record import history
from mtnlg_parallel.record.metrics import progress_line
from mtnlg_parallel.statuses import STOP_SIGNALS
from mtnlg_parallel.training.determinism import ask_for_determinism
from mtnlg_parallel.training.loop import Training
from mtnlg_parallel.training.samples import Data, open_data

from . import health
from .agent import record_signals
from .supervise import PeerFailure, stopped_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe, RunOptions
    from mtnlg_parallel.record.run_dir import RunState

_PEER_GONE = re.compile(r"closed by peer|reset by peer|Broken pipe|Connection refused|peer.* terminated", re.IGNORECASE)


def run_rank(
    recipe: Recipe,
    data: Path | str | Data,
    out: Path,
    options: RunOptions,
    prepare: Callable[[], RunState] | None = None,
) -> int:
    """Train as `this_rank`; returns the stop signal, or 0.

    On a stop signal: checkpoint and return once training has begun; before that, die at once. ``prepare`` runs on rank
    0 before any rank reads ``out``, and rank 0 then shows the progress. Without it the launcher does both.
    """
    place = this_rank()
    rank, layout = place.rank, recipe.layout
    if place.world != layout.world:
        raise Failure(f"layout {layout} has {layout.world} ranks, but WORLD_SIZE = {place.world}; start as many")
    if recipe.train.deterministic:
        ask_for_determinism()
    state = prepare() if prepare and rank == 0 else None
    if rank == 0:
        host = socket.gethostname()
        history.append(out, "start", layout=str(layout), host=host, job=place.job, restarts=place.restarts)
    device = init_distributed(layout, recipe.guard, options.device)
    try:
        health.check(recipe, out, device)
        training = Training(recipe, open_data(data, recipe), out, rank, device, options=options)
        say(f"rank {rank} ({training.coordinates}) holds {', '.join(training.parts)}; at step {training.progress.step}")
        # Not earlier: while a rank waits for others in C++, a signal that Python records would have no effect.
        with record_signals(*STOP_SIGNALS) as training.signals:
            if state:
                with progress("training", state.steps - state.step, "steps") as advance:
                    stop_signal = training.run(lambda step: advance(1, progress_line(step)))
            else:
                stop_signal = training.run(lambda _step: None)
        distributed.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    except RuntimeError as error:
        if _PEER_GONE.search(str(error)):
            line = f"rank {rank} lost another rank: {str(error).splitlines()[0]}"
            raise PeerFailure(line) from None  # at 2,240 ranks their tracebacks would hide the one that matters
        raise
    if state and stop_signal:
        say(stopped_line(out, stop_signal))
    distributed.destroy_process_group()
    return 0 if training.finished else stop_signal
