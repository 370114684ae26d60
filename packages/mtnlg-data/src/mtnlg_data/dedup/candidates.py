"""Candidates with all that verification asks of them: names, band keys, and the exact set of shingle hashes.

They are written group by group, so that a group reads what is its own, and nothing else, out of every shard's file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.document import rows_of
from mtnlg_data.engine import key_of
from mtnlg_data.files import aside
from mtnlg_data.words import portions

from .clusters import placed
from .minhash import shingles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Made, Shard
    from mtnlg_data.engine import Summary

    from .bands import Run
    from .minhash import ShingleKind

BYTES_AT_ONCE = 1 << 27


@dataclass(frozen=True)
class CandidatesOf:
    """Unit: the candidates of one shard → an Arrow file of them, a record batch for every group."""

    shard: Shard
    run: Run
    clusters: Made
    groups: Sequence[int]  # the place at which each ends
    kind: ShingleKind
    length: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("candidates", self.shard.first, self.clusters.key, self.kind, self.length)


def collect(unit: CandidatesOf) -> Summary:
    """Run one unit; ``groups`` of the summary has the group of every record batch.

    A shard with more than ``BYTES_AT_ONCE`` of candidates has more than one batch for a group.
    """
    numbers, places = placed(unit.clusters.path, unit.shard.first, unit.shard.first + unit.shard.rows)
    keys = keys_of(unit.run, numbers - unit.shard.first)
    schema = pa.schema(
        {
            "place": pa.int64(),
            "number": pa.int64(),
            "id": pa.string(),
            "source": pa.string(),
            "keys": pa.list_(pa.uint64(), unit.run.bands),
            "shingles": pa.large_list(pa.uint64()),
        }
    )
    groups: list[int] = []
    done = 0
    with aside(unit.output) as partial, pa.ipc.new_file(str(partial), schema) as writer:
        for some in _at_once(unit, numbers - unit.shard.first):
            here = slice(done, done := done + some.num_rows)
            flat = pa.array(keys[here].reshape(-1))
            columns = [places[here], numbers[here], some["id"], some["source"]]
            lists = [pa.FixedSizeListArray.from_arrays(flat, unit.run.bands), some["shingles"]]
            order = np.argsort(places[here])
            table = pa.table([*columns, *lists], schema).take(pa.array(order)).combine_chunks()
            group = np.searchsorted(unit.groups, places[here][order], side="right")
            cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
            for begin, end in pairwise(cuts):
                writer.write_batch(table.slice(begin, end - begin).to_batches()[0])
                groups.append(int(group[begin]))
    return {"groups": groups}


def keys_of(run: Run, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The band keys of these rows, [rows, bands]."""
    found = np.empty((len(rows), run.bands), np.uint64)
    by_row = np.empty(run.rows, np.uint64)
    for band, (keys, order) in enumerate(zip(run.keys, run.order, strict=True)):
        by_row[order] = keys
        found[:, band] = by_row[rows]
    return found


def _at_once(unit: CandidatesOf, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Names and shingle sets of these rows in order, in tables of about ``BYTES_AT_ONCE``."""
    tables: list[pa.Table] = []
    size = 0
    for _, table in rows_of(unit.shard.path, rows, ["id", "source", "text"]):
        done = 0
        for texts in portions(table["text"].to_pylist()):
            values, bounds = sets(*shingles(texts, unit.kind, unit.length))
            names = {column: table[column].slice(done, len(texts)) for column in ("id", "source")}
            lists = pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(values))
            tables.append(pa.table({**names, "shingles": lists}))
            done += len(texts)
            size += values.nbytes
            if size >= BYTES_AT_ONCE:
                yield pa.concat_tables(tables)
                tables, size = [], 0
    if tables:
        yield pa.concat_tables(tables)


def sets(values: NDArray[np.uint64], bounds: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Shingles, text by text, made ascending sets; sorts ``values`` in place."""
    for begin, end in pairwise(bounds.tolist()):
        values[begin:end].sort()
    is_new = np.ones(len(values), np.bool_)
    is_new[1:] = values[1:] != values[:-1]
    is_new[bounds[:-1][np.diff(bounds) > 0]] = True
    return values[is_new], np.concatenate([[0], np.cumsum(is_new)])[bounds]
