"""Zero-bubble, ZB-H1 (Qi et al. 2023): weight gradients are separate actions, deferred until a rank would idle.

They are inserted into 1F1B's orders by a simulation in which each of the three kinds takes one unit of time and a
message takes none. On rank r at most r + 1 are deferred: more would make no step shorter (decision 0100). Idle time of
a rank as a share of its work, if forward and both halves of backward take equally long: (p - 1) / (3 v m).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ._1f1b import OneForwardOneBackward
from .schedule import Action

if TYPE_CHECKING:
    from .schedule import Kind, Order


class ZeroBubble(OneForwardOneBackward):
    """1F1B, interleaved or not, with weight gradients computed when a rank would idle."""

    help = (
        "no stage waits for the gradients of weights, so they are computed when a stage would be idle; with one part "
        "of the decoder per stage or more."
    )
    most_chunks = None
    splits_backward = True
    widespread = False

    def orders(self, ranks: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
        """Every rank's actions in one step."""
        return _weights_when_idle(super().orders(ranks, chunks, micro_batches), chunks)

    def waiting(self, rank: int, _ranks: int, chunks: int, micro_batches: int) -> int:
        """Peak number of a rank's backward passes whose weight gradients are deferred: at most rank + 1."""
        return min(rank + 1, micro_batches * chunks)


def _weights_when_idle(plain: tuple[Order, ...], chunks: int) -> tuple[Order, ...]:
    """Insert weight gradients into 1F1B's orders, where a rank would wait for its next input."""
    ranks = len(plain)
    orders: list[list[Action]] = [[] for _ in plain]  # a unit of time each, so that work ends at its length and `idle`
    remaining, waiting, idle = [*map(deque, plain)], [deque[Action]() for _ in plain], [0] * ranks
    ends: dict[tuple[Kind, int, int], int] = {}  # of a kind, a micro-batch, a virtual stage
    active = deque(range(ranks))
    while active:
        rank = active.popleft()
        order, weights, ran = orders[rank], waiting[rank], False
        while remaining[rank]:
            kind, number, chunk = action = remaining[rank][0]
            stage = chunk * ranks + rank
            step = 1 if kind == "forward" else -1
            needed = (kind, number, stage - step) if 0 <= stage - step < chunks * ranks else ("forward", number, stage)
            ready = 0 if kind == "forward" and stage == 0 else ends.get(needed)
            if ready is None:
                break
            remaining[rank].popleft()
            full = kind == "backward" and len(weights) == rank + 1
            while weights and (ready > len(order) + idle[rank] or full):
                order.append(weights.popleft())
                full = False
            idle[rank] += max(0, ready - len(order) - idle[rank])
            order.append(action)
            if kind == "backward":
                weights.append(action._replace(kind="weights"))
            ends[kind, number, stage] = len(order) + idle[rank]
            ran = True
        if ran:  # its neighbours may have their inputs now
            active += [(rank + 1) % ranks, (rank - 1) % ranks]
    return tuple((*order, *weights) for order, weights in zip(orders, waiting, strict=True))


SCHEDULE = ZeroBubble()
