"""What recurs over all shards, by hash: an external sort whose merges are those of ``mtnlg_data.exchange``.

A run holds what one shard has of a kind. Of things with one hash the *head* comes first: that of the document which
stays before the others in the corpus. Only heads are compared between shards, so what a corpus holds a million times
takes no more memory than anything else. Of a run there are two files:

    <run>.columns   uint64[3, heads]: hashes, ascending; order of the head's document, or of an anchor whether the shard
                    has it more than once; number of the shard
    <run>.spans     uint32[heads + tails, 3]: row of the document, first and last byte (exclusive); the tails, which are
                    repeats whatever the other shards hold, come last

A unit takes one range of hashes of all runs, about ``KEYS_PER_RANGE`` of them, and finds which heads are repeats too.
Of anchors it finds those that recur at all. These go back to their shards by a second exchange, whose keys are numbers
of shards:

    <range>.columns   uint64[2, repeats]: key of the shard; hash, ascending for each shard
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.engine import Unit, key_of
from mtnlg_data.exchange import KEYS, Exchange, KeyRange, SortedFile, stable_order
from mtnlg_data.files import atomic_open

from .sorted_columns import columns_path, merge_levels, open_columns, read_sorted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import StageFolder, Summary

KEYS_PER_RANGE = 1 << 22
RANGE_BYTES_PER_KEY = 120  # memory of a unit while it sorts
HEAD_BYTES, TAIL_BYTES, ANCHOR_BYTES, REPEAT_BYTES = 36, 12, 24, 16  # on disk
RUN_COLUMNS, REPEAT_COLUMNS = 3, 2


class Run(NamedTuple):
    """A run on disk."""

    path: Path  # its columns

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Hashes of the heads, ascending."""
        return np.asarray(open_columns(self.path, RUN_COLUMNS)[0])

    @property
    def spans(self) -> NDArray[np.uint32]:
        """Row, first and last byte of all: the heads, then the tails."""
        return np.fromfile(self.path.with_suffix(".spans"), np.uint32).reshape(-1, 3)


def write_run(
    path: Path, number: int, keys: NDArray[np.uint64], orders: NDArray[np.uint64], spans: NDArray[np.uint32]
) -> Summary:
    """Write the run of these things of a shard, one entry of ``orders`` and row of ``spans`` each; counts them."""
    by_key = _by_key(keys, orders)
    keys = keys[by_key]
    is_head = _begins(keys)
    heads, tails = by_key[is_head], by_key[~is_head]
    _write_columns(path, keys[is_head], orders[heads], np.full(len(heads), number, np.uint64))
    with atomic_open(path.with_suffix(".spans")) as file:
        file.write(spans[heads].tobytes() + spans[tails].tobytes())
    return {"heads": len(heads), "tails": len(tails), "files": [path.with_suffix(".spans").name]}


def write_anchors(path: Path, number: int, keys: NDArray[np.uint64]) -> Summary:
    """Write the run of these anchors."""
    distinct, counts = np.unique(keys, return_counts=True)
    _write_columns(path, distinct, (counts > 1).astype(np.uint64), np.full(len(distinct), number, np.uint64))
    return {"heads": len(distinct), "tails": 0}


def _write_columns(path: Path, *columns: NDArray[np.uint64]) -> None:
    with atomic_open(path) as file:
        for column in columns:
            file.write(np.ascontiguousarray(column).data)


def _begins(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of ascending keys differs from the one before."""
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


@dataclass(frozen=True)
class RangeUnit(Unit):
    """Unit: one range of hashes of all runs -> the repeats, by shard."""

    kind: str
    folder: Path  # of the runs
    keys: KeyRange
    contents: str  # digest of the keys of the units that wrote the runs
    shards: int  # the ranges of the exchange back to them
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("range", self.kind, self.keys, self.contents, self.shards)


def write_repeats(unit: RangeUnit) -> Summary:
    """Write the repeated hashes of one range."""
    _, batches = read_sorted(unit.folder, unit.keys, RUN_COLUMNS)
    repeats = np.concatenate([_repeats(unit.kind, *batch) for batch in batches], axis=1)
    numbers, keys = repeats[:, stable_order(repeats[0])]
    _write_columns(unit.output, numbers * np.uint64(KEYS // unit.shards % KEYS), keys)
    return {"repeated": len(keys)}


def _repeats(
    kind: str, keys: NDArray[np.uint64], orders: NDArray[np.uint64], numbers: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Shards and hashes of what is repeated of these, which have all heads of their hashes."""
    by_key = _by_key(keys, orders)
    keys = keys[by_key]
    repeated = ~_begins(keys)
    if kind == "anchors":
        repeated[:-1] |= repeated[1:].copy()
        repeated |= orders[by_key] > 0
    return np.stack([numbers[by_key[repeated]], keys[repeated]])


def _by_key(keys: NDArray[np.uint64], orders: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The order that sorts by key, and things of one key by ``orders``."""
    by_order = stable_order(orders)
    return by_order[stable_order(keys[by_order])]


class Repeats(NamedTuple):
    """What the ranges have found of one shard."""

    folder: Path
    keys: KeyRange
    contents: str  # digest of the keys of the units of all ranges

    def read(self) -> NDArray[np.uint64]:
        """The repeated hashes, ascending."""
        _, batches = read_sorted(self.folder, self.keys, REPEAT_COLUMNS)
        return np.concatenate([hashes for _, hashes in batches])


def find_repeats(kind: str, runs: Sequence[tuple[Unit, Summary]], stage: StageFolder) -> list[Repeats]:
    """What recurs of these runs, one of each shard in order; the runs are those of one folder."""
    folder, back = runs[0][0].output.parent, stage.state / f"{kind}-repeats"
    contents, heads = key_of([unit.key for unit, _ in runs]), sum(summary["heads"] for _, summary in runs)
    there = Exchange(len(runs), -(-heads // KEYS_PER_RANGE))
    merge_levels(stage, f"exact: merge {kind}", there, (folder, RUN_COLUMNS, contents))
    home = Exchange(there.ranges, len(runs))
    units = [
        RangeUnit(kind, folder, there.range(n), contents, home.ranges, columns_path(back, SortedFile(0, n, 0)))
        for n in range(there.ranges)
    ]
    stage.run(write_repeats, units, f"exact: compare {kind}")
    contents = key_of([unit.key for unit in units])
    merge_levels(stage, f"exact: return {kind}", home, (back, REPEAT_COLUMNS, contents))
    return [Repeats(back, home.range(number), contents) for number in range(len(runs))]
