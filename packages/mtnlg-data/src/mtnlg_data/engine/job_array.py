"""Several tasks over one folder: who may work in it, and which task runs which unit.

The tasks of a job array run the same command over one shared folder, each with its own ``--shard i/n``, and all go
through the same stages. In each stage a task first takes its own units (i, i + n, ...), then any that no other task has
begun. Steps that need the whole stage are units too: the first task to arrive runs them, and the others wait for their
manifests. There is no leader: a task that dies blocks nobody, and may return at any time.

A claim is a POSIX lock on one byte of ``.lock``, so it ends when its owner ends, however that happens. It only saves
double work: on a file system without locks two tasks may run the same unit, and both write the same bytes aside and
rename them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import os
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from mtnlg_data.console import Failure, say
from mtnlg_data.files import PARTIAL_NAME, open_to_update

from .units import recorded_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from .units import Engine, Summary, U

LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
LOCK = ".lock"
FOLDER_BYTE = 0  # of .lock: held exclusively by a run that works alone, shared by the tasks of a job array
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds
SECONDS_BETWEEN_LINES = 60.0
SECONDS_PER_DAY = 86_400.0


class Claims:
    """The outputs in a folder that this process has claimed: other processes leave them alone."""

    def __init__(self, lock: IO[bytes], folder: Path) -> None:
        self._lock = lock
        self._folder = folder

    def take(self, path: Path) -> bool:
        """Claim an output; False where another process has claimed it."""
        return _try_lock(self._lock, fcntl.LOCK_EX, self._byte(path))

    def release(self, path: Path) -> None:
        """Give a claim back."""
        with suppress(OSError):
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, self._byte(path))

    def _byte(self, path: Path) -> int:
        name = path.relative_to(self._folder).as_posix()
        return 1 + (int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 2)


def _try_lock(lock: IO[bytes], mode: int, byte: int) -> bool:
    """Lock one byte without waiting; False where another process holds it, True where locks are not supported."""
    try:
        fcntl.lockf(lock, mode | fcntl.LOCK_NB, 1, byte)  # not flock: a child of a killed run would keep that lock
    except OSError as error:
        if error.errno not in LOCKS_UNSUPPORTED and not isinstance(error, BlockingIOError | PermissionError):
            raise
        return error.errno in LOCKS_UNSUPPORTED
    return True


@contextmanager
def lock_folder(out: Path, key: str, *, shared: bool) -> Iterator[Claims]:
    """Lock ``out`` against other runs; with ``shared``, tasks of the same ``key`` may work in it at the same time.

    Raises ``Failure`` where another run, or with ``shared`` a task of another key, holds it. The first to enter
    removes the partial files of killed runs. One of several tasks keeps those of the last day: the locks of some file
    systems do not reach other machines, so their owners may still be writing them.
    """
    out.mkdir(parents=True, exist_ok=True)
    with open_to_update(out / LOCK) as lock:
        if _try_lock(lock, fcntl.LOCK_EX, FOLDER_BYTE):
            _remove_partial_files(out, time.time() - SECONDS_PER_DAY if shared else math.inf)
            lock.truncate(0)
            lock.write(key.encode())
            lock.flush()
        elif not shared:
            raise Failure(f"{out}: another run is working here; wait for it, or give another --out")
        if shared:
            _share(lock, out, key)
        yield Claims(lock, out)


def _remove_partial_files(out: Path, before: float) -> None:
    """Remove our partial files below ``out``, except in folders with a lock of their own: another run's."""
    for folder, folders, names in os.walk(out):
        folders[:] = [name for name in folders if not out.joinpath(folder, name, LOCK).exists()]
        for partial in (out.joinpath(folder, name) for name in names if PARTIAL_NAME.fullmatch(name)):
            with suppress(FileNotFoundError):
                if partial.lstat().st_mtime <= before:
                    partial.unlink()


def _share(lock: IO[bytes], out: Path, key: str) -> None:
    if not _try_lock(lock, fcntl.LOCK_SH, FOLDER_BYTE):
        say(f"{out}: another run is working here; this one begins when it has ended")
        fcntl.lockf(lock, fcntl.LOCK_SH, 1, FOLDER_BYTE)
    lock.seek(0)
    if lock.read() != key.encode():
        raise Failure(
            f"{out}: the tasks working here have another recipe, other input files or another version of mtnlg-data; "
            "start all of them with the same, or give another --out"
        )


class JobArray:
    """An engine that shares its units with the other tasks in the same folder; each unit is run by one of them."""

    def __init__(self, engine: Engine, task: tuple[int, int], claims: Claims) -> None:
        self.task = task
        self._engine = engine
        self._claims = claims

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Run the units that nobody has claimed, wait for the others, and take over those of a dead task."""
        remaining = list(units)
        pause, last_line = SHORTEST_PAUSE, time.monotonic()
        while remaining:
            done = set()
            for unit, summary in self._run_unclaimed(function, remaining):
                done.add(unit.output)
                yield unit, summary
            for unit in remaining:
                if unit.output not in done and (recorded := recorded_summary(unit)) is not None:
                    done.add(unit.output)
                    yield unit, recorded
            remaining = [unit for unit in remaining if unit.output not in done]
            pause = SHORTEST_PAUSE if done else min(2 * pause, LONGEST_PAUSE)
            if remaining and time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                say(f"waiting for {len(remaining)} units that other tasks run, first {remaining[0].output}")
            if remaining:
                time.sleep(pause)

    def _run_unclaimed(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Run the units that no other task has claimed or finished meanwhile."""
        claimed = []

        def claim() -> Iterator[U]:
            for unit in units:
                if self._claims.take(unit.output):
                    claimed.append(unit.output)
                    if recorded_summary(unit) is None:
                        yield unit
                    else:
                        self._claims.release(claimed.pop())

        try:
            for unit, summary in self._engine.imap(function, claim()):
                claimed.remove(unit.output)
                self._claims.release(unit.output)
                yield unit, summary
        finally:
            for output in claimed:
                self._claims.release(output)
