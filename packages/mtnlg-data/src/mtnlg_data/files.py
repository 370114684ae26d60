"""Atomic file writes: a temporary file beside the target, fsync, rename; and SHA-256 of a file.

``mtnlg_data`` and ``mtnlg_model`` must not import one another, so each has a copy of this file; a test keeps the copies
byte-equal.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Fsync a directory, so that its entries survive a power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{8}\.tmp", re.DOTALL)
"""Names of the temporary files of `atomic_path`."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write; on success fsync it and rename it to ``path``, else remove it.

    The temporary name is random, since processes of several machines may share the folder and have equal process ids.
    An ``OSError`` that names no file, such as a full disk, is raised again naming ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield partial
        handle = os.open(partial, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        partial.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        short_write = str(error).endswith(" written")  # numpy reports how much was written, not the cause
        number = error.errno or (errno.ENOSPC if short_write else None)
        if error.filename is None and number:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_open(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing bytes; readers see the old file or the complete new one."""
    with atomic_path(path) as partial, partial.open("wb") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Atomically replace ``path`` by ``text``, UTF-8."""
    with atomic_open(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Atomically replace ``path`` by ``value`` as indented JSON with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
