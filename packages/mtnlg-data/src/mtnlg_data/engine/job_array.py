"""One folder, several tasks: who may work in it, and who works at what.

The tasks of a job array run the same command over one shared folder, each with its ``--shard i/n``. All go through
the same stages. Of a stage's units a task takes its own part first (i, i + n, ...), then whatever the others have not
begun; a stage's joining steps are units as well, done by the task that comes first while the others wait for their
manifests. Nobody leads: a task that dies holds up nobody, and may come back at any time.

A claim is a POSIX lock on one byte of ``.lock``, so it ends with its owner, however that ends. It saves double work and
no more: were a file system without locks to let two tasks do one unit, both would write the same bytes aside and rename
them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import math
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from mtnlg_data.console import Failure, say

from .units import noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from .units import Engine, Summary, U

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
PRESENCE = 0  # the byte by which one keeps others out, or all show that they are here
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds
SECONDS_BETWEEN_LINES = 60.0
SECONDS_A_DAY = 86_400.0


class Claims:
    """What this process has in hand, of all that is done in a folder."""

    def __init__(self, lock: IO[bytes], folder: Path) -> None:
        self._lock = lock
        self._folder = folder

    def take(self, path: Path) -> bool:
        """Claim the making of this file; False where another process has it in hand."""
        return _locked(self._lock, fcntl.LOCK_EX, self._byte(path))

    def release(self, path: Path) -> None:
        """Let go of it."""
        with suppress(OSError):
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, self._byte(path))

    def _byte(self, path: Path) -> int:
        name = path.relative_to(self._folder).as_posix()
        return 1 + (int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 2)


def _locked(lock: IO[bytes], how: int, byte: int) -> bool:
    """Lock one byte, now or not at all; False where another process holds it."""
    try:
        fcntl.lockf(lock, how | fcntl.LOCK_NB, 1, byte)  # not flock: a child of a killed run would hold on to it
    except OSError as error:
        if error.errno not in NO_LOCKS and not isinstance(error, BlockingIOError | PermissionError):
            raise
        return error.errno in NO_LOCKS
    return True


@contextmanager
def at_work_in(out: Path, key: str, *, shared: bool) -> Iterator[Claims]:
    """Keep other runs out of ``out``, but for tasks that share it and do the same, which is what ``key`` stands for.

    Whoever comes into an empty house clears what killed runs left half written; one of several tasks leaves what is
    of today, since a file system may lock for each machine by itself and not know of the others.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a+b") as lock:
        if _locked(lock, fcntl.LOCK_EX, PRESENCE):
            _sweep(out, time.time() - SECONDS_A_DAY if shared else math.inf)
            lock.truncate(0)
            lock.write(key.encode())
            lock.flush()
        elif not shared:
            raise Failure(f"{out}: another run is at work here; wait for it, or give another --out")
        if shared:
            _join(lock, out, key)
        yield Claims(lock, out)


def _sweep(out: Path, before: float) -> None:
    for leftover in out.rglob(".*.tmp"):
        with suppress(FileNotFoundError):
            if leftover.stat().st_mtime <= before:
                leftover.unlink()


def _join(lock: IO[bytes], out: Path, key: str) -> None:
    if not _locked(lock, fcntl.LOCK_SH, PRESENCE):
        say(f"{out}: another run is at work here; this one begins when it has ended")
        fcntl.lockf(lock, fcntl.LOCK_SH, 1, PRESENCE)
    lock.seek(0)
    if lock.read() != key.encode():
        raise Failure(
            f"{out}: the tasks at work here have another recipe, other input files or another version of mtnlg-data; "
            "start all of them with the same, or give another --out"
        )


class Sharded:
    """An engine that shares its units with other tasks at work in the same folder, each unit done by one of them."""

    def __init__(self, engine: Engine, part: tuple[int, int], claims: Claims) -> None:
        self.part = part
        self._engine = engine
        self._claims = claims

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """See ``Engine``: runs what nobody has in hand, waits for the rest, and takes over what a dead task had."""
        left = list(units)
        pause, said = SHORTEST_PAUSE, time.monotonic()
        while left:
            ended = set()
            for unit, summary in self._unclaimed(function, left):
                ended.add(unit.output)
                yield unit, summary
            for unit in left:
                if unit.output not in ended and (summary_of := noted(unit)) is not None:
                    ended.add(unit.output)
                    yield unit, summary_of
            left = [unit for unit in left if unit.output not in ended]
            pause = SHORTEST_PAUSE if ended else min(2 * pause, LONGEST_PAUSE)
            if left and time.monotonic() - said > SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                say(f"waiting for {len(left)} that other tasks have in hand, first {left[0].output}")
            if left:
                time.sleep(pause)

    def _unclaimed(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Run those that nobody has in hand or has done meanwhile."""
        held = []

        def claimed() -> Iterator[U]:
            for unit in units:
                if self._claims.take(unit.output):
                    held.append(unit.output)
                    if noted(unit) is None:
                        yield unit
                    else:
                        self._claims.release(held.pop())

        try:
            for unit, summary in self._engine.imap(function, claimed()):
                held.remove(unit.output)
                self._claims.release(unit.output)
                yield unit, summary
        finally:
            for output in held:
                self._claims.release(output)
