"""What recurs over all shards, by hash: an external sort by the runs and exchange of ``mtnlg_data.dedup.runs``.

A run holds what one shard has of a kind. Of things with one hash the *head* comes first: that of the document which
stays before the others in the corpus. Only heads are compared between shards, so what a corpus holds a million times
takes no more memory than anything else. Of a run there are two files:

    <run>.arrow   of the heads, ascending: hash; order of the head's document, or of an anchor whether the shard has it
                  more than once; number of the shard
    <run>.spans   uint32[heads + tails, 3]: row of the document, first and last byte (exclusive); the tails, which are
                  repeats whatever the other shards hold, come last

A unit takes one range of hashes of all runs, about ``KEYS_PER_RANGE`` of them, and finds which heads are repeats too.
Of anchors it finds those that recur at all. These go back to their shards by a second exchange, whose keys are numbers
of shards: their rows are the hash, ascending for each shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from mtnlg_data.dedup.runs import Exchanged, merge_files, write_runs
from mtnlg_data.engine import Unit, key_of
from mtnlg_data.exchange import KEYS, Exchange, stable_order
from mtnlg_data.files import atomic_open

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import StageFolder, Summary

KEYS_PER_RANGE = 1 << 22
RANGE_BYTES_PER_KEY = 120  # memory of a unit while it sorts
HEAD_BYTES, ANCHOR_BYTES = 36, 24  # on disk


class Run(NamedTuple):
    """A run on disk."""

    path: Path  # of its heads

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Hashes of the heads, ascending."""
        with pa.memory_map(str(self.path)) as source, pa.ipc.open_file(source) as file:
            return np.asarray(file.read_all()["sort"].to_numpy())

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
    _write_heads(path, number, keys[is_head], orders[heads])
    with atomic_open(path.with_suffix(".spans")) as file:
        file.write(spans[heads].tobytes() + spans[tails].tobytes())
    return {"heads": len(heads), "tails": len(tails), "files": [path.with_suffix(".spans").name]}


def write_anchors(path: Path, number: int, keys: NDArray[np.uint64]) -> Summary:
    """Write the run of these anchors."""
    distinct, counts = np.unique(keys, return_counts=True)
    _write_heads(path, number, distinct, (counts > 1).astype(np.uint64))
    return {"heads": len(distinct), "tails": 0}


def _write_heads(path: Path, number: int, keys: NDArray[np.uint64], orders: NDArray[np.uint64]) -> None:
    with write_runs(path) as runs:
        runs.add(keys, {"order": orders, "shard": np.full(len(keys), number, np.uint64)})


def _begins(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of ascending keys differs from the one before."""
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


@dataclass(frozen=True)
class RangeUnit(Unit):
    """Unit: one range of hashes of all runs -> the repeats, by shard."""

    kind: str
    runs: Exchanged
    number: int  # of the range
    shards: int  # the ranges of the exchange back to them
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("range", self.kind, self.runs.digest, self.runs.ranges, self.number, self.shards)


def write_repeats(unit: RangeUnit) -> Summary:
    """Write the repeated hashes of one range."""
    width = np.uint64(KEYS // unit.shards % KEYS)
    with write_runs(unit.output) as repeats:
        for rows in _whole_keys(unit.runs.read(unit.number)):
            numbers, keys = _repeats(unit.kind, *(rows[name].to_numpy() for name in ("sort", "order", "shard")))
            repeats.add(numbers * width, {"hash": keys})
    return {"repeated": repeats.rows}


def _whole_keys(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of these tables in others that have all rows of a key together."""
    left: list[pa.Table] = []
    for table in tables:
        rows = pa.concat_tables([*left, table])
        keys = rows["sort"].to_numpy()
        last = int(np.searchsorted(keys, keys[-1]))
        yield rows.slice(0, last)
        left = [rows.slice(last)]
    yield from left


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

    rows: Exchanged
    number: int  # of the shard

    def read(self) -> NDArray[np.uint64]:
        """The repeated hashes, ascending."""
        tables = self.rows.read(self.number)
        return np.concatenate([np.empty(0, np.uint64), *(table["hash"].to_numpy() for table in tables)])


def find_repeats(kind: str, runs: Sequence[tuple[Unit, Summary]], stage: StageFolder) -> list[Repeats]:
    """What recurs of these runs, one of each shard in order; the runs are those of one folder."""
    heads, shards = sum(summary["heads"] for _, summary in runs), len(runs)
    there = Exchange(shards, -(-heads // KEYS_PER_RANGE)).ranges
    home = Exchange(there, shards).ranges
    by_hash = Exchanged(runs[0][0].output.parent, shards, there, key_of([unit.key for unit, _ in runs]))
    by_shard = Exchanged(stage.state / f"{kind}-repeats", there, home, "")
    units = [RangeUnit(kind, by_hash, n, home, by_shard.path(n)) for n in range(there)]
    by_shard = by_shard._replace(digest=key_of([unit.key for unit in units]))
    for level in by_hash.merges():
        stage.run(merge_files, level, f"exact: merge {kind}")
    stage.run(write_repeats, units, f"exact: compare {kind}")
    for level in by_shard.merges():
        stage.run(merge_files, level, f"exact: return {kind}")
    return [Repeats(by_shard, number) for number in range(shards)]
