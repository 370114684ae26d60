"""What has been computed, kept as it comes, so that a killed run goes on and scores nothing twice.

One SQLite file, a transaction a batch. A key is a digest of the model (the checkpoint's digest, the precision) and of
the tokens: another checkpoint, or the same at another precision, never finds an answer here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

KEYS_AT_ONCE = 500

ARITHMETIC = b"2"
"""Raised where an answer's last bits change, so that none of another arithmetic are mixed in."""


class Store:
    """Answers of one model, by key; any JSON value may be an answer."""

    def __init__(self, model: str, path: Path | None = None) -> None:
        """Open ``path``, or memory alone where it is None, for the model of this identity."""
        self._model = model.encode()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        with self._told():
            self._connection = sqlite3.connect(path or ":memory:")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL)")

    def key(self, *parts: object) -> bytes:
        """The key of a question to this model, ``parts`` being JSON values such as tokens."""
        told = json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()
        return hashlib.sha256(b"\0".join((ARITHMETIC, self._model, told))).digest()

    def known(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """The answers at hand of these."""
        found: dict[bytes, Any] = {}
        for start in range(0, len(keys), KEYS_AT_ONCE):
            part = keys[start : start + KEYS_AT_ONCE]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, answer FROM answers WHERE key IN ({marks})"  # noqa: S608  (question marks)
            with self._told():
                found |= {key: json.loads(answer) for key, answer in self._connection.execute(query, part)}
        return found

    def keep(self, answers: Iterable[tuple[bytes, Any]]) -> None:
        """Write these answers, all of them or, if the process dies here, none."""
        told = [(key, json.dumps(answer, ensure_ascii=False)) for key, answer in answers]
        with self._told(), self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", told)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A file that fails ends the whole run, as OSError does; a `Failure` would be one task's."""
        try:
            yield
        except sqlite3.Error as error:
            why = f"cannot hold the answers ({error}); remove it or give another --out"
            raise OSError(errno.EIO, why, str(self._path)) from None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
