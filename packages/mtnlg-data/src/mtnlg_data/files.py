"""Files that exist whole or not at all: written aside, fsynced, renamed; named by their checksum.

``mtnlg_data`` and ``mtnlg_model`` must not import one another, so this file stands in both, and a test keeps the two
byte-equal.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` survive a power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write; on success sync that file and rename it to ``path``, else remove it.

    The name is drawn: on a shared folder the process of another machine may have this one's number. An error of the
    system that names no file, such as a full disk, leaves naming ``path``.
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
        short = str(error).endswith(" written")  # numpy says how much was written, not why no more was
        number = error.errno or (errno.ENOSPC if short else None)
        if error.filename is None and number:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` for writing bytes, so that readers see the old file or the whole new one."""
    with aside(path) as partial, partial.open("wb") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by this text, UTF-8."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Replace ``path`` by ``value`` as indented JSON with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
