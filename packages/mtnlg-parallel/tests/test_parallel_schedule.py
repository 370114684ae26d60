"""The schedules at points of the paper computed by hand, and properties of every schedule."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.training.schedule import BatchSize, LearningRate, Ramp, Shape

SEQUENCE = 2048
SHAPES: tuple[Shape, ...] = ("cosine", "linear")
PEAK, FLOOR = 5.0e-5, 5.0e-6
MT_NLG_RATE = LearningRate(peak=PEAK, floor=FLOOR, warmup=488_281, decay=166_015_625)
MT_NLG_RAMP = Ramp(start=32, increment=32, samples=5_859_375)
MT_NLG_BATCH = BatchSize(size=1920, ramp=MT_NLG_RAMP, multiple=8)


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [
        (0, 0.0),
        (0.5e9, 2.5e-5),  # half the warm-up
        (1e9, 5.0e-5),
        (6e9, 4.9976e-5),  # 5e-6 + 4.5e-5 (1 + cos(π 5/339)) / 2
        (12e9, 4.9883e-5),  # the same with 11/339
        (100e9, 4.12e-5),  # paper.md section 2
        (200e9, 2.14e-5),
        (270e9, 9.57e-6),
        (340e9, 5.0e-6),
        (400e9, 5.0e-6),
    ],
)
def test_the_learning_rate_equals_the_papers(tokens: float, rate: float) -> None:
    assert MT_NLG_RATE.at(round(tokens / SEQUENCE)) == pytest.approx(rate, rel=1.5e-3, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "batch"),
    [
        (0, 32),
        (1e9, 160),  # 488,281 samples are 4.9 increments of 99,311
        (6e9, 960),  # 29.5 increments
        (12e9 - SEQUENCE * 99_311, 1888),  # the last increment but one
        (12e9, 1920),
        (100e9, 1920),
        (270e9, 1920),
    ],
)
def test_the_batch_size_equals_the_papers(tokens: float, batch: int) -> None:
    assert MT_NLG_BATCH.at(round(tokens / SEQUENCE)) == batch


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [
        (0, 0),
        (1e9, 7_035),  # 99,311 (1/32 + 1/64 + 1/96 + 1/128) + 91,037 / 160
        (6e9, 12_348),  # 99,311 / 32 (1 + 1/2 + … + 1/29) + 49,668 / 960
        (12e9, 14_472),  # 99,311 / 32 (1 + 1/2 + … + 1/59)
        (100e9, 36_852),  # and 42,968,750 / 1,920
        (270e9, 80_085),  # and 125,976,562 / 1,920
    ],
)
def test_the_number_of_steps_follows_from_the_papers_batches(tokens: float, steps: int) -> None:
    assert MT_NLG_BATCH.number_of_steps(round(tokens / SEQUENCE)) == pytest.approx(steps, abs=40)  # whole steps


def test_ramp_is_rounded_to_dp_times_micro_batch() -> None:
    rounded = BatchSize(size=1920, ramp=MT_NLG_RAMP, multiple=10)  # dp 10, as on 350 nodes
    assert [rounded.at(n * 99_312) for n in (0, 1, 2, 3, 59)] == [30, 60, 90, 120, 1920]
    assert rounded.rounding == (
        "the ramp from 32 by 32 is rounded down to multiples of layout.dp x train.micro_batch = 10: it begins with 30"
    )
    assert MT_NLG_BATCH.rounding is None


def test_the_smallest_batch_is_one_micro_batch_of_every_rank() -> None:
    assert BatchSize(size=96, ramp=Ramp(start=2, increment=2, samples=470), multiple=48).at(0) == 48


def ramped(  # noqa: PLR0917  (as drawn)
    start: int, increment: int, increments: int, samples: int, multiple: int, changes: dict[int, int]
) -> BatchSize:
    ramp = Ramp(start=start * multiple, increment=increment * multiple, samples=samples)
    later = tuple((samples + at, size * multiple) for at, size in sorted(changes.items()))
    return BatchSize((start + increment * increments) * multiple, ramp, multiple, later)


RAMPS = st.integers(1, 20), st.integers(1, 20), st.integers(0, 10), st.integers(1, 5000), st.integers(1, 12)
batches = st.builds(ramped, *RAMPS, st.dictionaries(st.integers(0, 5000), st.integers(1, 40), max_size=3))


@given(batches, st.integers(1, 20_000))
def test_the_number_of_steps_is_that_of_the_steps_yielded(batch: BatchSize, total: int) -> None:
    steps = list(batch.steps(total))
    assert batch.number_of_steps(total) == len(steps)
    assert steps[-1][0] < total <= sum(steps[-1])


@given(batches, st.integers(0, 3000))
def test_samples_are_the_sum_of_batches(batch: BatchSize, steps: int) -> None:
    assert batch.samples_after(steps) == sum(size for _, size in islice(batch.steps(1 << 60), steps))


@given(batches, st.integers(1, 5000), st.integers(0, 50))
def test_a_run_resumed_in_the_middle_has_the_same_steps(batch: BatchSize, total: int, done: int) -> None:
    steps = list(batch.steps(total))
    begin = steps[done][0] if done < len(steps) else total
    assert list(batch.steps(total, begin)) == steps[done:]
    assert batch.number_of_steps(total, begin) == len(steps[done:])


@given(st.builds(ramped, *RAMPS, st.just({})), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_ramped_batch_never_shrinks_and_always_divides(batch: BatchSize, one: int, other: int) -> None:
    earlier, later = sorted((one, other))
    assert batch.at(earlier) <= batch.at(later) <= batch.size
    assert batch.at(earlier) % batch.multiple == 0


@given(
    st.integers(0, 1000), st.integers(1, 10_000), st.integers(0, 20_000), st.integers(0, 1000), st.sampled_from(SHAPES)
)
def test_learning_rate_is_bounded_and_rises_once(
    warmup: int, decay: int, samples: int, hold: int, shape: Shape
) -> None:
    """From its start on, wherever that is."""
    rate, later = (
        LearningRate(1.0, 0.1, warmup, start + warmup + hold + decay, start + warmup + hold, shape, start)
        for start in (0, 999)
    )
    assert later.at(samples + 999) == rate.at(samples)
    assert 0.0 <= rate.at(samples) <= 1.0
    if samples >= warmup:
        assert 0.1 <= rate.at(samples + 1) <= rate.at(samples)


def test_hold_and_linear_decay_give_warmup_stable_decay() -> None:
    rate = LearningRate(1.0, 0.2, warmup=10, decay=100, hold=60, shape="linear")
    assert [rate.at(n) for n in (5, 10, 60, 80, 100, 200)] == pytest.approx([0.5, 1.0, 1.0, 0.6, 0.2, 0.2])
    constant = LearningRate(1.0, 0.2, warmup=10, decay=100, shape="constant")
    assert [constant.at(n) for n in (5, 10, 60, 200)] == [0.5, 1.0, 1.0, 1.0]
