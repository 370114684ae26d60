"""Units of work and their manifests, by which a killed run resumes.

A unit is a picklable object that names its output file and a key: the digest of everything that the output depends on
(settings, the code that makes it, checksums of its inputs). Its manifest, ``<output>.json``, is written after it. When
the same command runs again, a unit whose manifest has its key and whose files match their checksums is skipped.
Neither the number of workers nor the engine enters a key, so neither changes a byte.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mtnlg_data.console import foreign_data, progress, say
from mtnlg_data.files import read_small, sha256, write_json

from .code_digest import code_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

Summary = dict[str, Any]

#: Threads that verify existing outputs: reading and hashing a file releases the GIL.
VERIFY_THREADS = min(8, os.cpu_count() or 1)
#: glibc's function that returns its free pages; other C libraries have none, or need none.
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


class Unit(ABC):
    """A piece of work with one output file, or with several, of which ``output`` stands for all.

    Subclasses are frozen dataclasses. ``output`` is written through ``files.atomic_path`` or ``files.atomic_open``.
    """

    output: Path

    @property
    def memory(self) -> int:
        """Bytes that a worker needs for it, which Ray keeps free; 0 where that is no more than a core's share."""
        return 0

    @abstractmethod
    def _key_parts(self) -> tuple[object, ...]:
        """What the output depends on, JSON-able: a name for the work, settings, keys and checksums of inputs."""

    def file_digest(self, path: Path) -> str:
        """Digest of one of the unit's files, by which its manifest tells whether it is still what was written."""
        return sha256(path)

    @cached_property
    def key(self) -> str:
        """Digest of all that the output depends on, the code of this class's module included."""
        return key_of(code_digest(type(self).__module__), *self._key_parts())


class Runnable(Protocol):
    """What an engine runs: a Unit, or a Task of a job."""

    @property
    def output(self) -> Path:
        """Its output file, which stands for all of them."""

    @property
    def key(self) -> str:
        """Digest of all that the output depends on."""

    @property
    def memory(self) -> int:
        """Bytes that a worker needs for it; 0 where that is no more than a core's share."""

    def file_digest(self, path: Path) -> str:
        """Digest of one of its files."""


U = TypeVar("U", bound=Runnable)


class Engine(Protocol):
    """Runs a function over units, in any order and on any worker."""

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Yield each unit with the function's result as it finishes; units are consumed as workers become free."""


def key_of(*parts: object) -> str:
    """Digest of JSON-able parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def run_units(engine: Engine, function: Callable[[U], Summary], units: Sequence[U], label: str) -> list[Summary]:
    """Run every unit that is not done; returns the summaries of all, in the order of ``units``.

    A function that writes more files than ``unit.output`` lists their names, from its folder, under ``files`` in its
    summary. These files are verified together with the output, and made again with it. A function that knows
    the digests of its files puts them, by name, under ``digests``.
    """
    with ThreadPoolExecutor(VERIFY_THREADS) as threads:
        known = threads.map(verified_summary, units)
        summaries = {unit.output: done for unit, done in zip(units, known, strict=True) if done is not None}
    to_run = [unit for unit in units if unit.output not in summaries]
    if to_run:
        with progress(label, len(to_run), "shards") as advance:
            for unit, summary in engine.imap(partial(run_unit, function), to_run):
                summaries[unit.output] = summary
                advance(1)
    return [summaries[unit.output] for unit in units]


def run_unit(function: Callable[[U], Summary], unit: U) -> Summary:
    """Run a unit on a worker, then write its manifest."""
    with foreign_data(unit.output):
        summary = function(unit)
    names, known = [*summary.get("files", ()), unit.output.name], summary.pop("digests", {})
    files = {name: known.get(name) or unit.file_digest(unit.output.parent / name) for name in names}
    output = files.pop(unit.output.name)
    for name, digest in files.items():
        write_json(manifest_path(unit.output.parent / name), {"key": unit.key, "sha256": digest})
    manifest = {"key": unit.key, "sha256": output, "files": files, "summary": summary}
    write_json(manifest_path(unit.output), manifest)
    release_memory()
    return summary


def release_memory() -> None:
    """Give back what allocators keep of a unit for the next, which else would be the most that any unit has taken."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    if TRIM is not None:
        TRIM(0)


def manifest_path(output: Path) -> Path:
    """The manifest beside an output."""
    return output.with_name(f"{output.name}.json")


def checksum(output: Path) -> str:
    """SHA-256 of a file: from its manifest, where a unit has written it. The next stage's keys are made of these."""
    manifest = read_manifest(output)
    return sha256(output) if manifest is None else str(manifest["sha256"])


def verified_summary(unit: Runnable) -> Summary | None:
    """The summary of a unit whose files are all there and match their checksums; None where it must run (again).

    Prints which file is damaged or missing, and removes the unit's manifest then.
    """
    manifest = read_manifest(unit.output)
    if manifest is None or manifest["key"] != unit.key or "summary" not in manifest:
        return None
    for name, digest in {unit.output.name: manifest["sha256"], **manifest.get("files", {})}.items():
        path = unit.output.parent / name
        exists = path.exists() and manifest_path(path).exists()
        if not exists or unit.file_digest(path) != digest:
            say(f"{path}: {'damaged, by its digest' if exists else 'missing'}; it is made again")
            manifest_path(unit.output).unlink(missing_ok=True)
            return None
    return dict(manifest["summary"])


def read_manifest(output: Path) -> Summary | None:
    """The manifest of a unit's output, or of a file beside it; None where there is none of ours."""
    try:
        manifest = json.loads(read_small(manifest_path(output)))
    except (FileNotFoundError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and {"key", "sha256"} <= set(manifest) else None
