"""Candidates with everything that verification needs: names, band keys and exact sets of shingle hashes.

A record batch holds candidates of one group, so that a group reads its own batches of every shard's file, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.document import read_rows
from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_path
from mtnlg_data.words import text_batches

from .clusters import read_places
from .minhash import hash_shingles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard, UnitOutput
    from mtnlg_data.engine import Summary

    from .bands import SignatureRun
    from .minhash import ShingleKind

NAMES = ["id", "key", "source"]
TABLE_BYTES = 1 << 27  # of shingle sets in memory at once


@dataclass(frozen=True)
class CandidateUnit(Unit):
    """Unit: the candidates of one shard → an Arrow file with record batches by group."""

    shard: Shard
    run: SignatureRun
    clusters: UnitOutput
    groups: Sequence[int]  # the place where each group ends
    kind: ShingleKind
    length: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("candidates", self.shard.first, self.clusters.key, self.kind, self.length)


def collect_candidates(unit: CandidateUnit) -> Summary:
    """Write one shard's candidates; ``groups`` of the summary is the group of every record batch.

    A shard with more than ``TABLE_BYTES`` of candidates has several batches for a group.
    """
    documents, places = read_places(unit.clusters.path, unit.shard.first, unit.shard.first + unit.shard.rows)
    rows = documents - unit.shard.first
    keys = keys_of_rows(unit.run, rows)
    schema = pa.schema(
        {
            "place": pa.int64(),
            "number": pa.int64(),
            **dict.fromkeys(NAMES, pa.string()),
            "keys": pa.list_(pa.uint64(), unit.run.bands),
            "shingles": pa.large_list(pa.uint64()),
        }
    )
    groups: list[int] = []
    first = 0
    with atomic_path(unit.output) as partial, pa.ipc.new_file(str(partial), schema) as writer:
        for texts in _shingle_tables(unit, rows):
            part = slice(first, first := first + texts.num_rows)
            band_keys = pa.FixedSizeListArray.from_arrays(pa.array(keys[part].reshape(-1)), unit.run.bands)
            names = (texts[name] for name in NAMES)
            columns = [places[part], documents[part], *names, band_keys, texts["shingles"]]
            order = np.argsort(places[part])
            table = pa.table(columns, schema).take(pa.array(order)).combine_chunks()
            group = np.searchsorted(unit.groups, places[part][order], side="right")
            cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
            for begin, end in pairwise(cuts):
                writer.write_batch(table.slice(begin, end - begin).to_batches()[0])
                groups.append(int(group[begin]))
    return {"groups": groups}


def keys_of_rows(run: SignatureRun, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Band keys [rows, bands] of these rows of a shard."""
    selected = np.empty((len(rows), run.bands), np.uint64)
    keys_by_row = np.empty(run.rows, np.uint64)
    for band, (keys, order) in enumerate(zip(run.keys, run.order, strict=True)):
        keys_by_row[order] = keys
        selected[:, band] = keys_by_row[rows]
    return selected


def _shingle_tables(unit: CandidateUnit, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield names and shingle sets of these rows in order, in tables of about ``TABLE_BYTES``."""
    tables: list[pa.Table] = []
    size = 0
    for _, batch in read_rows(unit.shard.path, rows, [*NAMES, "text"]):
        first = 0
        for texts in text_batches(batch["text"].to_pylist()):
            values, bounds = shingle_sets(*hash_shingles(texts, unit.kind, unit.length))
            names = {column: batch[column].slice(first, len(texts)) for column in NAMES}
            sets = pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(values))
            tables.append(pa.table({**names, "shingles": sets}))
            first += len(texts)
            size += values.nbytes
            if size >= TABLE_BYTES:
                yield pa.concat_tables(tables)
                tables, size = [], 0
    if tables:
        yield pa.concat_tables(tables)


def shingle_sets(
    shingles: NDArray[np.uint64], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The distinct shingles of each text, ascending, and their bounds; sorts ``shingles`` in place."""
    for begin, end in pairwise(bounds.tolist()):
        shingles[begin:end].sort()
    is_new = np.ones(len(shingles), np.bool_)
    is_new[1:] = shingles[1:] != shingles[:-1]
    is_new[bounds[:-1][np.diff(bounds) > 0]] = True
    return shingles[is_new], np.concatenate([[0], np.cumsum(is_new)])[bounds]
