"""SQLite cache of a model's answers: a killed run resumes, and nothing is scored twice.

One file, one transaction per batch. A key is a digest of the model (checkpoint digest and precision) and the request's
tokens, so another checkpoint or precision never hits.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mtnlg_model.files import new_or_regular
from mtnlg_model.local_paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

KEYS_PER_QUERY = 500
LOCK_SECONDS = 600.0
"""Longest wait for another command that writes into the same store."""

ARITHMETIC = b"5"
"""Version of the numerics, part of every key: increment it when the last bits of an answer change."""


class AnswerStore:
    """Answers of one model by key; an answer is any JSON value.

    ``taken_over`` counts the answers found that earlier commands had stored before this store was opened.
    """

    def __init__(self, model: str, path: Path | None = None) -> None:
        """Open the file at ``path``, or an in-memory store for None; ``model`` identifies the model."""
        self._model = model.encode()
        if path is not None:
            new_or_regular(local_path(path)).parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.taken_over = 0
        self._lock = threading.Lock()  # one connection serves the thread that scores and the one that builds prompts
        with self._as_os_error():
            self._connection = sqlite3.connect(path or ":memory:", timeout=LOCK_SECONDS, check_same_thread=False)
            weakref.finalize(self, self._connection.close)  # else Python 3.13 warns about an unclosed store
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL)")
            ((self._last_row,),) = self._connection.execute("SELECT IFNULL(MAX(rowid), 0) FROM answers")

    def key(self, *parts: object) -> bytes:
        """Key of a request to this model; ``parts`` are JSON values such as tokens."""
        request = json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()
        return hashlib.sha256(b"\0".join((ARITHMETIC, self._model, request))).digest()

    def lookup(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Stored answers to these keys; missing keys are left out."""
        answers: dict[bytes, Any] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            chunk = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(chunk))
            query = f"SELECT key, answer, rowid FROM answers WHERE key IN ({marks})"  # noqa: S608  (question marks)
            with self._lock, self._as_os_error():
                for key, answer, row in self._connection.execute(query, chunk):
                    answers[key] = json.loads(answer)
                    self.taken_over += row <= self._last_row
        return answers

    def save(self, answers: Iterable[tuple[bytes, Any]]) -> None:
        """Write these answers in one transaction."""
        rows = [(key, json.dumps(answer, ensure_ascii=False)) for key, answer in answers]
        with self._lock, self._as_os_error(), self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        """Turn errors of a store into OSError, which ends the run; a `Failure` would only skip one task."""
        try:
            yield
        except (sqlite3.Error, ValueError, RecursionError) as error:
            reason = f"cannot store answers ({error}); remove the file or choose another --out"
            raise OSError(errno.EIO, reason, str(self._path)) from None
