"""The pipeline's schedule: its bubble where everything is equal and free, and what it conserves where nothing is."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.planner.simulation import Event, Pipeline, Timeline, forwards_in_flight, simulate, stage_order

seconds = st.floats(0.01, 10.0)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Pipeline, int]:
    """A pipeline of unlike stages with unlike hops, and a number of micro-batches it can take."""
    stages, chunks = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    total = stages * chunks
    forward, backward, hops = (tuple(draw(st.lists(seconds, min_size=total, max_size=total))) for _ in range(3))
    micro_batches = draw(st.integers(1, 4)) * (stages if chunks > 1 else 1)
    return Pipeline(stages, forward, backward, hops, blocking=draw(st.booleans())), micro_batches


def equal(stages: int, chunks: int, micro_batches: int) -> Timeline:
    """Equal stages, free communication; a micro-batch takes a stage 1 s forward and 2 s backward in all."""
    total = stages * chunks
    free = Pipeline(stages, (1 / chunks,) * total, (2 / chunks,) * total, (0.0,) * total)
    return simulate(free, micro_batches)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 5), (2, 2), (4, 16), (35, 240), (8, 3)])
def test_the_bubble_of_1f1b_is_p_less_1_in_m_and_p_less_1(stages: int, micro_batches: int) -> None:
    whole = equal(stages, 1, micro_batches).seconds
    assert 1 - 3 * micro_batches / whole == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 5, 4), (35, 3, 70)])
def test_interleaving_divides_the_bubble_by_the_chunks(stages: int, chunks: int, micro_batches: int) -> None:
    work = 3 * micro_batches
    plain, interleaved = (equal(stages, v, micro_batches).seconds - work for v in (1, chunks))
    assert interleaved == pytest.approx(plain / chunks)


@given(pipelines())
def test_every_piece_is_done_once_in_the_order_that_it_needs(drawn: tuple[Pipeline, int]) -> None:
    pipeline, micro_batches = drawn
    events: list[Event] = []
    timeline = simulate(pipeline, micro_batches, events)
    ends = {(event.chunk, event.micro_batch, event.backward): event for event in events}
    chunks = len(pipeline.forward)
    assert len(ends) == len(events) == 2 * chunks * micro_batches
    for event in events:
        before = event.chunk + (1 if event.backward else -1)
        if 0 <= before < chunks:
            hop = pipeline.hops[min(before, event.chunk)]
            assert event.begin >= ends[before, event.micro_batch, event.backward].end + hop - 1e-9
        if event.backward:
            assert event.begin >= ends[event.chunk, event.micro_batch, False].end - 1e-9
    for stage in range(pipeline.stages):
        lane = sorted((event for event in events if event.stage == stage), key=lambda event: event.begin)
        assert all(one.end <= other.begin + 1e-9 for one, other in pairwise(lane))
        work = micro_batches * sum(
            pipeline.forward[stage :: pipeline.stages] + pipeline.backward[stage :: pipeline.stages]
        )
        assert timeline.computing[stage] == pytest.approx(work)


@given(pipelines(), st.floats(1.0, 4.0))
def test_a_slower_link_or_stage_never_saves_time(drawn: tuple[Pipeline, int], slower: float) -> None:
    pipeline, micro_batches = drawn
    before = simulate(pipeline, micro_batches).seconds
    for changed in (
        pipeline._replace(hops=tuple(slower * hop for hop in pipeline.hops)),
        pipeline._replace(forward=tuple(slower * work for work in pipeline.forward)),
        pipeline._replace(backward=tuple(slower * work for work in pipeline.backward)),
    ):
        assert simulate(changed, micro_batches).seconds >= before - 1e-9


@given(pipelines())
def test_a_hop_that_blocks_is_never_quicker_than_one_that_does_not(drawn: tuple[Pipeline, int]) -> None:
    pipeline, micro_batches = drawn
    times = [simulate(pipeline._replace(blocking=blocking), micro_batches).seconds for blocking in (False, True)]
    assert times[0] <= times[1] + 1e-9


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_no_more_is_in_flight_than_is_said(stages: int, chunks: int, rounds: int) -> None:
    micro_batches = rounds * stages
    for stage in range(stages):
        flying = most = 0
        for _, _, backward in stage_order(stage, stages, chunks, micro_batches):
            flying += -1 if backward else 1
            most = max(most, flying)
        assert flying == 0
        assert most == forwards_in_flight(stage, stages, chunks, micro_batches)
