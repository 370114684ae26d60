"""The order in which each pipeline rank works: which micro-batch of which of its parts goes forward or backward next.

A rank holds ``chunks`` parts of the decoder. Part c of rank r is virtual stage c · ranks + r, so with more than one a
micro-batch goes round the ranks several times (Narayanan et al. 2021, section 2.2). Micro-batches go in groups of as
many as there are ranks; of the last group some may be missing. A rank begins with so many forwards that its first
backward comes just in time, then alternates: one forward, one backward.

With ``split``, backward computes the gradients of a part's inputs alone, and those of its weights are an action of its
own, which waits until the rank would be idle (Qi et al. 2023). It is placed by a simulation in which each of the three
takes one unit of time and a message none. On rank r at most r + 1 wait: more would make no step shorter (decision
0108).

Idle time of a rank as a share of its work, for m micro-batches over p ranks with v chunks:

    (p - 1) / (v m)        as it is: 1F1B (v = 1) and interleaved
    (p - 1) / (3 v m)      split, where forward and both halves of backward take as long
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Literal, NamedTuple

Kind = Literal["forward", "backward", "weights"]


class Action(NamedTuple):
    """A piece of a rank's work. Unless ``weights`` are apart, ``backward`` includes them."""

    kind: Kind
    micro_batch: int
    chunk: int


Order = tuple[Action, ...]

LEAVING = 1
"""Passes on their way to the host beside one that runs forward, where activations are offloaded."""

PASSES_ON_DEVICE = LEAVING + 3
"""Passes with activations on the device then: also one forward, one on its way back, and one backward."""


@cache
def orders(ranks: int, chunks: int, micro_batches: int, *, split: bool) -> tuple[Order, ...]:
    """Every rank's actions in one step, in order: each micro-batch of each of its chunks once."""
    whole_groups = micro_batches if chunks == 1 else -(-micro_batches // ranks) * ranks
    plain = []
    for rank in range(ranks):
        order = _one_forward_one_backward(rank, ranks, chunks, whole_groups)
        plain.append([action for action in order if action.micro_batch < micro_batches])
    return _WeightsWhenIdle(plain, chunks).orders() if split else tuple(map(tuple, plain))


def _one_forward_one_backward(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Action]:
    groups = [range(first, min(first + ranks, micro_batches)) for first in range(0, micro_batches, ranks)]
    forwards = [Action("forward", number, chunk) for g in groups for chunk in range(chunks) for number in g]
    backwards = [Action("backward", number, chunk) for g in groups for chunk in reversed(range(chunks)) for number in g]
    behind = ranks - 1 - rank
    ahead = min(len(forwards), behind if chunks == 1 else 2 * behind + (chunks - 1) * ranks)
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


class _WeightsWhenIdle:
    """Puts weight gradients into orders without them, where a rank would wait for its next input."""

    def __init__(self, plain: list[list[Action]], chunks: int) -> None:
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
