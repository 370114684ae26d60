"""Where units of work run, and how a killed run goes on: a unit is done when its manifest says so and its bytes agree.

A unit is a picklable object that names its output file and a key: a digest of everything that its bytes depend on
(settings, code version, checksums of what it reads). Its manifest, ``<output>.json``, is written after the output; the
same command again finds it, checks it and skips the unit. Neither the number of workers nor the engine enters a key,
so neither changes a byte.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .console import Failure, progress
from .files import sha256, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

Summary = dict[str, Any]


class Unit(Protocol):
    """A piece of work with one output file."""

    @property
    def output(self) -> Path:
        """The file that this unit writes (through ``files.aside`` or ``files.replacing``)."""

    @property
    def key(self) -> str:
        """Digest of all that the output depends on; see ``key_of``."""


U = TypeVar("U", bound=Unit)


class Engine(Protocol):
    """Runs a function over units, in any order and place."""

    def imap(self, function: Callable[[U], Summary], units: Sequence[U]) -> Iterator[tuple[U, Summary]]:
        """Yield each unit with what the function returned for it, as they end."""


def key_of(*parts: object) -> str:
    """A digest of JSON-able parts, for ``Unit.key``."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def run_units(engine: Engine, function: Callable[[U], Summary], units: Sequence[U], label: str) -> list[Summary]:
    """Run every unit that is not done; returns the summaries of all, in the order of ``units``."""
    summaries = {unit.output: done for unit in units if (done := finished(unit)) is not None}
    open_units = [unit for unit in units if unit.output not in summaries]
    with progress(label, len(units), "shards") as advance:
        advance(len(summaries))
        for unit, summary in engine.imap(function, open_units):
            write_json(manifest_path(unit.output), {"key": unit.key, "sha256": sha256(unit.output), "summary": summary})
            summaries[unit.output] = summary
            advance(1)
    return [summaries[unit.output] for unit in units]


def manifest_path(output: Path) -> Path:
    """Where the manifest of a unit's output lies."""
    return output.with_name(f"{output.name}.json")


def finished(unit: Unit) -> Summary | None:
    """The summary of a unit that is done and whole; None where it must run (again)."""
    try:
        manifest = json.loads(manifest_path(unit.output).read_text(encoding="utf-8"))
        whole = manifest["key"] == unit.key and manifest["sha256"] == sha256(unit.output)
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return dict(manifest["summary"]) if whole else None


class Local:
    """The processes of this machine; one worker runs in this process, for debuggers and small jobs."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def imap(self, function: Callable[[U], Summary], units: Sequence[U]) -> Iterator[tuple[U, Summary]]:
        """See ``Engine``. A worker killed by the kernel ends the run with one line; the next run goes on."""
        if self.workers == 1 or len(units) <= 1:
            yield from ((unit, function(unit)) for unit in units)
            return
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(self.workers, len(units)), spawn, initializer=_ignore_interrupts) as pool:
            futures = {pool.submit(function, unit): unit for unit in units}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BrokenProcessPool:
                raise Failure("a worker died (out of memory?); the same command goes on with what is left") from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; the parent alone ends the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
