"""Which samples a run reads after `rollback` with ``--skip last``, whatever changed while they were read."""

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_parallel.recipe import Train
from mtnlg_parallel.record.rollback import _skipping


def draw_ranges(chance: Random) -> list[list[int]]:
    edges = sorted(chance.sample(range(60), 2 * chance.randint(0, 3)))
    return [list(edge) for edge in zip(edges[::2], edges[1::2], strict=True)]


def draw_train(chance: Random) -> Train:
    """Settings that change folder and skipped ranges at random."""
    changes: list[dict[str, Any]] = [{"at": at} for at in sorted(chance.sample(range(1, 80), chance.randint(0, 5)))]
    for change in changes:
        change.update({"data": chance.choice(("", "/a", "/b"))} if chance.random() < 0.6 else {})
        change.update({"skip": draw_ranges(chance)} if chance.random() < 0.5 else {})
    content = {"samples": 100, "batch": 1, "lr": 1e-3, "skip": draw_ranges(chance), "change": changes}
    return Train.model_validate(content | {"start_sample": chance.choice((0, 5))}, strict=False)


def read(train: Train, samples: int) -> list[tuple[str, int]]:
    """Folder and number in it of the run's first samples."""
    parts = train.stream_parts
    found = [next(part for part in reversed(parts) if part.at <= sample) for sample in range(samples)]
    return [(part.data, part.number(sample)) for sample, part in enumerate(found)]


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_rollback_leaves_out_what_was_read_since_and_nothing_before(chance: Random) -> None:
    train, (begin, end) = draw_train(chance), sorted(chance.sample(range(90), 2))
    before, after = read(train, end), read(_skipping(train, begin, end), 200)
    assert after[:begin] == before[:begin]
    assert len({*after}) == 200
    assert not {*after} & {*before[begin:]}
