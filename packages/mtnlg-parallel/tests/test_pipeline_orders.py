"""The orders of the package's schedules: complete, free of deadlock, as idle as theory says, and bounded in memory."""

from itertools import product

import pytest

from mtnlg_parallel.planner.simulation import Pipeline, simulate
from mtnlg_parallel.schedules import OURS, Action, Order, Schedule, load_schedule, schedule_of

SIZES = [*product((1, 2, 3, 4, 7), (1, 2, 3), (1, 2, 5, 8, 13), (False, True))]


def orders(ranks: int, chunks: int, micro_batches: int, *, split: bool) -> tuple[Order, ...]:
    return load_schedule("zero-bubble" if split else schedule_of(chunks)).orders(ranks, chunks, micro_batches)


def run(ranks: tuple[Order, ...], chunks: int, split: bool, send: float = 0.0) -> float:
    """Units until the last rank has run its order, each waiting for its inputs; fails on a deadlock.

    Forward, backward to inputs and weight gradients take a unit each, a message so many on its way.
    """
    one = (1.0,) * (len(ranks) * chunks)
    both, sends = (tuple(unit * each for each in one) for unit in (2.0, send))
    return simulate(
        Pipeline(len(ranks), one, one if split else both, sends, weights=one if split else None), ranks
    ).seconds


@pytest.mark.parametrize(("ranks", "chunks", "micro_batches", "split"), SIZES)
def test_every_piece_runs_once_without_deadlock(ranks: int, chunks: int, micro_batches: int, split: bool) -> None:
    made = orders(ranks, chunks, micro_batches, split=split)
    kinds = ("forward", "backward", "weights") if split else ("forward", "backward")
    expected = {Action(kind, m, c) for kind in kinds for m in range(micro_batches) for c in range(chunks)}  # type: ignore[arg-type]
    for order in made:
        assert len(order) == len(expected)
        assert set(order) == expected
    run(made, chunks, split)


@pytest.mark.parametrize(
    ("ranks", "chunks", "m"),
    [
        *((1, 1, 5), (2, 1, 2), (2, 1, 8), (4, 1, 8), (8, 1, 3), (8, 1, 32), (35, 1, 240)),
        *((2, 2, 4), (4, 2, 8), (4, 3, 12), (4, 5, 4), (8, 2, 16), (35, 3, 70)),
    ],
)
def test_idle_time_matches_theory(ranks: int, chunks: int, m: int) -> None:
    work = 3 * m * chunks
    assert run(orders(ranks, chunks, m, split=False), chunks, split=False) - work == 3 * (ranks - 1)
    if m >= 2 * ranks:
        assert run(orders(ranks, chunks, m, split=True), chunks, split=True) - work == ranks - 1


@pytest.mark.parametrize("send", [0.05, 0.25])
@pytest.mark.parametrize(
    ("ranks", "chunks", "split"),
    [(2, 1, True), (4, 1, True), (8, 1, True), (2, 2, False), (4, 2, False), (4, 3, False), (8, 2, True), (8, 3, True)],
)
def test_sends_are_hidden_in_the_steady_state(ranks: int, chunks: int, split: bool, send: float) -> None:
    """Once down and up its parts; twice with one part, as all micro-batches in flight go round once more at the pace of
    their messages before weight gradients fill what they wait.
    """
    few, many = (
        run(made, chunks, split, send) - run(made, chunks, split)
        for made in (orders(ranks, chunks, groups * ranks, split=split) for groups in (4, 9))
    )
    assert few == pytest.approx(many)
    assert few <= 2 * send * max(ranks * chunks - 1, 2 * ranks - 2) + 1e-9


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), [(1, 1, 3), (4, 1, 2), (4, 1, 9), (4, 2, 8), (3, 3, 6)])
def test_schedule_claims_match_its_orders(name: str, ranks: int, chunks: int, micro_batches: int) -> None:
    schedule = load_schedule(name)
    if not schedule.takes(chunks):
        return
    for rank in range(ranks):
        place = (rank, ranks, chunks, micro_batches)
        assert schedule.in_flight(*place) == Schedule.in_flight(schedule, *place)
        assert schedule.waiting(*place) >= Schedule.waiting(schedule, *place)
