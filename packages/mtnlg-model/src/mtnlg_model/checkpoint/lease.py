"""Leases: a checkpoint that somebody reads is not removed, and nobody begins to read one that is being removed.

A lease is a shared flock on ``.step-N.lock`` beside the folder. It ends with its holder, however that ends, and
never by a clock. Where a file system has no locks, nothing is kept.
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
    """A file that keeps a checkpoint from being removed while this process, or a child that has it, keeps it open.

    Raises ``MissingFileError`` where the checkpoint has been removed.
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
    """Whether nobody has a lease of ``folder``; then nobody gets one in the block, which removes the folder."""
    path = lock_path(folder)
    with open_to_update(path) as file:
        free = _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield free
        if free:
            with suppress(OSError):
                path.unlink()


def lock_path(folder: Path) -> Path:
    """The file by which leases of ``folder`` are had."""
    return folder.with_name(f".{folder.name}.lock")


def _lock(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        return error.errno not in HELD
    return True
