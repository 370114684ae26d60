"""Leases: a checkpoint is not removed while it is read, and cannot be leased while it is being removed.

A lease is a shared flock on ``.step-N.lock`` beside the folder. It ends when its holder ends, for whatever reason, and
never times out. On a file system without locks, a lease protects nothing.
"""

from __future__ import annotations

import errno
import fcntl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from mtnlg_model.files import open_to_update

from .manifest import MANIFEST, MissingFileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HELD = {errno.EAGAIN, errno.EACCES}


def lease(folder: Path) -> BinaryIO:
    """Take a lease: the checkpoint is not removed while this process, or a child that inherits the file, has it open.

    Raises ``MissingFileError`` if the checkpoint has been removed.
    """
    path = lock_path(folder)
    file = open_to_update(path)
    _lock(file, fcntl.LOCK_SH)
    if not (folder / MANIFEST).is_file():
        file.close()
        path.unlink(missing_ok=True)
        raise MissingFileError(f"{folder}: removed meanwhile")
    return file


@contextmanager
def unleased(folder: Path) -> Iterator[bool]:
    """Yield whether ``folder`` has no lease; if so, none can be taken during the block, which removes the folder."""
    path = lock_path(folder)
    with open_to_update(path) as file:
        free = _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield free
        if free:
            with suppress(OSError):
                path.unlink()


def lock_path(folder: Path) -> Path:
    """The lock file for leases of ``folder``."""
    return folder.with_name(f".{folder.name}.lock")


def _lock(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        return error.errno not in HELD
    return True
