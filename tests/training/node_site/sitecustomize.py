"""What a Python process of a test's node sees differently: its clock, and listings of shared folders (`nodes.Node`).

Python imports this when it starts, from the PYTHONPATH of the node's processes.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK, VIEW = "NODE_CLOCK", "NODE_VIEW"
"""Environment variables: seconds by which the clock is ahead; the file that `nodes.Node.freeze` writes."""


def set_clock_ahead(seconds: int) -> None:
    """Have time.time and time.time_ns return a later time; timers and the machine's clock stay."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + seconds * 10**9


class View:
    """Listings as they were when ``file`` was written, JSON of folder → names, for as long as it is there."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._listdir, self._scandir = os.listdir, os.scandir

    def install(self) -> None:
        """Replace os.listdir and os.scandir."""
        os.listdir, os.scandir = self.listdir, self.scandir  # type: ignore[assignment]

    def listdir(self, path: Any = ".") -> list[Any]:  # noqa: ANN401  (as os.listdir)
        """As os.listdir."""
        seen = self._seen(path)
        return [name for name in self._listdir(path) if seen is None or name in seen]

    def scandir(self, path: Any = ".") -> Entries:  # noqa: ANN401  (as os.scandir)
        """As os.scandir."""
        seen = self._seen(path)
        with self._scandir(path) as entries:
            return Entries([entry for entry in entries if seen is None or entry.name in seen])

    def _seen(self, path: Any) -> frozenset[str] | None:  # noqa: ANN401  (as os.listdir)
        """The names seen in a folder; None where all are."""
        if isinstance(path, int) or not os.path.exists(self._file):  # noqa: PTH110  (pathlib may call this)
            return None
        with open(self._file, encoding="utf-8") as file:  # noqa: PTH123  (as above)
            folders: dict[str, list[str]] = json.load(file)
        names = folders.get(os.path.realpath(path))
        return None if names is None else frozenset(names)


class Entries:
    """An iterator over directory entries that may be closed, as os.scandir returns."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[Any]]:
        """The iterator itself."""
        return self._entries

    def __next__(self) -> os.DirEntry[Any]:
        """The next entry."""
        return next(self._entries)

    def __enter__(self) -> Self:
        """The iterator itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""

    def close(self) -> None:
        """Close."""


if CLOCK in os.environ:
    set_clock_ahead(int(os.environ[CLOCK]))
if VIEW in os.environ:
    View(os.environ[VIEW]).install()
