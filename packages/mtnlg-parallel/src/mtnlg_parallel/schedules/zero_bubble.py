"""Zero-bubble, ZB-H1 (Qi et al. 2023): weight gradients are actions of their own, which wait until a rank would idle.

They are placed in 1F1B's orders by a simulation in which each of the three kinds takes one unit of time and a message
none. On rank r at most r + 1 wait: more would make no step shorter (decision 0100). Idle time of a rank as a share of
its work, where forward and both halves of backward take as long: (p - 1) / (3 v m).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ._1f1b import OneForwardOneBackward
from .schedule import Action

if TYPE_CHECKING:
    from .schedule import Kind, Order


class ZeroBubble(OneForwardOneBackward):
    """1F1B, interleaved or not, with weight gradients where a rank would idle."""

    help = (
        "nobody waits for the gradients of weights, so they are computed when a stage would be idle; with one part of "
        "the decoder per stage or more."
    )
    most_chunks = None
    splits_backward = True
    widespread = False

    def orders(self, ranks: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
        """Every rank's actions in one step."""
        return _WeightsWhenIdle(super().orders(ranks, chunks, micro_batches), chunks).orders()

    def waiting(self, rank: int, _ranks: int, chunks: int, micro_batches: int) -> int:
        """Most backward passes of a rank whose weight gradients have not been computed: as many as it lets wait."""
        return min(rank + 1, micro_batches * chunks)


class _WeightsWhenIdle:
    """Puts weight gradients into orders without them, where a rank would wait for its next input."""

    def __init__(self, plain: tuple[Order, ...], chunks: int) -> None:
        self._plain, self._ranks, self._chunks = plain, len(plain), chunks
        self._orders: list[list[Action]] = [[] for _ in plain]
        self._now = [0] * self._ranks
        self._waiting = [deque[Action]() for _ in plain]
        self._ends: dict[tuple[Kind, int, int], int] = {}  # of a kind, a micro-batch, a virtual stage

    def orders(self) -> tuple[Order, ...]:
        """The orders with weight gradients."""
        left = [deque(order) for order in self._plain]
        active = deque(range(self._ranks))
        while active:
            rank = active.popleft()
            ran = False
            while left[rank] and (ready := self._ready(rank, left[rank][0])) is not None:
                self._run(rank, left[rank].popleft(), ready)
                ran = True
            if ran:  # its neighbours may have their inputs now
                active += [(rank + 1) % self._ranks, (rank - 1) % self._ranks]
        for rank, waiting in enumerate(self._waiting):
            self._orders[rank] += waiting
        return tuple(map(tuple, self._orders))

    def _ready(self, rank: int, action: Action) -> int | None:
        """When the action's input is there; None where that is not known yet."""
        stage, last = action.chunk * self._ranks + rank, self._chunks * self._ranks - 1
        if action.kind == "forward":
            return self._ends.get(("forward", action.micro_batch, stage - 1)) if stage else 0
        if stage == last:
            return self._ends.get(("forward", action.micro_batch, stage))
        return self._ends.get(("backward", action.micro_batch, stage + 1))

    def _run(self, rank: int, action: Action, ready: int) -> None:
        waiting = self._waiting[rank]
        full = action.kind == "backward" and len(waiting) == rank + 1
        while waiting and (ready > self._now[rank] or full):
            self._append(rank, waiting.popleft())
            full = False
        self._now[rank] = max(self._now[rank], ready)
        self._append(rank, action)
        if action.kind == "backward":
            waiting.append(action._replace(kind="weights"))
        self._ends[action.kind, action.micro_batch, action.chunk * self._ranks + rank] = self._now[rank]

    def _append(self, rank: int, action: Action) -> None:
        self._orders[rank].append(action)
        self._now[rank] += 1


SCHEDULE = ZeroBubble()
