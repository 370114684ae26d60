"""Checksums of files, each computed once: cached as long as a file keeps its path, size, time and inode."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .console import Failure, progress
from .files import read_small, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def cached_checksums(
    groups: Iterable[tuple[Path, ...]], checksum: Callable[[tuple[Path, ...]], str]
) -> dict[tuple[Path, ...], str]:
    """The checksum of each group of files: the cached one, or what ``checksum`` says of their resolved paths."""
    memory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtnlg" / "checksums.json"
    known: dict[str, str] = {}
    with suppress(OSError, ValueError, Failure):
        known = json.loads(read_small(memory))
    resolved = {group: tuple(path.resolve() for path in group) for group in groups}
    keys, sizes = {}, {}
    for group, paths in resolved.items():
        stats = [(path, path.stat()) for path in paths]
        keys[group] = "|".join(f"{path}:{s.st_size}:{s.st_mtime_ns}:{s.st_ino}" for path, s in stats)
        sizes[group] = sum(s.st_size for _, s in stats)
    new = [group for group, key in keys.items() if key not in known]
    with progress("checksums", sum(sizes[group] for group in new), "bytes") as advance:
        for group in new:
            known[keys[group]] = checksum(resolved[group])
            advance(sizes[group])
    if new:
        with suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(memory, known)
    return {group: known[key] for group, key in keys.items()}
