"""The orders of the package's schedules: complete, free of deadlock, as idle as theory says, and bounded in memory."""

from itertools import accumulate, product

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


@pytest.mark.parametrize(("ranks", "send"), [(2, 0.05), (4, 0.05), (8, 0.25)])
def test_1f1b_waits_for_sends_per_round(ranks: int, send: float) -> None:
    """Each of the p that the first rank has in flight is away for p passes and 2 (p - 1) sends, in any order."""
    few, many = (run(orders(ranks, 1, groups * ranks, split=False), 1, False, send) for groups in (4, 9))
    assert many - few == pytest.approx(5 * (3 * ranks + 2 * (ranks - 1) * send))


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (4, 1), (8, 1), (4, 2), (8, 3)])
def test_pending_weight_gradients_are_bounded(ranks: int, chunks: int) -> None:
    for rank, order in enumerate(orders(ranks, chunks, ranks * 4, split=True)):
        steps = (("backward", "weights").index(action.kind) for action in order if action.kind != "forward")
        assert max(accumulate(1 - 2 * step for step in steps)) <= rank + 1


@pytest.mark.parametrize(("ranks", "chunks", "split"), [(4, 1, False), (4, 1, True), (4, 2, True), (8, 2, False)])
def test_micro_batches_in_flight_do_not_grow_with_their_number(ranks: int, chunks: int, split: bool) -> None:
    def most(order: Order) -> int:
        return max(accumulate({"forward": 1, "backward": -1, "weights": 0}[action.kind] for action in order))

    few, many = (orders(ranks, chunks, ranks * groups, split=split) for groups in (4, 9))
    assert [most(order) for order in few] == [most(order) for order in many]
    assert most(few[0]) <= (ranks if chunks == 1 else ranks * chunks + ranks - 1)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), [(1, 1, 3), (4, 1, 2), (4, 1, 9), (4, 2, 8), (3, 3, 6)])
def test_what_a_schedule_says_of_its_orders_is_what_they_do(
    name: str, ranks: int, chunks: int, micro_batches: int
) -> None:
    schedule = load_schedule(name)
    if not schedule.takes(chunks):
        return
    for rank in range(ranks):
        place = (rank, ranks, chunks, micro_batches)
        assert schedule.in_flight(*place) == Schedule.in_flight(schedule, *place)
        assert schedule.waiting(*place) >= Schedule.waiting(schedule, *place)
