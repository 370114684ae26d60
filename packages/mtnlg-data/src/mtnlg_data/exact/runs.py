"""What recurs over all shards, by hash: an external sort without its merge pass, as in ``dedup.bands``.

A run holds what one shard has of a kind. Of things with one hash the *head* comes first: that of the document which
stays before the others in the corpus. Only heads are compared between shards, so what a corpus holds a million times
takes no more memory than anything else:

    uint64[heads]     hashes, ascending
    uint64[heads]     order of the head's document; of an anchor, whether the shard has it more than once
    uint32[heads, 3]  row of its document, first and last byte (exclusive)
    uint32[tails, 3]  the same of all others, which are repeats whatever the other shards hold

A unit takes one range of hashes of all runs, about ``KEYS_PER_RANGE`` of them, and writes for each shard which of its
heads are repeats too. Of anchors it writes those that recur at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_open

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import UnitOutput
    from mtnlg_data.engine import Summary

KEYS_PER_RANGE = 1 << 22
T = TypeVar("T", np.uint32, np.uint64)
RANGE_BYTES_PER_KEY = 80  # memory of a unit while it sorts
ITEM_BYTES = 28  # on disk: of a head


class Run(NamedTuple):
    """A run on disk."""

    path: Path
    heads: int
    tails: int

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Hashes of the heads, ascending."""
        return self._array(np.uint64, 0, self.heads)

    @property
    def orders(self) -> NDArray[np.uint64]:
        """Order of each head."""
        return self._array(np.uint64, 8 * self.heads, self.heads)

    @property
    def spans(self) -> NDArray[np.uint32]:
        """Row, first and last byte of all: the heads, then the tails."""
        return self._array(np.uint32, 16 * self.heads, 3 * (self.heads + self.tails)).reshape(-1, 3)

    def _array(self, dtype: type[T], offset: int, size: int) -> NDArray[T]:
        return np.memmap(self.path, dtype, "r", offset, (size,)) if size else np.empty(0, dtype)


def write_run(path: Path, keys: NDArray[np.uint64], orders: NDArray[np.uint64], spans: NDArray[np.uint32]) -> Summary:
    """Write the run of these things, one entry of ``orders`` and row of ``spans`` each; returns how many it has."""
    by_key = np.lexsort((orders, keys))
    keys = keys[by_key]
    is_head = _begins(keys)
    heads, tails = by_key[is_head], by_key[~is_head]
    with atomic_open(path) as file:
        for array in (keys[is_head], orders[heads], spans[heads], spans[tails]):
            file.write(np.ascontiguousarray(array).data)
    return {"heads": len(heads), "tails": len(tails)}


def write_anchors(path: Path, keys: NDArray[np.uint64]) -> Summary:
    """Write the run of these anchors."""
    distinct, counts = np.unique(keys, return_counts=True)
    with atomic_open(path) as file:
        for array in (distinct, (counts > 1).astype(np.uint64)):
            file.write(array.data)
    return {"heads": len(distinct), "tails": 0}


def _begins(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of ascending keys differs from the one before."""
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


@dataclass(frozen=True)
class RangeUnit(Unit):
    """Unit: one range of hashes of all runs → int64[runs + 1] bounds, and between them each run's repeated hashes."""

    kind: str
    part: int  # of ``parts``
    parts: int
    runs: Sequence[Run]
    digest: str  # of the keys of the units that wrote the runs
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("range", self.kind, self.part, self.parts, self.digest)


def range_units(kind: str, runs: Sequence[Run], digest: str, state: Path) -> list[RangeUnit]:
    """The units that compare these runs."""
    parts = -(-sum(run.heads for run in runs) // KEYS_PER_RANGE) or 1
    return [RangeUnit(kind, n, parts, runs, digest, state / f"{kind}-{n:05d}.range") for n in range(parts)]


def write_repeats(unit: RangeUnit) -> Summary:
    """Write the repeated hashes of one range."""
    first, last = (unit.part << 64) // unit.parts, (unit.part + 1 << 64) // unit.parts - 1
    columns = []
    for run in unit.runs:
        keys = run.keys
        begin = np.searchsorted(keys, np.uint64(first))
        end = np.searchsorted(keys, np.uint64(last), side="right")
        columns.append((np.array(keys[begin:end]), np.array(run.orders[begin:end])))
    numbers = np.repeat(np.arange(len(columns), dtype=np.uint32), [len(keys) for keys, _ in columns])
    keys, orders = (np.concatenate(column) for column in zip(*columns, strict=True))
    del columns
    by_key = np.lexsort((orders, keys))
    keys = keys[by_key]
    if unit.kind == "anchors":
        again = ~_begins(keys)
        repeated = again | (orders[by_key] > 0)
        repeated[:-1] |= again[1:]
    else:
        repeated = ~_begins(keys)
    keys, numbers = keys[repeated], numbers[by_key[repeated]]
    by_run = np.argsort(numbers, kind="stable")
    with atomic_open(unit.output) as file:
        file.write(np.searchsorted(numbers[by_run], np.arange(len(unit.runs) + 1)).astype(np.int64).data)
        file.write(keys[by_run].data)
    return {"repeated": len(keys)}


def read_repeats(ranges: Iterable[UnitOutput], number: int, runs: int) -> NDArray[np.uint64]:
    """The repeated hashes of run ``number`` of so many, ascending."""
    parts = [np.empty(0, np.uint64)]
    for output in ranges:
        begin, end = np.fromfile(output.path, np.int64, 2, offset=8 * number)
        parts.append(np.fromfile(output.path, np.uint64, end - begin, offset=8 * (runs + 1 + begin)))
    return np.concatenate(parts)
