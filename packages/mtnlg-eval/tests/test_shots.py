"""Shots: drawn per document, never from its own group, and only those that fit the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_eval.tasks.shots import ShotPool, max_shots_that_fit

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from mtnlg_eval.tasks.paper_task import PaperTask

    Load = Callable[..., PaperTask]


def documents(groups: list[str]) -> list[dict[str, str]]:
    return [{"id": str(n), "group": group} for n, group in enumerate(groups)]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(0, 12), st.integers(0, 12), st.randoms())
def test_draw_is_of_other_groups_and_nests(groups: list[str], count: int, fewer: int, order: random.Random) -> None:
    pool, own = documents(groups), {"id": "own", "group": "a"}
    drawn = ShotPool(pool).draw(own, count, "seed/task")
    assert len({shot["group"] for shot in drawn}) == len(drawn) == min(count, len(set(groups) - {"a"}))
    assert "a" not in {shot["group"] for shot in drawn}
    assert ShotPool(pool).draw(own, 10**20, "seed/task")[:count] == drawn
    assert drawn[:fewer] == ShotPool(pool).draw(own, min(fewer, count), "seed/task")
    mixed = order.sample(pool, len(pool))
    assert ShotPool(mixed).draw(own, count, "seed/task") == drawn


def test_a_draw_is_fair() -> None:
    pool = ShotPool(documents(list("abcd")))
    firsts = [pool.draw({"id": str(n), "group": "none"}, 1, "")[0]["id"] for n in range(4000)]
    # Each of four is first in a quarter of 4,000 draws; five standard deviations are 137.
    assert all(abs(firsts.count(name) - 1000) < 137 for name in "0123")


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 900))
def test_maximum_number_of_shots_is_found(lengths: list[int], room: int) -> None:
    def size(shots: int) -> int:
        return 7 + sum(lengths[:shots])

    expected = max((n for n in range(len(lengths) + 1) if size(n) <= room), default=0)
    assert max_shots_that_fit(len(lengths), size, room) == expected


def prompts_by_id(task: PaperTask) -> dict[str, list[str]]:
    prompts: dict[str, list[str]] = {}
    for request in task.instances:
        prompts.setdefault(request.doc["id"], []).append(request.args[0])
    return prompts


@pytest.mark.parametrize("name", ["lambada", "race_h", "piqa", "hans"])
def test_shots_ignore_row_order_and_selection(name: str, load_task: Load) -> None:
    task = load_task(name, 1)
    task.build_all_requests()
    expected = prompts_by_id(task)
    task.rows.scored.reverse()
    task.eval_docs.reverse()
    task.build_all_requests()
    assert prompts_by_id(task) == expected
    task.build_all_requests(limit=1)
    last = task.eval_docs[0]["id"]
    assert prompts_by_id(task) == {last: expected[last]}


def shots_shown(task: PaperTask) -> list[int]:
    counts = []
    for doc in task.eval_docs:
        task.fewshot_context(doc, 32)
        counts.append(len(task.sampler.drawn))
    return counts


def test_shots_that_do_not_fit_are_dropped_and_counted(load_task: Load, counter: type[Any]) -> None:
    free = load_task("boolq", 32)
    free.build_all_requests()
    assert shots_shown(free) == [3, 3]
    for limit in range(20, 80, 5):
        task = load_task("boolq", 32, lm=counter(limit))
        task.build_all_requests()
        for n, shots in enumerate(shots_shown(task)):
            full, cut = free.instances[2 * n].args[0], task.instances[2 * n].args[0]
            assert full.split("\n\n")[:shots] + full.split("\n\n")[-1:] == cut.split("\n\n")
            read = len((cut + " yes").split(" ")) - 1
            assert read <= limit or not shots
            more = full.split("\n\n")[: shots + 1] + full.split("\n\n")[-1:]
            assert shots == 3 or len(("\n\n".join(more) + " yes").split(" ")) - 1 > limit
