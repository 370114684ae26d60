"""The folders step-N of a run: which are whole, which is the newest, which may go. No torch."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from .manifest import MANIFEST, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})")


def resolve(directory: Path) -> Path:
    """The checkpoint that ``directory`` is, or else the newest that it holds."""
    return directory if (directory / MANIFEST).is_file() else latest(directory) or directory


def latest(directory: Path) -> Path | None:
    """The newest whole step-N under ``directory``; None when there is none."""
    found = whole(directory)
    return found[-1][1] if found else None


def retain(directory: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints, and what older killed attempts have left."""
    if keep < 1:
        raise CheckpointError(f"retain: keep = {keep}; at least 1")
    found = whole(directory)
    for _, path in found[:-keep]:
        doomed = path.with_name(f"{path.name}.tmp")
        shutil.rmtree(doomed, ignore_errors=True)
        # First the name, then the content: what is being removed is never taken for whole.
        path.rename(doomed)
    newest = found[-1][0] if found else -1
    for path in directory.glob("step-*.tmp"):
        match = _STEP.fullmatch(path.name.removesuffix(".tmp"))
        if match and int(match[1]) < newest:
            shutil.rmtree(path)


def whole(directory: Path) -> list[tuple[int, Path]]:
    """Every whole step-N under ``directory`` and its N, oldest first."""
    if not directory.is_dir():
        return []
    found = [(match, path) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in found if (path / MANIFEST).is_file())
