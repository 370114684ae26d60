"""Where units of work run, and how a killed run goes on: a unit is done when its manifest says so and its bytes agree.

A unit is a picklable object that names its output file and a key: a digest of everything that its bytes depend on
(settings, this package's code, checksums of what it reads). Its manifest, ``<output>.json``, is written after the
output; the same command again finds it, checks it and skips the unit. Neither the number of workers nor the engine
enters a key, so neither changes a byte.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .console import Failure, progress
from .files import sha256, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

Summary = dict[str, Any]

#: A worker is one core: libraries that start threads of their own are told so before they are imported.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


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
    """A digest of JSON-able parts and of this package's code, for ``Unit.key``."""
    return hashlib.sha256(json.dumps([code_digest(), *parts], sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Digest of every module of this package: work done by other code is never taken for this code's."""
    package = Path(__file__).parent
    names = sorted(package.rglob("*.py"))
    return hashlib.sha256(b"".join(name.read_bytes() for name in names)).hexdigest()


def run_units(engine: Engine, function: Callable[[U], Summary], units: Sequence[U], label: str) -> list[Summary]:
    """Run every unit that is not done; returns the summaries of all, in the order of ``units``."""
    summaries = {unit.output: done for unit in units if (done := finished(unit)) is not None}
    open_units = [unit for unit in units if unit.output not in summaries]
    if open_units:
        with progress(label, len(open_units), "shards") as advance:
            for unit, summary in engine.imap(function, open_units):
                manifest = {"key": unit.key, "sha256": sha256(unit.output), "summary": summary}
                write_json(manifest_path(unit.output), manifest)
                summaries[unit.output] = summary
                advance(1)
    return [summaries[unit.output] for unit in units]


def manifest_path(output: Path) -> Path:
    """Where the manifest of a unit's output lies."""
    return output.with_name(f"{output.name}.json")


def checksum(output: Path) -> str:
    """The SHA-256 of a finished unit's output, out of its manifest: what the next stage's keys are made of."""
    return str(json.loads(manifest_path(output).read_text(encoding="utf-8"))["sha256"])


def finished(unit: Unit) -> Summary | None:
    """The summary of a unit that is done and whole; None where it must run (again)."""
    try:
        manifest = json.loads(manifest_path(unit.output).read_text(encoding="utf-8"))
        whole = manifest["key"] == unit.key and manifest["sha256"] == sha256(unit.output)
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return dict(manifest["summary"]) if whole else None


class Local:
    """The processes of this machine; one worker runs in this process, for debuggers and small jobs.

    The workers live from the first units to ``close``: importing the libraries costs each of them seconds, so a run
    has one set of workers, not one a stage (``with contextlib.closing(Local(8)) as engine``).
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._leash: tuple[Connection, Connection] | None = None

    def close(self) -> None:
        """Let the workers end what they do, and end them."""
        self._end(wait=True)

    def imap(self, function: Callable[[U], Summary], units: Sequence[U]) -> Iterator[tuple[U, Summary]]:
        """See ``Engine``. A worker killed by the kernel ends the run with one line; the next run goes on."""
        if self.workers == 1 or not units:
            yield from ((unit, _named(function, unit)) for unit in units)
            return
        pool = self._pool or self._begin()
        try:
            futures = {pool.submit(_named, function, unit): unit for unit in units}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            self._end(wait=False)
            raise Failure("a worker died (out of memory?); the same command goes on with what is left") from None
        except BaseException:
            self._end(wait=False)
            raise

    def _begin(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        self._leash = spawn.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self.workers, spawn, initializer=_begin_worker, initargs=self._leash[:1])
        return self._pool

    def _end(self, *, wait: bool) -> None:
        """End the workers; not to wait cuts them off in mid-work, which leaves no file half written."""
        pool, self._pool = self._pool, None
        leash, self._leash = self._leash, None
        if pool is not None and wait:
            pool.shutdown()
        for end in reversed(leash or ()):
            end.close()
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _named(function: Callable[[U], Summary], unit: U) -> Summary:
    """Run one unit; an error of the system that names no file, such as a full disk, names the unit's output."""
    try:
        return function(unit)
    except OSError as error:
        if error.filename is not None:
            raise
        raise Failure(f"{unit.output}: {os.strerror(error.errno) if error.errno else error}") from error


def _begin_worker(leash: Connection) -> None:
    """Set up a worker: Ctrl-C is the parent's business, and no worker outlives its parent, however that ends."""
    os.environ.update(ONE_THREAD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(leash,), daemon=True).start()


def _end_with(leash: Connection) -> None:
    """Wait for the parent's end of the pipe to close: by the parent, or by the kernel once the parent is dead."""
    with suppress(EOFError, OSError):
        leash.recv_bytes()
    os._exit(1)
