"""Every rank takes up the state that rank 0 names: the newest on disk or in memory, or a run's first.

Rank 0 alone looks for it, checks it against recipe and token stream, cuts metrics.jsonl off after its step, and sends
its manifest and the guard's history to all. So a stale directory listing cannot make ranks go on from different steps.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
from torch import distributed

from mtnlg_model.checkpoint.manifest import (
    TOKENIZER,
    CheckpointError,
    Progress,
    collection_paused,
    latest,
    parse_manifest,
    read_manifest_bytes,
    resolve_checkpoint,
    to_json,
)
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import merge_parts
from mtnlg_model.console import IoFailure
from mtnlg_model.files import write_text
from mtnlg_parallel.engine import zero
from mtnlg_parallel.identity import check_initial, check_resumed
from mtnlg_parallel.record import history
from mtnlg_parallel.record.metrics import Step, last_steps, truncate_after
from mtnlg_parallel.record.run_dir import CHECKPOINTS, suggest_previous

from . import guard
from .collectives import broadcast_from_rank0, wait_for_all

if TYPE_CHECKING:
    from mtnlg_parallel.engine.contract import Engine
    from mtnlg_parallel.recipe import Recipe

    from .checkpointing import During
    from .memory import MemoryCheckpoint
    from .memory_store import MemoryCopy, MemoryStore
    from .samples import Data

Source = Literal["disk", "memory", "initial"]
FILE_SECONDS: Final = 180.0
"""How long a file of a checkpoint may stay invisible; NFS caches a folder's names for 60 s, unless told otherwise."""

RUN = ".run"
"""File in checkpoints/ that holds a random name of the run, by which its copies in memory are known."""


class Resumed(NamedTuple):
    """How far the restored state has come, the last steps before it, and where it came from."""

    progress: Progress
    history: list[Step]
    source: Source


def resume(  # noqa: PLR0917  (as Training)
    engine: Engine,
    recipe: Recipe,
    data: Data,
    out: Path,
    device: torch.device,
    during: During,
    memory: MemoryCheckpoint | None = None,
) -> Resumed:
    """Restore this rank's state. All ranks call this; a ``Failure`` of rank 0 is raised by all.

    The ranks together compare the checksum of every file of a checkpoint on disk.
    A file of a checkpoint that this rank cannot see yet is waited for, `FILE_SECONDS` at most.
    """
    with during("loading a checkpoint", recipe.guard.disk_patience):
        copy = _newest_in_memory(memory.store, out, device) if memory else None
        choice = broadcast_from_rank0(lambda: _choose(recipe, data, out, copy), device)
        source, steps = choice["source"], choice["history"]
        progress = Progress(
            step=0,
            samples=0,
            tokens=0,
            loss=0.0,
            stream=data.train.fingerprint,
            layout=recipe.layout,
            extra={"start_sample": recipe.train.start_sample},
        )
        raw = choice["manifest"].encode()
        if memory and copy and source == "memory":
            progress = _restore_from_memory(engine, memory.store, copy, raw)
        elif raw:
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


def _newest_in_memory(store: MemoryStore, out: Path, device: torch.device) -> MemoryCopy | None:
    """The newest copy in memory of the run in ``out``; what the run copies from now on bears a new attempt's name."""

    def names() -> list[str]:
        path = out / CHECKPOINTS / RUN
        if not path.exists():
            write_text(path, secrets.token_hex(8))
        return [path.read_text(encoding="utf-8"), secrets.token_hex(8)]

    store.open(*broadcast_from_rank0(names, device))
    return store.find()


def _choose(recipe: Recipe, data: Data, out: Path, copy: MemoryCopy | None) -> dict[str, Any]:
    """Rank 0's choice of a state; metrics.jsonl then ends with its step."""
    newest, step = latest(out / CHECKPOINTS), 0
    last_step = next((line["step"] for line in last_steps(out, 1)), 0)
    source: Source = "initial"
    folder, raw = Path(), b""
    if newest:
        source, folder, step = "disk", newest, int(newest.name.removeprefix("step-"))
    if copy and step < copy.progress.step <= last_step:  # else a lost node took the last steps' metrics with it
        source, folder, step = "memory", out / CHECKPOINTS / f"step-{copy.progress.step}", copy.progress.step
        raw = _manifest(copy, recipe, data.tokenizer, folder)
    elif newest:
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


def _manifest(copy: MemoryCopy, recipe: Recipe, tokenizer: Path, folder: Path) -> bytes:
    parts = [writer.part.model_dump_json().encode() for writer in copy.writers]
    steps = copy.writers[0].optimizer_steps
    with collection_paused():
        manifest = merge_parts(parts, recipe.model, copy.progress, {TOKENIZER: tokenizer.read_bytes()}, steps, folder)
        return to_json(manifest).encode()


def _restore_from_memory(engine: Engine, store: MemoryStore, copy: MemoryCopy, raw: bytes) -> Progress:
    folder = store.folder(copy.progress.step, copy.attempt)
    manifest = parse_manifest(folder, raw)
    state = zero.CheckpointState(Checkpoint(folder, manifest))
    try:
        store.fetch(copy, state.files(engine), manifest.files)
        zero.restore(engine, state)
    except CheckpointError as error:
        store.remove()  # else a restart would meet it again
        raise IoFailure(
            f"{error}; this node's copies in memory are removed; the same command resumes others"
        ) from error
    return manifest.progress
