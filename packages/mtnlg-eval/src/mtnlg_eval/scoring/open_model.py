"""From what the command line names to a model: a checkpoint, the newest of a folder or a GPT-2, whole or in slices."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mtnlg_model.checkpoint.manifest import latest, whole
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure, UsageFailure, progress
from mtnlg_model.convert.huggingface import import_gpt2, read_config

from .decoder_lm import DecoderLM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def model(checkpoint: Checkpoint, out: Path, layout: str | None) -> Iterator[DecoderLM | None]:
    """The model of a checkpoint, its answers kept under ``out``; cut over processes where a ``layout`` is given.

    None in a process that has served as one of the other ranks (of torchrun) and has nothing left to do.
    """
    store = out / "scores.sqlite"
    if layout is None:
        lm = DecoderLM.open(checkpoint, store)
        with closing(lm.store):
            yield lm
        return
    if find_spec("mtnlg_parallel") is None:
        raise UsageFailure(f"--layout {layout}: needs the parallel engine: pip install 'mtnlg-eval[parallel]'")
    from mtnlg_eval.sharded.crew import crew  # noqa: PLC0415  (an extra)

    with crew(checkpoint, layout, out / "logs") as driver:
        if driver is None:
            yield None
            return
        lm = DecoderLM.open(checkpoint, store, driver)
        with closing(lm.store):
            yield lm


def subject(checkpoint: Checkpoint) -> dict[str, str | int]:
    """Whom an evaluation or a study asked, as the files that tell of it say."""
    where, tokens = str(checkpoint.directory), checkpoint.progress.tokens
    return {"checkpoint": where, "digest": checkpoint.digest, "tokens": tokens}


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


def steps(folder: Path, out: Path) -> list[tuple[Path, Path]]:
    """Every checkpoint of a folder, oldest first, and where under ``out`` its scores go."""
    found = whole(folder)
    if not found:
        raise Failure(f"{folder}: no checkpoints in it; step-N with its manifest.json is one")
    return [(path, out / path.name) for _, path in found]


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
