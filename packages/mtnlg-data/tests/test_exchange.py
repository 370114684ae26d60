"""The exchange by key range: nothing lost, nothing twice, and opens that grow as the files do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtnlg_data import exchange
from mtnlg_data.exchange import KEYS, Exchange, KeyRange, stable_order


def carry(files: int, ranges: int, keys: list[tuple[int, int]]) -> tuple[list[list[tuple[int, int]]], int, int]:
    """What each range reads of these (file, key), the number of opens, and the most files that one unit opens."""
    plan = Exchange(files, ranges)
    held: dict[tuple[int, int, int], list[tuple[int, int]]] = {(0, n, 0): [] for n in range(files)}
    for file, key in keys:
        held[0, file, 0].append((file, key))
    opened: Counter[KeyRange] = Counter()

    def read(part: KeyRange) -> list[tuple[int, int]]:
        opened[part] += len(part.files)
        return [entry for file in part.files for entry in held[file] if part.first <= entry[1] <= part.last]

    for level in plan.merges():
        held |= {merged: read(part) for merged, part in level}
    results = [read(plan.range(number)) for number in range(plan.ranges)]
    return results, sum(opened.values()), max(len(part.files) for part in opened)


@settings(max_examples=60)
@given(
    st.integers(1, 150),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 149), st.integers(0, KEYS - 1))),
    st.data(),
)
def test_every_entry_reaches_the_one_reader_of_its_range_in_the_order_of_the_files(
    files: int, ranges: int, entries: list[tuple[int, int]], data: st.DataObject
) -> None:
    fan_out = data.draw(st.sampled_from([2, 4, 128]))
    keys = [(file % files, key) for file, key in entries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "FAN_OUT", fan_out)
        results, _, most = carry(files, ranges, keys)
    by_file = sorted(keys, key=lambda entry: entry[0])
    width = KEYS // len(results)
    assert results == [[entry for entry in by_file if entry[1] // width == n] for n in range(len(results))]
    assert most <= fan_out


@pytest.mark.parametrize(("files", "levels"), [(100, 0), (1_000, 1), (16_000, 1), (32_000, 2)])
def test_opens_grow_as_files_do(files: int, levels: int) -> None:
    """At most ``FAN_OUT`` for each range and one for each file and level, where all by all would be files squared."""
    plan = Exchange(files, files)
    merged = [part for level in plan.merges() for _, part in level]
    ranges = [plan.range(number) for number in range(plan.ranges)]
    assert len(list(plan.merges())) == levels
    assert sum(len(part.files) for part in merged) <= levels * (files + plan.ranges)
    assert max(len(part.files) for part in ranges) <= exchange.FAN_OUT


def test_few_files_are_read_as_they_are() -> None:
    plan = Exchange(128, 5)
    assert list(plan.merges()) == []
    assert [len(plan.range(number).files) for number in range(plan.ranges)] == [128] * 8


@given(
    st.lists(st.integers(0, 9), max_size=70),
    st.sampled_from([(1, 0), (1 << 60, 0), ((1 << 60) + 1, 5), (1, KEYS - 10), ((KEYS - 1) // 9, 0)]),
)
@example([0, 9, 1], ((KEYS - 1) // 9, 0))
def test_keys_are_sorted_and_equal_ones_stay_in_their_order(numbers: list[int], scale: tuple[int, int]) -> None:
    step, first = scale
    keys = np.array([first + step * number for number in numbers], np.uint64)
    assert stable_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_keys_that_differ_only_where_their_places_are_written_are_sorted() -> None:
    keys = np.array([3, 2, 1, 0, KEYS - 1, KEYS - 2, KEYS - 1], np.uint64)
    assert stable_order(keys).tolist() == [3, 2, 1, 0, 5, 4, 6]
