"""One rank of a job: joins the others, trains, and leaves."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from torch import distributed

from mtnlg_model.console import Failure, progress, say
from mtnlg_parallel.engine import deepspeed_engine
from mtnlg_parallel.training.loop import Training
from mtnlg_parallel.training.metrics import described
from mtnlg_parallel.training.samples import open_data

from .local import LostPeer, stopped_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe, Wishes
    from mtnlg_parallel.training.metrics import Step
    from mtnlg_parallel.training.run_dir import Start

_GONE = re.compile(r"closed by peer|reset by peer|Broken pipe|Connection refused|peer.* terminated", re.IGNORECASE)


def run_rank(  # noqa: PLR0917  (three of them say which run)
    recipe: Recipe,
    data: Path,
    out: Path,
    before_joining: Callable[[], Start | None],
    arrived: Sequence[int],
    wishes: Wishes,
) -> None:
    """Run the rank that the environment says this process is.

    ``before_joining`` runs on rank 0 alone, before any rank looks at ``out``; it returns what to show progress by, or
    None where someone else shows it. ``arrived`` is where signals are noted.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != recipe.layout.world:
        raise Failure(f"layout {recipe.layout} is {recipe.layout.world} ranks, WORLD_SIZE = {world}; start as many")
    start = before_joining() if rank == 0 else None
    device = deepspeed_engine.join(recipe.layout, recipe.guard.patience)
    try:
        training = Training(recipe, open_data(data, recipe), out, rank, device, arrived, wishes)
        say(f"rank {rank} ({training.place}) holds {', '.join(training.holds)}; at step {training.progress.step}")
        if start:
            with progress("training", start.steps - start.step, "steps") as advance:
                stopped = training.run(lambda step: advance(1, described(step)))
        else:
            stopped = training.run(_unseen)
        distributed.barrier()
    except RuntimeError as error:
        if _GONE.search(str(error)):
            raise LostPeer(f"rank {rank} lost another rank: {str(error).splitlines()[0]}") from error
        raise
    if start and stopped:
        say(stopped_line(out, stopped))
    distributed.destroy_process_group()


def _unseen(step: Step) -> None:
    del step
