"""Signals are only noted when they come, and acted on where that can be done in order: between two steps."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

STOPPING: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What asks a run to write a checkpoint and end: Slurm sends one before preemption, the other before time is up."""


@contextmanager
def noted(*numbers: signal.Signals) -> Iterator[list[int]]:
    """A list to which these signals are added as they arrive, instead of what they would do."""
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
