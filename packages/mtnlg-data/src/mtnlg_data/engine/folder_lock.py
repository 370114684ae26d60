"""Allows one run at a time in a folder, and removes the partial files of killed runs."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mtnlg_data.console import Failure, UsageFailure, say
from mtnlg_data.files import PARTIAL_NAME, open_to_update

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
LOCK = ".lock"


class FolderInUse(Failure):
    """Another run holds the folder's lock."""


def make_folder(out: Path) -> None:
    """Make ``out``, if it does not exist. Raises ``UsageFailure`` if it or one above it is a file."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageFailure(f"{out}: not a folder; give another --out") from None


@contextmanager
def lock_folder(out: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock ``out`` against other runs until the block ends or this process does; removes partial files of killed runs.

    If another run holds the lock, wait for it with ``wait``, else raise `FolderInUse`. A file system without locks
    keeps no run out. Check first that the run can work: the lock's file stays.
    """
    make_folder(out)
    with open_to_update(out / LOCK) as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: a child of a killed run would keep that lock
        except OSError as error:
            if isinstance(error, BlockingIOError | PermissionError):
                if not wait:
                    line = f"{out}: another run is using this folder; wait for it, or give another --out"
                    raise FolderInUse(line) from None
                say(f"{out}: another run is using this folder; this one waits for it")
                fcntl.lockf(lock, fcntl.LOCK_EX)
            elif error.errno not in LOCKS_UNSUPPORTED:
                raise
        remove_partial_files(out)
        yield


def remove_partial_files(out: Path) -> None:
    """Remove our partial files below ``out``, except in folders with a lock of their own: another run's."""
    for folder, folders, names in os.walk(out):
        folders[:] = [name for name in folders if not Path(folder, name, LOCK).exists()]
        for partial in (Path(folder, name) for name in names if PARTIAL_NAME.fullmatch(name)):
            with suppress(FileNotFoundError):
                partial.unlink()
