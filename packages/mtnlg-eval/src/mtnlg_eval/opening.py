"""From what the command line names to a checkpoint: itself, the newest of a folder, or a Hugging Face GPT-2."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from mtnlg_model.checkpoint import Checkpoint, latest
from mtnlg_model.console import Failure, progress
from mtnlg_model.huggingface import import_gpt2, read_config

if TYPE_CHECKING:
    from pathlib import Path


def opened(folder: Path, out: Path) -> Checkpoint:
    """Open ``folder``; ``Failure`` where it is none of the three.

    A Hugging Face GPT-2 folder is first made a checkpoint under ``out``, once as long as its files stay as they are.
    """
    if not folder.is_dir():
        raise Failure(f"{folder}: no such folder")
    if (folder / "manifest.json").exists():
        return Checkpoint.open(folder)
    if (folder / "config.json").exists():
        return Checkpoint.open(_imported(folder, out))
    if (newest := latest(folder)) is None:
        raise Failure(
            f"{folder}: no checkpoint in it; step-N with its manifest.json is one, config.json Hugging Face's"
        )
    return Checkpoint.open(newest)


def _imported(folder: Path, out: Path) -> Path:
    """The checkpoint made of a Hugging Face folder, named by the names, sizes and times of its files."""
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir())
    target = out / f"imported-{hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]}"
    if not target.exists():
        config = read_config(folder)
        out.mkdir(parents=True, exist_ok=True)
        with progress(f"import {folder.name}", config.tensors, "tensors") as advance:
            import_gpt2(folder, target, advance)
    return target
