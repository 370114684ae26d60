"""Simulates the pipeline schedule of one step, event by event.

Every stage works in the order of its schedule. A pass over a chunk begins when its stage is free and its input has
arrived:

    forward  of chunk c   after the forward  of chunk c - 1 and its send
    backward of chunk c   after the backward of chunk c + 1 and its send
    weights  of chunk c   after its backward; part of it if the order has no such passes

Chunk c is on stage c mod p. A blocking send occupies both stages, other sends none. Offloaded activations may make
passes wait too (`_HostLink`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_model.console import UsageFailure
from mtnlg_parallel.schedules.schedule import LEAVING, Action

if TYPE_CHECKING:
    from mtnlg_parallel.schedules.schedule import Kind, Order

NOT_DONE: Final = -1.0


class Event(NamedTuple):
    """One executed pass; times in seconds from the start of the step."""

    stage: int
    chunk: int
    micro_batch: int
    kind: Kind
    begin: float
    end: float


class Pipeline(NamedTuple):
    """Seconds of each chunk's passes and of the send to the next chunk (unused for the last).

    ``weights`` is None if backward passes include the weight gradients. ``copies``: seconds to copy a chunk's
    activations to the host, or back; None if they are not offloaded.
    """

    stages: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    hops: tuple[float, ...]
    blocking: bool = False
    weights: tuple[float, ...] | None = None
    copies: tuple[float, ...] | None = None


class Timeline(NamedTuple):
    """Seconds per stage: end of its work, computing time, time in blocking sends.

    ``last_passes`` has, per chunk, begin and end of the last pass that adds to its gradients.
    """

    done: tuple[float, ...]
    computing: tuple[float, ...]
    hopping: tuple[float, ...]
    last_passes: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        """End of the last stage's work."""
        return max(self.done)


class _HostLink:
    """One stage's copies of activations to the host and back, by the rules of `engine.offloading`.

    Each direction is a queue. A forward pass waits until the activations of the pass before the last are on the host; a
    backward pass until its own are back, whose copy starts with the previous backward pass. Activations of a pass whose
    backward follows at once stay on the device.
    """

    def __init__(self, order: Order, seconds: tuple[float, ...]) -> None:
        self._seconds = seconds
        self._out = self._back = 0.0
        self._leaving: dict[Action, float] = {}  # oldest first
        self._arrivals: dict[Action, float] = {}
        self._left: dict[Action, float] = {}  # of what was needed again before it was let go
        backward = [action for action in order if action.kind == "backward"]
        self._next = dict(pairwise(backward))
        self._staying = {one for one, other in pairwise(order) if other == one._replace(kind="backward")}

    def ready(self, action: Action, free: float) -> float:
        """Earliest time at which a pass may begin on a stage that is free from ``free`` on."""
        if action.kind == "forward":
            waits = action not in self._staying and len(self._leaving) > LEAVING
            return self._leaving.pop(next(iter(self._leaving))) if waits else 0.0
        if action.kind == "weights":
            return 0.0
        for brought in (action, self._next.get(action, action)):
            forward = brought._replace(kind="forward")
            if forward in self._leaving:
                self._arrivals[brought], self._left[brought] = 0.0, self._leaving.pop(forward)
            elif brought not in self._arrivals and forward not in self._staying:
                self._back = self._arrivals[brought] = max(self._back, free) + self._seconds[brought.chunk]
        return self._arrivals.pop(action, 0.0)

    def free(self, action: Action, end: float) -> float:
        """When the stage may continue after a pass that ends at ``end``: memory is freed only once it is copied."""
        if action.kind == "forward" and action not in self._staying:
            self._out = self._leaving[action] = max(self._out, end) + self._seconds[action.chunk]
        if action.kind == "backward":
            return max(end, self._left.pop(action, 0.0))
        return end


def _check_finished(position: list[int], orders: tuple[Order, ...]) -> None:
    if position != [len(order) for order in orders]:
        raise UsageFailure("the schedule deadlocks: its stages wait for each other")


def simulate(pipeline: Pipeline, orders: tuple[Order, ...], events: list[Event] | None = None) -> Timeline:
    """Run the stages' orders; appends each pass to ``events``, if given.

    Raises ``UsageFailure`` if stages deadlock.
    """
    p, total, blocking, hops = pipeline.stages, len(pipeline.forward), pipeline.blocking, pipeline.hops
    micro_batches = 1 + max(action.micro_batch for action in orders[0])
    ready = {kind: [[NOT_DONE] * micro_batches for _ in range(total)] for kind in ("forward", "backward")}
    durations = {"forward": pipeline.forward, "backward": pipeline.backward, "weights": pipeline.weights or ()}
    last_passes = [(0.0, 0.0)] * total
    position, free, computing, hopping = [0] * p, [0.0] * p, [0.0] * p, [0.0] * p
    copies = pipeline.copies
    links = [_HostLink(order, copies[s::p]) for s, order in enumerate(orders)] if copies else None
    progressed = True
    while progressed:
        progressed = False
        for stage in range(p):
            own_order, at, now = orders[stage], position[stage], free[stage]
            while at < len(own_order):
                kind, number, turn = own_order[at]
                chunk = turn * p + stage
                step = {"forward": 1, "backward": -1, "weights": total}[kind]
                source, target = chunk - step, chunk + step
                received, idle_from = 0.0, now
                if 0 <= source < total:
                    needed = ready[kind][source][number]
                    if needed == NOT_DONE:
                        break
                    received = hops[min(source, chunk)] if blocking else 0.0
                    now = max(now, needed) + received
                sent = hops[min(chunk, target)] if 0 <= target < total else 0.0
                if links:
                    now = max(now, links[stage].ready(own_order[at], idle_from))
                end = now + durations[kind][chunk]
                if events is not None:
                    events.append(Event(stage, chunk, number, kind, now, end))
                computing[stage] += durations[kind][chunk]
                hopping[stage] += received + (sent if blocking else 0.0)
                if kind != "weights":
                    ready[kind][chunk][number] = end if blocking else end + sent
                last_passes[chunk] = now, end
                now = end + sent if blocking else end
                if links:
                    now = links[stage].free(own_order[at], now)
                at += 1
                progressed = True
            position[stage], free[stage] = at, now
    _check_finished(position, orders)
    return Timeline(tuple(free), tuple(computing), tuple(hopping), tuple(last_passes))
