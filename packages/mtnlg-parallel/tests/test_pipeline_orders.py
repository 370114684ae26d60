"""The orders of `engine.schedule`: complete, free of deadlock, as idle as theory says, and bounded in memory."""

from itertools import accumulate, product

import pytest

from mtnlg_parallel.engine.schedule import Action, Order, orders

SIZES = [*product((1, 2, 3, 4, 7), (1, 2, 3), (1, 2, 5, 8, 13), (False, True))]


def run(ranks: tuple[Order, ...], chunks: int, split: bool) -> int:
    """Units until the last rank has run its order, each waiting for its inputs; fails on a deadlock.

    Forward, backward to inputs and weight gradients take a unit each.
    """
    count = len(ranks)
    last = count * chunks - 1
    position, now = [0] * count, [0] * count
    ends: dict[tuple[str, int, int], int] = {}

    def input_at(rank: int, action: Action) -> int | None:
        stage = action.chunk * count + rank
        if action.kind == "weights":
            return ends.get(("backward", action.micro_batch, stage))
        if action.kind == "forward":
            return ends.get(("forward", action.micro_batch, stage - 1)) if stage else 0
        before = (
            ("forward", action.micro_batch, stage) if stage == last else ("backward", action.micro_batch, stage + 1)
        )
        return ends.get(before)

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
def test_every_rank_runs_each_piece_of_work_once_and_none_waits_for_ever(
    ranks: int, chunks: int, micro_batches: int, split: bool
) -> None:
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
def test_idle_time_is_what_theory_says_and_a_third_with_weight_gradients_apart(
    ranks: int, chunks: int, groups: int
) -> None:
    m = ranks * groups
    work = 3 * m * chunks
    assert run(orders(ranks, chunks, m, split=False), chunks, split=False) - work == 3 * (ranks - 1)
    assert run(orders(ranks, chunks, m, split=True), chunks, split=True) - work == ranks - 1


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (4, 1), (8, 1), (4, 2), (8, 3)])
def test_a_rank_keeps_no_more_weight_gradients_waiting_than_ranks_before_it_and_its_own(
    ranks: int, chunks: int
) -> None:
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
