"""A step's pipeline schedule, event by event: who computes which micro-batch when, and who waits.

Every stage has its order of work; a piece of work begins when its stage is free and what it needs has arrived

    forward  of chunk c   after the forward  of chunk c - 1 and the hop from there
    backward of chunk c   after the backward of chunk c + 1 and the hop from there

where chunk c lies on stage c mod p. 1F1B (Narayanan et al. 2019) has one chunk a stage: p - 1 - s forwards, then one of
each in turn, then the backwards left. Interleaving (Narayanan et al. 2021, section 2.2) has v chunks a stage and takes
micro-batches p at a time through each. A hop that blocks keeps both stages; one that does not, neither.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Work = tuple[int, int, bool]
"""A piece of a stage's order: the chunk, the micro-batch, and whether it goes backward."""

NEVER: Final = -1.0


class Event(NamedTuple):
    """A piece of work as it happened, in seconds from the beginning of the step."""

    stage: int
    chunk: int
    micro_batch: int
    backward: bool
    begin: float
    end: float


class Pipeline(NamedTuple):
    """Seconds of each chunk forward and backward, and of the hop that follows it; the last chunk's hop is nobody's."""

    stages: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    hops: tuple[float, ...]
    blocking: bool = False


class Timeline(NamedTuple):
    """When each stage was done, and how long it was computing and, where hops block, in hops."""

    done: tuple[float, ...]
    computing: tuple[float, ...]
    hopping: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """When the last stage was done."""
        return max(self.done)


def in_flight(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """How many forwards of its chunks a stage has done at most before it goes back through the first of them."""
    ahead = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
    return min(ahead + 1, micro_batches * chunks)


def order(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Work]:
    """The order of work of a stage that holds chunks stage, stage + p, … of ``chunks`` each."""
    ahead = in_flight(stage, stages, chunks, micro_batches) - 1
    forwards = _direction(stage, stages, chunks, micro_batches, backward=False)
    backwards = _direction(stage, stages, chunks, micro_batches, backward=True)
    steady = [work for pair in zip(forwards[ahead:], backwards, strict=False) for work in pair]
    return forwards[:ahead] + steady + backwards[len(forwards) - ahead :]


def _direction(stage: int, stages: int, chunks: int, micro_batches: int, backward: bool) -> list[Work]:
    """All of one direction: p micro-batches through one chunk, the same through the next, then the next p."""
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
    """Play the schedule, noting each piece of work in ``events``. Interleaving needs a multiple of p micro-batches."""
    p, total, blocking, hops = pipeline.stages, len(pipeline.forward), pipeline.blocking, pipeline.hops
    orders = [order(stage, p, total // p, micro_batches) for stage in range(p)]
    ready = [[[NEVER] * micro_batches for _ in range(total)] for _ in range(2)]  # by direction, chunk, micro-batch
    durations = (pipeline.forward, pipeline.backward)
    place, free, computing, hopping = [0] * p, [0.0] * p, [0.0] * p, [0.0] * p
    moved = True
    while moved:
        moved = False
        for stage in range(p):
            own, at, now = orders[stage], place[stage], free[stage]
            while at < len(own):
                chunk, number, backward = own[at]
                source, target = (chunk + 1, chunk - 1) if backward else (chunk - 1, chunk + 1)
                received = 0.0
                if 0 <= source < total:
                    needed = ready[backward][source][number]
                    if needed == NEVER:
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
                moved = True
            place[stage], free[stage] = at, now
    return Timeline(tuple(free), tuple(computing), tuple(hopping))
