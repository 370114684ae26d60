"""The local engine: worker processes on this machine."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from mtnlg_data.console import Failure

from .machine import cores
from .tasks import run_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from .tasks import Summary, Task

#: A worker uses one core. Set before libraries that start threads of their own are imported.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
#: Tasks submitted for each worker: enough that none waits for its next.
TASKS_PER_WORKER = 2
#: New objects between searches for cycles by Python; at its default of 700 they take a tenth of a short command's time.
OBJECTS_PER_COLLECTION = 50_000
#: Exit status of a worker that tried to start its own workers while it imported its parent's script.
UNGUARDED_STATUS = 75


class Local:
    """An engine over worker processes; with one worker, tasks run in this process, for debuggers and small jobs.

    The workers start with the first tasks and live until ``close``, so that a run pays once, not once per stage, for
    the seconds that each takes to import the libraries (``with open_engine("local", 8) as engine``).
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: tuple[Connection, Connection] | None = None
        self._processes: list[BaseProcess] = []

    def close(self) -> None:
        """Let the workers finish their tasks, and end them."""
        self._stop_workers(wait=True)

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        """Yield tasks as they finish. Raises ``Failure`` where a worker is killed; the next run resumes."""
        if self.workers == 1:
            for task in tasks:
                yield task, run_task(task)
            return
        waiting = iter(tasks)
        first = list(islice(waiting, TASKS_PER_WORKER * self.workers))
        if not first:
            return
        pool = self._pool or self._start_workers()
        futures = {}
        try:
            mask = signal.pthread_sigmask(
                signal.SIG_BLOCK, {signal.SIGINT}
            )  # workers keep it: Ctrl-C is their parent's
            try:
                futures = {pool.submit(run_task, task): task for task in first}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._processes = self._processes or multiprocessing.active_children()
            while futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    summary = future.result()
                    task = futures.pop(future)
                    for following in islice(waiting, 1):
                        futures[pool.submit(run_task, following)] = following
                    yield task, summary
        except BrokenProcessPool:
            self._stop_workers(wait=False)
            if any(process.exitcode == UNGUARDED_STATUS for process in self._processes):
                raise Failure(
                    f"{sys.argv[0]}: its workers import this script and would start its work again; "
                    'put its code under: if __name__ == "__main__":'
                ) from None
            names = ", ".join(sorted(task.output.name for task in futures.values()))
            codes = {-(process.exitcode or 0) for process in self._processes} - {0, signal.SIGTERM}  # the pool's own
            crash = codes and signal.SIGKILL not in codes
            cause = "a library or own step crashed, as printed above" if crash else "out of memory?"
            raise Failure(f"a worker died ({cause}) at one of {names}; the same command continues") from None
        except BaseException:
            self._stop_workers(wait=False)
            raise

    def _start_workers(self) -> ProcessPoolExecutor:
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # set while a worker imports the script
            os._exit(UNGUARDED_STATUS)
        self._processes = []
        spawn = multiprocessing.get_context("spawn")
        self._lifeline = spawn.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self.workers, spawn, initializer=_set_up_worker, initargs=self._lifeline[:1])
        return self._pool

    def _stop_workers(self, *, wait: bool) -> None:
        """End the workers; without ``wait`` they are killed during a task, which leaves no partial output."""
        pool, self._pool = self._pool, None
        lifeline, self._lifeline = self._lifeline, None
        if pool is not None and wait:
            pool.shutdown()
        for end in reversed(lifeline or ()):
            end.close()
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _set_up_worker(lifeline: Connection) -> None:
    """Limit a worker to one thread, and end it when its parent ends or is killed."""
    os.environ.update(ONE_THREAD)
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    faulthandler.enable(2)  # prints where a library crashes
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()


def _exit_with_parent(lifeline: Connection) -> None:
    """Exit when the parent's end of the pipe closes: by the parent, or by the kernel once the parent is dead."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
