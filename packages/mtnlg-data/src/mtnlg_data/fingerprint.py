"""Fingerprints: digests of everything that an output depends on; an output with an equal digest is up to date.

Only values that identify their content are accepted: plain values, settings (without the fields that change no byte),
files by their SHA-256, shards by name and checksum, finished work by its key. Anything else raises ``TypeError``, above
all a bare path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from .files import sha256
from .settings import Settings, is_keyed


def fingerprint(value: object) -> str:
    """SHA-256 of a value and everything in it. Raises ``TypeError`` for a value that does not identify its content.

    An object's own method ``fingerprint`` returns the values that identify its content.
    """
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True).encode()).hexdigest()


def _plain(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "fingerprint"):
        return _plain(value.fingerprint())
    if isinstance(value, Settings):
        fields = type(value).model_fields
        return {name: _setting(getattr(value, name)) for name in fields if is_keyed(fields[name])}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    raise TypeError(f"{value!r}: a {type(value).__name__} has no digest of its content; give a File, Shard or value")


def _setting(value: object) -> object:
    """A setting's value; a path in it names a file, whose content counts."""
    if isinstance(value, Path):
        return file_digest(value)
    if isinstance(value, (list, tuple)):
        return [_setting(inner) for inner in value]
    return _plain(value)


class File(NamedTuple):
    """A file or folder, fingerprinted by its content."""

    path: Path

    def fingerprint(self) -> object:
        """Its digest."""
        return file_digest(self.path)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files; cached until a file changes."""
    files = sorted(inner for inner in path.rglob("*") if inner.is_file()) if path.is_dir() else [path]
    digests = [(file.relative_to(path).as_posix(), _digest(file, *_stat(file))) for file in files]
    return digests[0][1] if files == [path] else fingerprint(digests)


def _stat(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


@lru_cache(maxsize=256)
def _digest(path: Path, *stat: int) -> str:
    del stat
    return sha256(path)


@cache
def library_version(distribution: str) -> str | None:
    """The installed version of a library; None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
