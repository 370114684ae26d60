"""Engines that run units in another order, note them, or refuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_data import Local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mtnlg_data.engine.tasks import Summary, Task


class NoWork:
    """Must not be asked for anything."""

    workers = 1

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        raise AssertionError([task.output for task in tasks])


class Backwards(Local):
    """Runs the last unit first."""

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        yield from super().imap(list(tasks)[::-1])


class Recording(Local):
    """Notes the functions that it ran, and the memory of each."""

    def __init__(self) -> None:
        super().__init__(1)
        self.functions: list[str] = []
        self.memory: dict[str, int] = {}

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        for task, summary in super().imap(tasks):
            self.functions.append(name := task.work.rpartition(":")[2])
            self.memory[name] = task.memory
            yield task, summary
