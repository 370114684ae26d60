"""Opens what a command names (a checkpoint, the newest in a folder, a Hugging Face folder) as lm-eval's model."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure, UsageFailure, progress
from mtnlg_model.convert.config_json import read_config
from mtnlg_model.convert.huggingface import import_huggingface
from mtnlg_model.files import FILE_MODE

from .decoder_lm import DecoderLM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def open_lm(
    checkpoint: Checkpoint, out: Path, layout: str | None, kind: type[DecoderLM] = DecoderLM
) -> Iterator[DecoderLM | None]:
    """Open a checkpoint's model, sharded if there is a ``layout``, with its answers in ``out/scores.sqlite``.

    Yields None on torchrun's ranks other than 0: such a rank has served until the end and has nothing left to do.
    """
    with ExitStack() as stack:
        coordinator = None
        if layout is not None:
            if find_spec("mtnlg_parallel") is None:
                raise UsageFailure(f"--layout {layout}: needs the parallel engine: pip install 'mtnlg-eval[parallel]'")
            from mtnlg_eval.sharded.ranks import open_coordinator  # noqa: PLC0415  (an extra)

            coordinator = stack.enter_context(open_coordinator(checkpoint, layout, out / "logs"))
            if coordinator is None:
                yield None
                return
        lm = kind.open(checkpoint, out / "scores.sqlite", coordinator)
        stack.callback(lm.store.close)
        yield lm


def checkpoint_identity(checkpoint: Checkpoint) -> dict[str, str | int]:
    """Path, digest and trained tokens of a checkpoint, as summaries and studies record them."""
    path, tokens = str(checkpoint.directory), checkpoint.progress.tokens
    return {"checkpoint": path, "digest": checkpoint.digest, "tokens": tokens}


def open_checkpoint(folder: Path, out: Path) -> Checkpoint:
    """Open a checkpoint, the newest checkpoint in a folder, or a Hugging Face folder; else ``Failure``.

    A Hugging Face folder is imported under ``out``, once for as long as its files do not change.
    """
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder")
    if (folder / "manifest.json").exists():
        return Checkpoint.open(folder)
    if (folder / "config.json").exists():
        return Checkpoint.open(_import_huggingface(folder, out))
    if (newest := latest(folder)) is None:
        raise Failure(f"{folder}: no checkpoint in it: neither step-N/manifest.json nor Hugging Face's config.json")
    return Checkpoint.open(newest)


def _import_huggingface(folder: Path, out: Path) -> Path:
    """Import a Hugging Face folder, unless its files (names, sizes, times) have been imported before."""
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
    fingerprint = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    checkpoint = out / f"imported-{fingerprint}"
    config = read_config(folder)
    out.mkdir(parents=True, exist_ok=True)
    handle = os.open(out / f".{checkpoint.name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    with os.fdopen(handle, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # each rank of torchrun comes here: one imports, the others wait for it
        if checkpoint.exists():
            return checkpoint
        with progress(f"import {folder.name}", config.tensor_count, "tensors") as advance:
            import_huggingface(folder, checkpoint, advance)
    return checkpoint
