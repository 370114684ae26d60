"""The pipeline's schedule: what it conserves where nothing is equal or free; test_pipeline_orders.py has its bubble."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.planner.simulation import Event, Pipeline, Timeline, simulate
from mtnlg_parallel.schedules import load_schedule, schedule_of
from mtnlg_parallel.schedules.schedule import LEAVING

seconds = st.floats(0.01, 10.0)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Pipeline, int]:
    """A pipeline of unlike stages with unlike hops, weight gradients apart or not, and a number of micro-batches."""
    stages, chunks = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    total = stages * chunks
    forward, backward, hops, apart = (tuple(draw(st.lists(seconds, min_size=total, max_size=total))) for _ in range(4))
    weights = apart if draw(st.booleans()) else None
    copies = draw(st.none() | st.lists(seconds, min_size=total, max_size=total).map(tuple))
    return Pipeline(stages, forward, backward, hops, draw(st.booleans()), weights, copies), draw(st.integers(1, 12))


def run(pipeline: Pipeline, micro_batches: int, events: list[Event] | None = None) -> Timeline:
    chunks = len(pipeline.forward) // pipeline.stages
    schedule = load_schedule("zero-bubble" if pipeline.weights else schedule_of(chunks))
    return simulate(pipeline, schedule.orders(pipeline.stages, chunks, micro_batches), events)


@given(pipelines())
def test_every_piece_is_done_once_in_the_order_that_it_needs(drawn: tuple[Pipeline, int]) -> None:
    pipeline, micro_batches = drawn
    events: list[Event] = []
    timeline = run(pipeline, micro_batches, events)
    ends = {(event.chunk, event.micro_batch, event.kind): event for event in events}
    chunks = len(pipeline.forward)
    assert len(ends) == len(events) == (3 if pipeline.weights else 2) * chunks * micro_batches
    for event in events:
        before = event.chunk + (1 if event.kind == "backward" else -1)
        if 0 <= before < chunks and event.kind != "weights":
            hop = pipeline.hops[min(before, event.chunk)]
            assert event.begin >= ends[before, event.micro_batch, event.kind].end + hop - 1e-9
        if event.kind != "forward":
            needed = ends[event.chunk, event.micro_batch, "forward" if event.kind == "backward" else "backward"]
            assert event.begin >= needed.end - 1e-9
    for stage in range(pipeline.stages):
        lane = sorted((event for event in events if event.stage == stage), key=lambda event: event.begin)
        assert all(one.end <= other.begin + 1e-9 for one, other in pairwise(lane))
        passes = (pipeline.forward, pipeline.backward, pipeline.weights or ())
        work = micro_batches * sum(sum(each[stage :: pipeline.stages]) for each in passes)
        assert timeline.computing[stage] == pytest.approx(work)
        for chunk in range(stage, chunks, pipeline.stages):
            last = max(event.end for event in lane if event.chunk == chunk)
            assert timeline.last_passes[chunk][1] == last


@given(pipelines(), st.floats(1.0, 4.0))
def test_a_slower_link_or_stage_never_saves_time(drawn: tuple[Pipeline, int], slower: float) -> None:
    pipeline, micro_batches = drawn
    before = run(pipeline, micro_batches).seconds
    for changed in (
        pipeline._replace(hops=tuple(slower * hop for hop in pipeline.hops)),
        pipeline._replace(forward=tuple(slower * work for work in pipeline.forward)),
        pipeline._replace(backward=tuple(slower * work for work in pipeline.backward)),
        pipeline._replace(copies=tuple(slower * copy for copy in pipeline.copies or pipeline.hops)),
    ):
        assert run(changed, micro_batches).seconds >= before - 1e-9


EQUAL = [(4, 1, True), (4, 2, False), (8, 1, True), (8, 3, True)]


def offloaded(stages: int, chunks: int, split: bool, copy: float, micro_batches: int) -> float:
    """Seconds of equal stages, each kind of pass a second long, of which every pass is copied out and back."""
    one, free = ((each,) * (stages * chunks) for each in (1.0, 0.0))
    pipeline = Pipeline(stages, one, one, free, weights=one if split else None, copies=(copy,) * (stages * chunks))
    return run(pipeline, micro_batches).seconds


@pytest.mark.parametrize(("stages", "chunks", "split"), EQUAL)
def test_copies_of_activations_no_longer_than_a_pass_are_hidden(stages: int, chunks: int, split: bool) -> None:
    """But one, where a stage has nothing else to do."""
    for groups in (2, 5):
        at_once, copied = (offloaded(stages, chunks, split, copy, groups * stages) for copy in (0.0, 0.9))
        assert copied - at_once <= 0.9 + 1e-9


def test_forward_waits_for_the_copy_two_before() -> None:
    one, free, events = (1.0,) * 8, (0.0,) * 8, list[Event]()
    run(Pipeline(8, one, one, free, copies=(5.0,) * 8), 8, events)
    begins = [event.begin for event in events if event.stage == 0 and event.kind == "forward"]
    assert begins == [0.0, 1.0, *(1.0 + 5.0 * copies for copies in range(1, 7))]


@pytest.mark.parametrize(("stages", "chunks", "split"), EQUAL)
def test_a_host_link_that_is_too_slow_takes_a_copy_a_pass(stages: int, chunks: int, split: bool) -> None:
    """The first stage moves out all but few passes that are needed again at once."""
    copy, passes = 20.0, 4 * stages * chunks
    staying = 1 + LEAVING + passes // stages  # of 1F1B's last part no stage but the last has any
    assert offloaded(stages, chunks, split, copy, 4 * stages) >= copy * (passes - staying)
