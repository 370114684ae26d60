"""Base class of pipeline schedules: the order in which each rank works, and what engine and planner need from it.

A rank holds ``chunks`` parts of the decoder. Part c of rank r is virtual stage c · ranks + r, so with several parts a
micro-batch passes through the ranks several times. A rank sends its results at once, and waits for its inputs. So
neighbours must process micro-batches in the same order, and the order must not deadlock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import accumulate
from typing import ClassVar, Final, Literal, NamedTuple

Kind = Literal["forward", "backward", "weights"]
KINDS: Final[tuple[Kind, ...]] = ("forward", "backward", "weights")


class Action(NamedTuple):
    """One pass of a rank. ``backward`` includes the weight gradients unless the schedule has ``weights`` passes."""

    kind: Kind
    micro_batch: int
    chunk: int


Order = tuple[Action, ...]

LEAVING: Final = 1
"""With offloaded activations: passes being copied to the host while another runs forward."""

PASSES_ON_DEVICE: Final = LEAVING + 3
"""Passes whose activations are then on the device: also one in forward, one being copied back, one in backward."""


class Schedule(ABC):
    """A pipeline schedule: its orders, and properties that follow from them."""

    help: ClassVar[str]
    """What the schedule does, in Markdown, for the documentation."""

    fewest_chunks: ClassVar[int] = 1
    most_chunks: ClassVar[int | None] = None
    """Most parts of the decoder per rank that the schedule can order; None: no limit."""

    splits_backward: ClassVar[bool] = False
    """Whether weight gradients are separate actions."""

    widespread: ClassVar[bool] = False
    """Whether other training programs in the planner also have this schedule."""

    @abstractmethod
    def orders(self, ranks: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
        """Every rank's actions in one step, in order: each (kind, micro-batch, chunk) exactly once."""

    def takes(self, chunks: int) -> bool:
        """Whether the schedule can order ``chunks`` parts of the decoder per rank."""
        return self.fewest_chunks <= chunks <= (self.most_chunks or chunks)

    def in_flight(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        """Peak number of a rank's forward passes (micro-batch x chunk) whose backward has not run."""
        return self._most(rank, ranks, chunks, micro_batches, {"forward": 1, "backward": -1})

    def waiting(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        """Peak number of a rank's backward passes whose weight gradients have not been computed."""
        if not self.splits_backward:
            return 0
        return self._most(rank, ranks, chunks, micro_batches, {"backward": 1, "weights": -1})

    def _most(self, rank: int, ranks: int, chunks: int, micro_batches: int, change: dict[str, int]) -> int:
        order = self.orders(ranks, chunks, micro_batches)[rank]
        return max(accumulate(change.get(action.kind, 0) for action in order))
