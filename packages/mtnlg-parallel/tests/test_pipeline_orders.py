"""The orders of the package's schedules: complete, free of deadlock, as idle as theory says, and bounded in memory."""

from fractions import Fraction
from itertools import accumulate, product

import pytest

from mtnlg_parallel.schedules import OURS, Action, Order, Schedule, load_schedule, schedule_of

SIZES = [*product((1, 2, 3, 4, 7), (1, 2, 3), (1, 2, 5, 8, 13), (False, True))]


def orders(ranks: int, chunks: int, micro_batches: int, *, split: bool) -> tuple[Order, ...]:
    return load_schedule("zero-bubble" if split else schedule_of(chunks)).orders(ranks, chunks, micro_batches)


def run(ranks: tuple[Order, ...], chunks: int, split: bool, send: Fraction = Fraction(0)) -> Fraction:
    """Units until the last rank has run its order, each waiting for its inputs; fails on a deadlock.

    Forward, backward to inputs and weight gradients take a unit each, a message so many on its way.
    """
    count = len(ranks)
    last = count * chunks - 1
    position, now = [0] * count, [Fraction(0)] * count
    ends: dict[tuple[str, int, int], Fraction] = {}

    def input_at(rank: int, action: Action) -> Fraction | None:
        stage = action.chunk * count + rank
        if action.kind == "weights":
            return ends.get(("backward", action.micro_batch, stage))
        if action.kind == "backward" and stage == last:
            return ends.get(("forward", action.micro_batch, stage))
        if action.kind == "forward" and not stage:
            return Fraction(0)
        end = ends.get((action.kind, action.micro_batch, stage + (-1 if action.kind == "forward" else 1)))
        return None if end is None else end + send

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(ranks):
            while position[rank] < len(order):
                action = order[position[rank]]
                ready = input_at(rank, action)
                if ready is None:
                    break
                now[rank] = max(now[rank], ready) + (2 if action.kind == "backward" and not split else 1)
                ends[action.kind, action.micro_batch, action.chunk * count + rank] = now[rank]
                position[rank], moved = position[rank] + 1, True
    assert position == [len(order) for order in ranks], "each waits for another"
    return max(now)


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
    ("ranks", "chunks", "groups"), [(2, 1, 4), (4, 1, 2), (8, 1, 4), (4, 2, 2), (4, 3, 3), (8, 2, 2)]
)
def test_idle_time_matches_theory(ranks: int, chunks: int, groups: int) -> None:
    m = ranks * groups
    work = 3 * m * chunks
    assert run(orders(ranks, chunks, m, split=False), chunks, split=False) - work == 3 * (ranks - 1)
    assert run(orders(ranks, chunks, m, split=True), chunks, split=True) - work == ranks - 1


@pytest.mark.parametrize("send", [Fraction(1, 20), Fraction(1, 4)])
@pytest.mark.parametrize(
    ("ranks", "chunks", "split"),
    [(2, 1, True), (4, 1, True), (8, 1, True), (2, 2, False), (4, 2, False), (4, 3, False), (8, 2, True), (8, 3, True)],
)
def test_sends_are_hidden_in_the_steady_state(ranks: int, chunks: int, split: bool, send: Fraction) -> None:
    """Once down and up its parts; twice with one part, as all micro-batches in flight go round once more at the pace of
    their messages before weight gradients fill what they wait.
    """
    few, many = (
        run(made, chunks, split, send) - run(made, chunks, split)
        for made in (orders(ranks, chunks, groups * ranks, split=split) for groups in (4, 9))
    )
    assert few == many
    assert few <= 2 * send * max(ranks * chunks - 1, 2 * ranks - 2)


@pytest.mark.parametrize(("ranks", "send"), [(2, Fraction(1, 20)), (4, Fraction(1, 20)), (8, Fraction(1, 4))])
def test_1f1b_waits_for_sends_per_round(ranks: int, send: Fraction) -> None:
    """Each of the p that the first rank has in flight is away for p passes and 2 (p - 1) sends, in any order."""
    few, many = (run(orders(ranks, 1, groups * ranks, split=False), 1, False, send) for groups in (4, 9))
    assert many - few == 5 * (3 * ranks + 2 * (ranks - 1) * send)


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
