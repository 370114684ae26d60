"""Pipeline schedule of one step, simulated event by event.

Every stage works in a fixed order. A pass over a chunk begins when its stage is free and its input is there:

    forward  of chunk c   after the forward  of chunk c - 1 and its send
    backward of chunk c   after the backward of chunk c + 1 and its send

Chunk c lies on stage c mod p. 1F1B (Narayanan et al. 2019) has one chunk a stage: p - 1 - s forwards, then forward and
backward in turn, then the remaining backwards. Interleaving (Narayanan et al. 2021, section 2.2) has v chunks a stage
and takes p micro-batches at a time through each. A blocking send occupies both stages, others none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Work = tuple[int, int, bool]
"""(chunk, micro-batch, backward): one entry of a stage's order."""

NOT_DONE: Final = -1.0


class Event(NamedTuple):
    """One executed pass; times in seconds from the beginning of the step."""

    stage: int
    chunk: int
    micro_batch: int
    backward: bool
    begin: float
    end: float


class Pipeline(NamedTuple):
    """Seconds of each chunk's forward and backward pass and of the send to the next chunk (unused for the last)."""

    stages: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    hops: tuple[float, ...]
    blocking: bool = False


class Timeline(NamedTuple):
    """Of each stage, in seconds: end of its work, time computing, time in blocking sends."""

    done: tuple[float, ...]
    computing: tuple[float, ...]
    hopping: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """End of the last stage's work."""
        return max(self.done)


def forwards_in_flight(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Forward passes (micro-batch x chunk) that a stage keeps in flight at most."""
    warmup = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
    return min(warmup + 1, micro_batches * chunks)


def stage_order(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Work]:
    """A stage's order of work, with ``chunks`` chunks: stage, stage + p, …"""
    warmup = forwards_in_flight(stage, stages, chunks, micro_batches) - 1
    forwards = _one_direction(stage, stages, chunks, micro_batches, backward=False)
    backwards = _one_direction(stage, stages, chunks, micro_batches, backward=True)
    steady = [work for pair in zip(forwards[warmup:], backwards, strict=False) for work in pair]
    return forwards[:warmup] + steady + backwards[len(forwards) - warmup :]


def _one_direction(stage: int, stages: int, chunks: int, micro_batches: int, backward: bool) -> list[Work]:
    """All passes of one direction: p micro-batches through each chunk in turn, then the next p."""
    if chunks == 1:
        return [(stage, number, backward) for number in range(micro_batches)]
    turns = range(chunks - 1, -1, -1) if backward else range(chunks)
    return [
        (turn * stages + stage, first + place, backward)
        for first in range(0, micro_batches, stages)
        for turn in turns
        for place in range(stages)
    ]


def simulate(pipeline: Pipeline, micro_batches: int, events: list[Event] | None = None) -> Timeline:
    """Run the schedule; each pass is appended to ``events``. Interleaving needs a multiple of p micro-batches."""
    p, total, blocking, hops = pipeline.stages, len(pipeline.forward), pipeline.blocking, pipeline.hops
    orders = [stage_order(stage, p, total // p, micro_batches) for stage in range(p)]
    ready = [[[NOT_DONE] * micro_batches for _ in range(total)] for _ in range(2)]  # by direction, chunk, micro-batch
    durations = (pipeline.forward, pipeline.backward)
    position, free, computing, hopping = [0] * p, [0.0] * p, [0.0] * p, [0.0] * p
    progressed = True
    while progressed:
        progressed = False
        for stage in range(p):
            own_order, at, now = orders[stage], position[stage], free[stage]
            while at < len(own_order):
                chunk, number, backward = own_order[at]
                source, target = (chunk + 1, chunk - 1) if backward else (chunk - 1, chunk + 1)
                received = 0.0
                if 0 <= source < total:
                    needed = ready[backward][source][number]
                    if needed == NOT_DONE:
                        break
                    received = hops[min(source, chunk)] if blocking else 0.0
                    now = max(now, needed) + received
                sent = hops[min(chunk, target)] if 0 <= target < total else 0.0
                end = now + durations[backward][chunk]
                if events is not None:
                    events.append(Event(stage, chunk, number, backward, now, end))
                computing[stage] += durations[backward][chunk]
                hopping[stage] += received + (sent if blocking else 0.0)
                ready[backward][chunk][number] = end if blocking else end + sent
                now = end + sent if blocking else end
                at += 1
                progressed = True
            position[stage], free[stage] = at, now
    return Timeline(tuple(free), tuple(computing), tuple(hopping))
