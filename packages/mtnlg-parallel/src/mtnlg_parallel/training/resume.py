"""Every rank takes up the state that rank 0 names: the newest on disk, or a run's first.

Rank 0 alone looks for it, checks it against recipe and token stream, cuts metrics.jsonl off after its step, and sends
its manifest and the guard's history to all. So a stale directory listing cannot make ranks go on from different steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
from torch import distributed

from mtnlg_model.checkpoint.manifest import (
    Progress,
    latest,
    parse_manifest,
    read_manifest_bytes,
    resolve_checkpoint,
)
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_parallel.engine import zero
from mtnlg_parallel.identity import check_initial, check_resumed
from mtnlg_parallel.record import history
from mtnlg_parallel.record.metrics import Step, truncate_after
from mtnlg_parallel.record.run_dir import CHECKPOINTS, suggest_previous

from . import guard
from .collectives import broadcast_from_rank0, wait_for_all

if TYPE_CHECKING:
    from mtnlg_parallel.engine.contract import Engine
    from mtnlg_parallel.recipe import Recipe

    from .checkpointing import During
    from .samples import RunData

Source = Literal["disk", "initial"]
FILE_SECONDS: Final = 180.0
"""How long a file of a checkpoint may stay invisible; NFS caches a folder's names for 60 s, unless told otherwise."""


class Resumed(NamedTuple):
    """How far the restored state has come, the last steps before it, and where it came from."""

    progress: Progress
    history: list[Step]
    source: Source


def resume(  # noqa: PLR0917  (as Training)
    engine: Engine, recipe: Recipe, data: RunData, out: Path, device: torch.device, during: During
) -> Resumed:
    """Restore this rank's state. All ranks call this; a ``Failure`` of rank 0 is raised by all.

    The ranks together compare the checksum of every file of a checkpoint on disk.
    A file of a checkpoint that this rank cannot see yet is waited for, `FILE_SECONDS` at most.
    """
    with during("loading a checkpoint", recipe.guard.disk_patience):
        choice = broadcast_from_rank0(lambda: _choose(recipe, data, out), device)
        source, steps = choice["source"], choice["history"]
        progress = Progress(
            step=0,
            samples=0,
            tokens=0,
            loss=0.0,
            stream=data.train.fingerprint_at(0),
            layout=recipe.layout,
            extra={"start_sample": recipe.train.start_sample},
        )
        raw = choice["manifest"].encode()
        if raw:
            folder = out / CHECKPOINTS / choice["folder"]  # an absolute path for train.initial
            checkpoint = Checkpoint.from_manifest(folder, raw, min(FILE_SECONDS, recipe.guard.disk_patience))
            place = distributed.get_rank(), distributed.get_world_size()
            if source == "disk":
                with suggest_previous(folder):
                    zero.restore(engine, zero.CheckpointState(checkpoint))
                    checkpoint.verify_share(*place)  # after it: what this rank has read is in memory
                progress = checkpoint.progress
            else:
                zero.restore(engine, zero.CheckpointWeights(checkpoint))
                checkpoint.verify_share(*place, {"weight", "master"})
        else:
            zero.restore(engine, zero.InitialWeights(recipe.model, recipe.train.seed))
        wait_for_all(device)
    if distributed.get_rank() == 0:
        lost = {key: choice[key] for key in ("lost_steps", "lost_seconds")}
        history.append(out, "resumed", step=progress.step, source=source, corpus=data.corpus, **lost)
    return Resumed(progress, steps, source)


def _choose(recipe: Recipe, data: RunData, out: Path) -> dict[str, Any]:
    """Rank 0's choice of a state; metrics.jsonl then ends with its step."""
    newest, step = latest(out / CHECKPOINTS), 0
    source: Source = "initial"
    folder, raw = Path(), b""
    if newest:
        source, folder, step = "disk", newest, int(newest.name.removeprefix("step-"))
        raw = read_manifest_bytes(newest)
    elif recipe.train.initial:
        folder = resolve_checkpoint(Path(recipe.train.initial)).resolve()
        raw = read_manifest_bytes(folder)
    if raw:
        check = check_initial if source == "initial" else check_resumed
        check(folder, parse_manifest(folder, raw), recipe, data.fingerprint)
    kept, lost = truncate_after(out, step)
    return {
        "source": source,
        "folder": str(folder) if source == "initial" else folder.name,
        "manifest": raw.decode(),
        "history": guard.history(kept, recipe.guard),
        "lost_steps": len(lost),
        "lost_seconds": sum(line["seconds"] for line in lost),
    }
