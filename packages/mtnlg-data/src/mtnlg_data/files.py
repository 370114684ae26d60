"""Files that others may tamper with: one opener for reading them, bounded reads, atomic writes, SHA-256.

What is written is readable by its owner and group at most; the umask may say less, and a chmod afterwards more.

``mtnlg_data`` and ``mtnlg_model`` must not import one another, so each has a copy of this file; a test keeps the copies
byte-equal.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import stat
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _typeshed import ReadableBuffer, WriteableBuffer


FILE_MODE = 0o640
SMALL_BYTES = 1 << 26
READ_BYTES = 1 << 16


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let an ``OSError`` of the block that names no file, such as EIO of a read, name ``path``."""
    try:
        yield
    except OSError as error:
        is_short = str(error).endswith(" written")  # numpy reports how much was written, not the cause
        number = errno.ENOSPC if is_short else error.errno
        if error.filename is not None or number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


class _NamedFile(io.FileIO):
    """A file whose errors name it."""

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into ``buffer``."""
        with naming(self.name):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """Read to the end."""
        with naming(self.name):
            return super().readall()

    def write(self, content: ReadableBuffer) -> int:
        """Write as much as the disk takes at once."""
        with naming(self.name):
            return super().write(content)


def open_regular(path: Path, *, follow: bool = False) -> io.BufferedReader:
    """Open a regular file for reading bytes. Raises ``Failure`` for a pipe, device, folder or socket, unread.

    A link is refused too, unless ``follow``: for what users point us to, not for what a foreign folder holds. A read
    returns as many bytes as it was asked for, unless the file ends; its ``OSError`` names the file.
    """
    return io.BufferedReader(_NamedFile(path, "rb", opener=partial(_open, follow=follow)), READ_BYTES)


def regular(path: Path) -> Path:
    """``path``, for a library that opens it itself; raises as ``open_regular(path, follow=True)``."""
    open_regular(path, follow=True).close()
    return path


def open_to_update(path: Path, flags: int = 0) -> io.BufferedRandom:
    """Open a regular file for reading and writing, made where there is none. Raises ``Failure`` as `open_regular`.

    ``flags`` may be ``os.O_APPEND`` or ``os.O_TRUNC``; the position is the file's beginning.
    """
    return io.BufferedRandom(_NamedFile(path, "r+b", opener=partial(_open, more=os.O_CREAT | flags)))


def _open(path: Path | str, flags: int, more: int = 0, follow: bool = False) -> int:
    refused = _not_regular(path, follow)
    try:
        handle = os.open(path, flags | more | os.O_NOFOLLOW * (not follow) | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:  # a link; a folder; a socket
            raise refused from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise refused
    return handle


def new_or_regular(path: Path) -> Path:
    """``path``, for a library that writes there. Raises ``Failure`` where it is a link, folder, pipe or device."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise _not_regular(path)
    return path


def _not_regular(path: Path | str, follow: bool = False) -> Failure:
    hint = "" if follow else ", or a link; remove it, or replace it by the file itself"
    return Failure(f"{path}: not a regular file{hint}")


def read_small(path: Path, limit: int = SMALL_BYTES, *, follow: bool = False) -> bytes:
    """The bytes of a file that `open_regular` opens. Raises ``Failure`` where they are more than ``limit``."""
    with open_regular(path, follow=follow) as file:
        content = file.read(limit + 1)
    return _bounded(content, limit, path)


def file_lines(path: Path, *, follow: bool = False) -> Iterator[bytes]:
    """Yield the lines of a file that `open_regular` opens. Raises ``Failure`` for one of more than `SMALL_BYTES`."""
    with open_regular(path, follow=follow) as file:
        while line := file.readline(SMALL_BYTES + 1):
            yield _bounded(line, SMALL_BYTES, path)


def _bounded(content: bytes, limit: int, path: Path) -> bytes:
    if len(content) > limit:
        raise Failure(f"{path}: more than {limit:,} bytes, the limit for such a file or line")
    return content


def sync_directory(path: Path, flags: int = os.O_RDONLY) -> None:
    """Fsync a directory, so that its entries survive a power loss; with ``os.O_RDWR`` a file."""
    handle = os.open(path, flags)
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
    An ``OSError`` that names no file, such as a full disk, is raised again naming ``path``. Raises ``Failure`` where
    ``path`` is a link, folder, pipe or device, which the rename would replace.
    """
    new_or_regular(path).parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path):
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE))
            yield partial
            sync_directory(partial, os.O_RDWR)
            partial.replace(path)
            sync_directory(path.parent)
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
    with open_regular(path, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
