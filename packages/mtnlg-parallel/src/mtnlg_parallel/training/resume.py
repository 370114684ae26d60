"""Restores every rank to the state that rank 0 chooses: the newest on disk, or a run's initial state.

Only rank 0 looks for it, checks it against recipe and token stream, truncates metrics.jsonl after its step, and sends
its manifest and the guard's history to all. So stale directory listings cannot make ranks resume from different steps.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
from torch import distributed

from mtnlg_model.checkpoint.manifest import Progress, latest, parse_manifest, read_manifest_bytes
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.config import VOCABULARY_TENSORS
from mtnlg_model.initialization import initial_value
from mtnlg_parallel.engine import zero
from mtnlg_parallel.identity import check_initial, check_resumed
from mtnlg_parallel.initial import read_initial
from mtnlg_parallel.record import history
from mtnlg_parallel.record.metrics import Step, truncate_after
from mtnlg_parallel.record.run_dir import CHECKPOINTS, suggest_previous

from . import guard
from .collectives import broadcast_from_rank0, wait_for_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from mtnlg_parallel.engine.contract import Engine
    from mtnlg_parallel.model.slicing import Box
    from mtnlg_parallel.recipe import Recipe

    from .checkpointing import During
    from .samples import RunData

Source = Literal["disk", "initial"]
FILE_SECONDS: Final = 180.0
"""Seconds that a checkpoint's file may be invisible; by default NFS caches a folder's names for 60 s."""


class Resumed(NamedTuple):
    """Progress of the restored state, and the last steps before it."""

    progress: Progress
    history: list[Step]


def resume(  # noqa: PLR0917  (as Training)
    engine: Engine, recipe: Recipe, data: RunData, out: Path, device: torch.device, during: During
) -> Resumed:
    """Restore this rank's state. All ranks must call this; all raise a ``Failure`` of rank 0.

    Together the ranks verify the checksum of every file of a checkpoint on disk. A file that this rank cannot see yet
    is waited for, for at most `FILE_SECONDS`.
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
                fp32 = partial(zero.CheckpointState(checkpoint).weight, dtype=torch.float32)
                zero.restore(engine, weights_of(recipe, checkpoint.config.tokens, fp32))
                checkpoint.verify_share(*place, {"weight", "master"})
        elif choice["folder"]:
            from mtnlg_model.convert.huggingface import HuggingFaceWeights  # noqa: PLC0415  (of no other run)

            weights = HuggingFaceWeights(Path(choice["folder"]), recipe.model.vocabulary)
            zero.restore(engine, weights_of(recipe, weights.config.tokens, weights.tensor))
        else:
            model, seed = recipe.model, recipe.train.seed
            zero.restore(engine, zero.InitialWeights(lambda name, box: initial_value(model, name, seed, box)))
        wait_for_all(device)
    if distributed.get_rank() == 0:
        seconds = {key: choice[key] for key in ("trained", "lost_steps", "lost_seconds")}
        history.append(out, "resumed", step=progress.step, source=source, corpus=data.corpus, **seconds)
    return Resumed(progress, steps)


def weights_of(recipe: Recipe, tokens: int, read: Callable[[str, Box], Tensor]) -> zero.InitialWeights:
    """The weights that ``read`` gives of a model of ``tokens`` tokens, and for further tokens rows of a new model."""
    model = recipe.model
    rows = tokens if model.tokens > tokens else model.vocabulary

    def value(name: str, box: Box) -> Tensor:
        if name not in VOCABULARY_TENSORS or box[0].stop <= rows:
            return read(name, box)
        weight = initial_value(model, name, recipe.train.seed, box)
        if (count := rows - box[0].start) > 0:
            weight[:count] = read(name, (slice(box[0].start, rows), *box[1:]))
        return weight

    return zero.InitialWeights(value)


def _choose(recipe: Recipe, data: RunData, out: Path) -> dict[str, Any]:
    """Choose a state, on rank 0, and truncate metrics.jsonl after its step."""
    newest, step = latest(out / CHECKPOINTS), 0
    source: Source = "initial"
    folder, raw = "", b""
    if newest:
        source, folder, step = "disk", newest.name, int(newest.name.removeprefix("step-"))
        raw = read_manifest_bytes(newest)
        check_resumed(newest, parse_manifest(newest, raw), recipe, data.fingerprint)
    elif recipe.train.initial:
        initial = read_initial(recipe.train.initial, recipe.model.vocabulary)
        folder, raw = str(initial.folder), initial.manifest
        check_initial(initial, recipe, data.fingerprint)
    kept, lost = truncate_after(out, step)
    return {
        "source": source,
        "folder": folder,
        "manifest": raw.decode(),
        "history": guard.history(kept, recipe.guard_at(kept[-1]["samples"] if kept else 0)),
        "trained": history.StepSeconds(kept).total,
        "lost_steps": len(lost),
        "lost_seconds": sum(line["seconds"] for line in lost),
    }
