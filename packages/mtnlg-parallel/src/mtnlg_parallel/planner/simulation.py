"""Pipeline schedule of one step, simulated event by event.

Every stage works in the order of `engine.schedule`. A pass over a chunk begins when its stage is free and its input is
there:

    forward  of chunk c   after the forward  of chunk c - 1 and its send
    backward of chunk c   after the backward of chunk c + 1 and its send
    weights  of chunk c   after its backward, of which it is a part where the order has no such passes

Chunk c lies on stage c mod p. A blocking send occupies both stages, others none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.engine.schedule import orders

if TYPE_CHECKING:
    from mtnlg_parallel.engine.schedule import Kind

NOT_DONE: Final = -1.0


class Event(NamedTuple):
    """One executed pass; times in seconds from the beginning of the step."""

    stage: int
    chunk: int
    micro_batch: int
    kind: Kind
    begin: float
    end: float


class Pipeline(NamedTuple):
    """Seconds of each chunk's passes and of the send to the next chunk (unused for the last).

    ``weights`` is None where backward passes have the weight gradients in them.
    """

    stages: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    hops: tuple[float, ...]
    blocking: bool = False
    weights: tuple[float, ...] | None = None


class Timeline(NamedTuple):
    """Of each stage, in seconds: end of its work, time computing, time in blocking sends.

    Of each chunk begin and end of the last pass that adds to its gradients.
    """

    done: tuple[float, ...]
    computing: tuple[float, ...]
    hopping: tuple[float, ...]
    last_passes: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        """End of the last stage's work."""
        return max(self.done)


def forwards_in_flight(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Forward passes (micro-batch x chunk) that a stage keeps in flight at most."""
    warmup = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
    return min(warmup + 1, micro_batches * chunks)


def simulate(pipeline: Pipeline, micro_batches: int, events: list[Event] | None = None) -> Timeline:
    """Run the schedule; each pass is appended to ``events``."""
    p, total, blocking, hops = pipeline.stages, len(pipeline.forward), pipeline.blocking, pipeline.hops
    # Not from the cache of `orders`, which a search would fill with its thousands of layouts.
    stage_orders = orders.__wrapped__(p, total // p, micro_batches, split=pipeline.weights is not None)
    ready = {kind: [[NOT_DONE] * micro_batches for _ in range(total)] for kind in ("forward", "backward")}
    durations = {"forward": pipeline.forward, "backward": pipeline.backward, "weights": pipeline.weights or ()}
    last_passes = [(0.0, 0.0)] * total
    position, free, computing, hopping = [0] * p, [0.0] * p, [0.0] * p, [0.0] * p
    progressed = True
    while progressed:
        progressed = False
        for stage in range(p):
            own_order, at, now = stage_orders[stage], position[stage], free[stage]
            while at < len(own_order):
                kind, number, turn = own_order[at]
                chunk = turn * p + stage
                step = {"forward": 1, "backward": -1, "weights": total}[kind]
                source, target = chunk - step, chunk + step
                received = 0.0
                if 0 <= source < total:
                    needed = ready[kind][source][number]
                    if needed == NOT_DONE:
                        break
                    received = hops[min(source, chunk)] if blocking else 0.0
                    now = max(now, needed) + received
                sent = hops[min(chunk, target)] if 0 <= target < total else 0.0
                end = now + durations[kind][chunk]
                if events is not None:
                    events.append(Event(stage, chunk, number, kind, now, end))
                computing[stage] += durations[kind][chunk]
                hopping[stage] += received + (sent if blocking else 0.0)
                if kind != "weights":
                    ready[kind][chunk][number] = end if blocking else end + sent
                if kind != "forward":
                    last_passes[chunk] = now, end
                now = end + sent if blocking else end
                at += 1
                progressed = True
            position[stage], free[stage] = at, now
    return Timeline(tuple(free), tuple(computing), tuple(hopping), tuple(last_passes))
