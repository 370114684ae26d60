"""Tasks and their manifests, by which a killed run resumes.

A task is a call of a module-level function: its output file, the function's arguments, and a key, the fingerprint of
these. Its manifest, ``<output>.json``, is written after the output. When the same command runs again, a task whose
manifest has its key and whose files match their checksums is skipped. Neither the number of workers nor the engine is
in a key, so neither changes a byte.
"""

from __future__ import annotations

import ctypes
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mtnlg_data.console import foreign_data, progress, say
from mtnlg_data.files import read_small, sha256, write_json

from .machine import cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Summary = dict[str, Any]
ROWS_SUFFIX = ".arrow"  # of rows that ``exchange`` hands from task to task
Origin = tuple[str, Path | None]

#: Threads that verify existing outputs: reading and hashing a file releases the GIL.
VERIFY_THREADS = min(8, cores())
#: glibc's function that returns its free pages; other C libraries have none, or need none.
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


@dataclass(frozen=True)
class Task:
    """A call ``work(item, output, **shared)`` on any worker; ``output`` stands for all files that it writes.

    The function's summary is JSON-able. It lists the names of further files, from the folder of ``output``, under
    ``files``.
    """

    work: str  # "module:name"
    item: object
    output: Path
    key: str
    shared: Mapping[str, object] = field(default_factory=dict)
    memory: int = 0  # bytes that Ray keeps free for it; 0 where that is no more than a core's share
    origin: Origin | None = None  # reference of the step, which loads the module where that is a user's file


class Engine(Protocol):
    """Runs tasks, in any order and on any worker."""

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        """Yield each task with the result of ``run_task`` as it finishes; tasks are taken as workers become free."""


def run_tasks(engine: Engine, tasks: Sequence[Task], label: str) -> list[Summary]:
    """Run every task that is not done; returns the summaries of all, in their order."""
    with ThreadPoolExecutor(VERIFY_THREADS) as threads:
        known = threads.map(verified_summary, tasks)
        summaries = {task.output: done for task, done in zip(tasks, known, strict=True) if done is not None}
    to_run = [task for task in tasks if task.output not in summaries]
    if to_run:
        with progress(label, len(to_run), "shards") as advance:
            for task, summary in engine.imap(to_run):
                summaries[task.output] = summary
                advance(1)
    return [summaries[task.output] for task in tasks]


def run_task(task: Task) -> Summary:
    """Run a task on a worker, then write its manifest."""
    module, _, name = task.work.partition(":")
    if module not in sys.modules and task.origin is not None:
        from mtnlg_data.user_code import open_step  # noqa: PLC0415  (needed by few)

        open_step(*task.origin)
    folder = task.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    with foreign_data(task.output):
        summary: Summary = getattr(import_module(module), name)(task.item, task.output, **task.shared)
    files = {name: _digest(folder / name) for name in (*summary.get("files", ()), task.output.name)}
    output = files.pop(task.output.name)
    for name, digest in files.items():
        write_json(manifest_path(folder / name), {"key": task.key, "sha256": digest})
    write_json(manifest_path(task.output), {"key": task.key, "sha256": output, "files": files, "summary": summary})
    release_memory()
    return summary


def _digest(path: Path) -> str:
    """SHA-256 of a file; for a file of rows a faster digest, since nobody forges these."""
    if path.suffix == ROWS_SUFFIX:
        from mtnlg_data.exchange import run_digest  # noqa: PLC0415  (Arrow, which --help does not wait for)

        return run_digest(path)
    return sha256(path)


def release_memory() -> None:
    """Return the memory that allocators retain after a task; else a worker would hold that of its largest task."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if TRIM is not None:
        TRIM(0)


def manifest_path(output: Path) -> Path:
    """The manifest beside an output."""
    return output.with_name(f"{output.name}.json")


def checksum(output: Path) -> str:
    """SHA-256 of a file: from its manifest, where a task has written it. The next step's keys are made of these."""
    manifest = read_manifest(output)
    return sha256(output) if manifest is None else str(manifest["sha256"])


def verified_summary(task: Task) -> Summary | None:
    """The summary of a task whose files are all there and match their checksums; None where it must run (again).

    If a file is damaged or missing, prints its name and removes the task's manifest.
    """
    manifest = read_manifest(task.output)
    if manifest is None or manifest["key"] != task.key or "summary" not in manifest:
        return None
    for name, digest in {task.output.name: manifest["sha256"], **manifest.get("files", {})}.items():
        path = task.output.parent / name
        exists = path.exists() and manifest_path(path).exists()
        if not exists or _digest(path) != digest:
            say(f"{path}: {'damaged: its digest differs' if exists else 'missing'}; it is made again")
            manifest_path(task.output).unlink(missing_ok=True)
            return None
    return dict(manifest["summary"])


def read_manifest(output: Path) -> Summary | None:
    """The manifest of a task's output, or of a file beside it; None if there is no manifest of ours."""
    try:
        manifest = json.loads(read_small(manifest_path(output)))
    except (FileNotFoundError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and {"key", "sha256"} <= set(manifest) else None
