"""The exchange by key range: every row once, in order, few at a time, and opens that grow as files do."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_data import exchange
from mtnlg_data.exchange import KEYS, Numbering, Range, Rows, merge, run_digest, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write(folder: Path, files: Sequence[Sequence[int]]) -> Rows:
    """Rows with these keys, a few at a time; ``place`` numbers all in the order of the files."""
    place = 0
    for number, keys in enumerate(files):
        with write_rows(Rows.path(folder, number)) as rows:
            for part in (np.array(keys[begin : begin + 5], np.uint64) for begin in range(0, len(keys), 5)):
                rows.add(part, {"place": np.arange(place, place := place + len(part))})
    return Rows(folder, files, "", lambda merges: [merge(*each) for each in merges])


def rows_of(part: Range) -> list[tuple[int, int]]:
    return [row for table in part.tables() for row in zip(*table.to_pydict().values(), strict=True)]


few_keys = st.integers(0, 6).map(lambda key: key << 61) | st.integers(0, 9) | st.integers(KEYS - 10, KEYS - 1)


@settings(max_examples=60)  # through files
@given(
    files=st.lists(st.lists(few_keys | st.integers(0, KEYS - 1), max_size=30), min_size=1, max_size=9),
    ranges=st.integers(1, 12),
    limits=st.tuples(st.sampled_from([1, 40, 200, 10_000]), st.sampled_from([2, 4, 128])),
    span=st.tuples(st.integers(0, KEYS - 1), st.integers(0, KEYS - 1)).map(sorted),
)
def test_every_row_is_read_once_by_key_then_by_file(
    files: list[list[int]],
    ranges: int,
    limits: tuple[int, int],
    span: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of each range, and of keys that are no range, with these bytes of a run and open files."""
    size, fan_out = limits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "RUN_BYTES", size)
        patch.setattr(exchange, "FAN_OUT", fan_out)
        rows = write(tmp_path_factory.mktemp("rows"), files)
        parts = rows.ranges(ranges)
        read = [rows_of(part) for part in parts]
        (between,) = rows.ranges(ranges, [(span[0], span[1])])
        read_between = rows_of(between)
        tables = [table["sort"].to_pylist() for part in parts for table in part.tables()]
    all_rows = sorted((key, place) for place, key in enumerate(itertools.chain(*files)))
    width = KEYS // len(parts)
    assert read == [[row for row in all_rows if row[0] // width == number] for number in range(len(parts))]
    assert read_between == [row for row in all_rows if span[0] <= row[0] <= span[1]]
    assert [part.column("place", np.int64).tolist() for part in parts] == [[place for _, place in one] for one in read]
    assert max(len(part.files) for part in parts) <= fan_out
    keys = [key for key, _ in all_rows]
    for table in tables:  # a key is in several tables only where each of them has no other
        assert len(table) <= max(len(files) * 8, size // 16)
        assert len({*table}) == 1 or all(keys.count(key) == table.count(key) for key in {*table})


@pytest.mark.parametrize(("files", "merges"), [(128, 0), (1_000, 8), (17_000, 133 + 2)])
def test_opens_are_linear_in_files(files: int, merges: int, tmp_path: Path) -> None:
    """At most ``FAN_OUT`` for each range and one for each file and level, where all by all would be files squared."""
    merged: list[tuple[Range, Path]] = []
    ranges = Rows(tmp_path, range(files), "", merged.extend).ranges(files)
    assert len({output for _, output in merged}) == merges
    assert sum(len(part.files) for part, _ in merged) <= 1.01 * files
    assert max(len(part.files) for part in [*ranges, *(part for part, _ in merged)]) <= exchange.FAN_OUT


@pytest.mark.parametrize("total", [0, 1, 2, 5, 8, 1 << 33])
def test_numbers_have_ascending_keys_and_spans_that_meet(total: int) -> None:
    numbering = Numbering(total)
    numbers = np.unique([0, total // 2, max(0, total - 1)])
    assert numbering.numbers(numbering.keys(numbers)).tolist() == numbers.tolist()
    spans = [numbering.span(number, 1) for number in numbers.tolist()]
    for (first, last), key in zip(spans, numbering.keys(numbers).tolist(), strict=True):
        assert first == key <= last < KEYS
    assert numbering.span(0, total)[1] == (spans[-1][1] if total else -1)


@pytest.mark.parametrize("damage", ["a bit", "two words change places", "zeros cut off", "zeros added"])
def test_digest_of_rows_changes_with_damage(tmp_path: Path, damage: str) -> None:
    path, whole = tmp_path / "0.arrow", np.random.default_rng(1).bytes(3 << 20) + bytes(8)
    path.write_bytes(whole)
    before = run_digest(path)
    damaged = {
        "a bit": whole[:77777] + bytes([whole[77777] ^ 16]) + whole[77778:],
        "two words change places": whole[8:16] + whole[:8] + whole[16:],
        "zeros cut off": whole[:-1],
        "zeros added": whole + b"\0\0",
    }[damage]
    path.write_bytes(damaged)
    assert run_digest(path) != before
