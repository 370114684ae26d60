"""Units of work, and how a killed run goes on: a unit is done when its manifest says so and its bytes agree.

A unit is a picklable object that names its output file and a key: a digest of everything that its bytes depend on
(settings, this package's code, checksums of what it reads). Its manifest, ``<output>.json``, is written after the
output; the same command again finds it, checks it and skips the unit. Neither the number of workers nor the engine
enters a key, so neither changes a byte.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mtnlg_data.console import progress, say
from mtnlg_data.files import sha256, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Summary = dict[str, Any]

#: Threads that look at what is there already: each reads a file and hashes it, which needs no lock of Python's.
READERS = min(8, os.cpu_count() or 1)


class Unit(Protocol):
    """A piece of work with one output file, or with several of which one stands for all."""

    @property
    def output(self) -> Path:
        """The file that this unit writes (through ``files.aside`` or ``files.replacing``)."""

    @property
    def key(self) -> str:
        """Digest of all that the output depends on; see ``key_of``."""


U = TypeVar("U", bound=Unit)


class Engine(Protocol):
    """Runs a function over units, in any order and place."""

    #: Which of how many tasks this is: it answers for every so-manieth unit, and helps with the others.
    part: tuple[int, int]

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Yield each unit with what the function returned for it, as they end; takes units as it has room for them."""


def key_of(*parts: object) -> str:
    """A digest of JSON-able parts and of this package's code, for ``Unit.key``."""
    return hashlib.sha256(json.dumps([code_digest(), *parts], sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Digest of every module of this package: work done by other code is never taken for this code's."""
    package = Path(__file__).parents[1]
    names = sorted(package.rglob("*.py"))
    return hashlib.sha256(b"".join(name.read_bytes() for name in names)).hexdigest()


def run_units(engine: Engine, function: Callable[[U], Summary], units: Sequence[U], label: str) -> list[Summary]:
    """Run every unit that is not done; returns the summaries of all, in the order of ``units``.

    A function that writes more files than ``unit.output`` names them, without their folder, under ``files`` of its
    summary; they are checked and made again as one with it.
    """
    task, tasks = engine.part
    own = units[task::tasks]
    others = [unit for turn in range(1, tasks) for unit in units[(task + turn) % tasks :: tasks]]
    with ThreadPoolExecutor(READERS) as readers:
        done = [*readers.map(finished, own), *readers.map(noted, others)]
    summaries = {unit.output: found for unit, found in zip([*own, *others], done, strict=True) if found is not None}
    open_units = [unit for unit in [*own, *others] if unit.output not in summaries]
    if open_units:
        with progress(label, len(open_units), "shards") as advance:
            for unit, summary in engine.imap(partial(complete, function), open_units):
                summaries[unit.output] = summary
                advance(1)
    return [summaries[unit.output] for unit in units]


def complete(function: Callable[[U], Summary], unit: U) -> Summary:
    """Run a unit and write its manifest, last of all; this is what a worker does."""
    summary = function(unit)
    names = summary.pop("files", [])
    files = {name: sha256(unit.output.with_name(name)) for name in names}
    for name, digest in files.items():
        write_json(manifest_path(unit.output.with_name(name)), {"key": unit.key, "sha256": digest})
    manifest = {"key": unit.key, "sha256": sha256(unit.output), "files": files, "summary": summary}
    write_json(manifest_path(unit.output), manifest)
    return summary


def manifest_path(output: Path) -> Path:
    """Where the manifest of a unit's output lies."""
    return output.with_name(f"{output.name}.json")


def checksum(output: Path) -> str:
    """The SHA-256 of a finished unit's output, out of its manifest: what the next stage's keys are made of."""
    return str(json.loads(manifest_path(output).read_text(encoding="utf-8"))["sha256"])


def noted(unit: Unit) -> Summary | None:
    """The summary of a unit whose manifest says that it is done, its bytes unread; None where there is none."""
    manifest = _manifest(unit)
    return None if manifest is None else dict(manifest["summary"])


def finished(unit: Unit) -> Summary | None:
    """The summary of a unit that is done and whole; None where it must run (again).

    A file whose bytes are no longer those of its manifest is named, and its manifest taken away.
    """
    manifest = _manifest(unit)
    if manifest is None:
        return None
    for name, digest in {unit.output.name: manifest["sha256"], **manifest.get("files", {})}.items():
        path = unit.output.with_name(name)
        is_there = path.exists() and manifest_path(path).exists()
        if not is_there or sha256(path) != digest:
            say(f"{path}: {'damaged, by its SHA-256' if is_there else 'missing'}; it is made again")
            manifest_path(unit.output).unlink(missing_ok=True)
            return None
    return dict(manifest["summary"])


def _manifest(unit: Unit) -> Summary | None:
    try:
        manifest = json.loads(manifest_path(unit.output).read_text(encoding="utf-8"))
        current = manifest["key"] == unit.key and {"sha256", "summary"} <= set(manifest)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return dict(manifest) if current else None
