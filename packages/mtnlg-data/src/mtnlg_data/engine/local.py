"""The processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from mtnlg_data.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

    from .units import Summary, U

#: A worker is one core: libraries that start threads of their own are told so before they are imported.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
#: Units a worker that are handed out at once: enough that none waits for the next, few enough that others find some.
AHEAD = 2


def cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Local:
    """The processes of this machine; one worker runs in this process, for debuggers and small jobs.

    The workers live from the first units to ``close``: importing the libraries costs each of them seconds, so a run
    has one set of workers, not one a stage (``with engine_named("local", 8) as engine``).
    """

    part = (0, 1)

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self._pool: ProcessPoolExecutor | None = None
        self._leash: tuple[Connection, Connection] | None = None

    def close(self) -> None:
        """Let the workers end what they do, and end them."""
        self._end(wait=True)

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """See ``Engine``. A worker killed by the kernel ends the run with one line; the next run goes on."""
        if self.workers == 1:
            for unit in units:
                yield unit, function(unit)
            return
        waiting = iter(units)
        first = list(islice(waiting, AHEAD * self.workers))
        if not first:
            return
        pool = self._pool or self._begin()
        futures = {}
        try:
            futures = {pool.submit(function, unit): unit for unit in first}
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    summary = future.result()
                    unit = futures.pop(future)
                    futures.update({pool.submit(function, following): following for following in islice(waiting, 1)})
                    yield unit, summary
        except BrokenProcessPool:
            self._end(wait=False)
            raise _death_at(futures.values()) from None
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


def _death_at(units: Iterable[U]) -> Failure:
    names = ", ".join(sorted(unit.output.name for unit in units))
    return Failure(f"a worker died (out of memory?) at one of {names}; the same command goes on with what is left")


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
