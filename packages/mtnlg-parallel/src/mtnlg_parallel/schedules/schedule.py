"""What a pipeline schedule is: the order in which each rank works, and what engine and planner ask of it.

A rank holds ``chunks`` parts of the decoder. Part c of rank r is virtual stage c · ranks + r, so with more than one a
micro-batch goes round the ranks several times. A rank sends what it has computed at once; what it needs it waits for.
So neighbours must pass micro-batches on in the same order, and no ranks may wait for each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import accumulate
from typing import ClassVar, Final, Literal, NamedTuple

Kind = Literal["forward", "backward", "weights"]
KINDS: Final[tuple[Kind, ...]] = ("forward", "backward", "weights")


class Action(NamedTuple):
    """A piece of a rank's work. Unless ``weights`` are apart, ``backward`` includes them."""

    kind: Kind
    micro_batch: int
    chunk: int


Order = tuple[Action, ...]

LEAVING: Final = 1
"""Passes on their way to the host beside one that runs forward, where activations are offloaded."""

PASSES_ON_DEVICE: Final = LEAVING + 3
"""Passes with activations on the device then: also one forward, one on its way back, and one backward."""


class Schedule(ABC):
    """A pipeline schedule: its orders, and what follows from them."""

    help: ClassVar[str]
    """What it does, in Markdown, for the documentation."""

    fewest_chunks: ClassVar[int] = 1
    most_chunks: ClassVar[int | None] = None
    """Parts of the decoder per rank that it can order."""

    splits_backward: ClassVar[bool] = False
    """Weight gradients are actions of their own."""

    widespread: ClassVar[bool] = False
    """Other training programs that the planner knows have it, too."""

    @abstractmethod
    def orders(self, ranks: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
        """Every rank's actions in one step, in order: each micro-batch of each of its chunks once, of each kind."""

    def takes(self, chunks: int) -> bool:
        """Whether it can order so many parts of the decoder per rank."""
        return self.fewest_chunks <= chunks <= (self.most_chunks or chunks)

    def in_flight(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        """Most forward passes (micro-batch x chunk) of a rank whose backward has not run."""
        return self._most(rank, ranks, chunks, micro_batches, {"forward": 1, "backward": -1})

    def waiting(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        """Most backward passes of a rank whose weight gradients have not been computed."""
        if not self.splits_backward:
            return 0
        return self._most(rank, ranks, chunks, micro_batches, {"backward": 1, "weights": -1})

    def _most(self, rank: int, ranks: int, chunks: int, micro_batches: int, change: dict[str, int]) -> int:
        order = self.orders(ranks, chunks, micro_batches)[rank]
        return max(accumulate(change.get(action.kind, 0) for action in order))
