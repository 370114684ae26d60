"""Runs that die, see a shared folder late or write slowly: scenarios of `distributed_runs.py` for resuming."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import distributed

from mtnlg_model.checkpoint.writer import publish
from mtnlg_model.settings import validate
from mtnlg_parallel.engine import process
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training import checkpointing, resume
from mtnlg_parallel.training.checkpointing import write_files
from mtnlg_parallel.training.loop import Training
from mtnlg_parallel.training.samples import open_data
from mtnlg_parallel.training.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store  # type: ignore[attr-defined]

    from mtnlg_parallel.engine import zero
    from mtnlg_parallel.training.checkpointing import HostCopy


def run_until_death(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Resume and train; all ranks die before step ``die``.

    What a thread writes in a step ends with it, so that a copy begun in step N is complete in step N + 1.
    """
    recipe, out = validate(request["recipes"][0], Recipe, "request"), Path(request["outs"][0])
    device = process.init_distributed(recipe.layout, recipe.guard, "cpu")
    if fault := request.get("fault"):
        out = FAULTS[fault](request, rank) or out
    training = Training(recipe, open_data(Path(request["data"]), recipe), out, rank, device)
    resumed, steps, step = training.progress.step, list[Any](), training.step

    def settle() -> None:
        if fault not in UNSETTLED:
            wait(training.checkpoint._jobs.values())

    def step_and_settle(batches: Any) -> Any:  # noqa: ANN401  (as the step that it wraps)
        if training.progress.step + 1 == request.get("die"):
            settle()
            distributed.barrier()  # so that no rank dies while another is still in the step before
            os._exit(1)
        taken = step(batches)
        settle()
        return taken

    replace(training, step=step_and_settle)
    if fault == "late copy":
        copy_as_late_as_allowed(training)
    training.run(steps.append)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"resumed": resumed, "steps": steps}


def replace(owner: object, **attributes: Any) -> None:  # noqa: ANN401  (of any type)
    """Replace these attributes of a module, class or object."""
    for name, value in attributes.items():
        setattr(owner, name, value)


def stale_listing(request: dict[str, Any], rank: int) -> None:
    """Show rank 1 an older directory listing: it ends with ``stale``."""
    if rank == 1:
        replace(resume, latest=lambda folder: folder / request["stale"])


def late_files(request: dict[str, Any], rank: int) -> Path | None:
    """Show rank 1 the checkpoints only once it has looked for them in vain."""
    if rank != 1:
        return None
    out, shown = Path(request["outs"][0]), Path(request["late"])
    shown.mkdir()
    sleep = time.sleep

    def appear(seconds: float) -> None:
        if not (shown / "checkpoints").exists():
            (shown / "checkpoints").symlink_to(out / "checkpoints")
        sleep(seconds)

    replace(time, sleep=appear)
    return shown


def slow_rank(request: dict[str, Any], rank: int) -> None:
    """Have rank 1 write its first checkpoint only when training is ``behind`` steps further."""
    if rank == 1:
        further, step = threading.Event(), Training.step

        def count(training: Training, batches: Any) -> Any:  # noqa: ANN401  (as the step that it wraps)
            taken = step(training, batches)
            if training.progress.step == request["behind"]:
                further.set()
            return taken

        def write_late(directory: Path, rank: int, copy: HostCopy) -> None:
            further.wait()
            write_files(directory, rank, copy)

        replace(Training, step=count)
        replace(checkpointing, write_files=write_late)


def slow_publishing(_request: dict[str, Any], rank: int) -> None:
    """Have rank 0 publish only when more than a step's patience is over, by the count of its watchdog's heartbeats."""
    if rank == 0:
        over, beat, heartbeats = threading.Event(), Watchdog._write_heartbeat, list[None]()

        def count(dog: Watchdog, store: Store) -> None:
            beat(dog, store)
            heartbeats.append(None)
            if len(heartbeats) * dog._interval > 1.2 * dog._patience:
                over.set()

        def publish_late(*arguments: Any) -> Path:  # noqa: ANN401  (as the function that it wraps)
            heartbeats.clear()
            over.clear()
            over.wait()
            return publish(*arguments)

        replace(Watchdog, _write_heartbeat=count)
        replace(checkpointing, publish=publish_late)


def copy_as_late_as_allowed(training: Training) -> None:
    """Copy the state only when the update waits for the copy, or has not waited and is over."""
    engine: Any = training.engine
    allowed, copier, optimizer = threading.Event(), training.copier, engine.optimizer
    copy, hold, update = copier._run, copier._wait, optimizer.update

    def copy_late(*arguments: Any) -> list[zero.PieceToWrite]:  # noqa: ANN401  (as the method that it wraps)
        allowed.wait()
        allowed.clear()
        return copy(*arguments)

    def waiting() -> None:
        if copier._copy:
            allowed.set()
        hold()

    def updated(*arguments: Any) -> None:  # noqa: ANN401  (as above)
        update(*arguments)
        if copier._copy:
            allowed.set()

    replace(copier, _run=copy_late, _wait=waiting)
    replace(optimizer, update=updated)
    finish = training.checkpoint.finish

    def finish_at_the_end() -> None:  # no update follows
        allowed.set()
        finish()

    replace(training.checkpoint, finish=finish_at_the_end)


FAULTS: dict[str, Callable[[dict[str, Any], int], Path | None]] = {
    "stale listing": stale_listing,
    "late files": late_files,
    "slow rank": slow_rank,
    "slow publishing": slow_publishing,
    "never": lambda *_: replace(resume, FILE_SECONDS=0.1),
    "late copy": lambda *_: None,
}
UNSETTLED = {"slow rank", "slow publishing", "late copy"}
SCENARIOS = {"run_until_death": run_until_death}
