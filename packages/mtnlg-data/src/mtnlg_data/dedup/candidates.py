"""Candidates with everything that verification needs: who stays before whom, band keys, exact sets of shingle hashes.

Runs are by a hash of the cluster's root, so that ranges of it, the groups, hold clusters whole and about as many bytes
each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.document import read_rows
from mtnlg_data.text.arrays import small_batches
from mtnlg_data.text.hashing import fmix64

from .copies import source_ranks
from .minhash import hash_shingles, read_signatures
from .runs import CorpusUnit, Exchanged, write_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.steps.deduplicate import ShingleKind


@dataclass(frozen=True)
class CandidateUnit(CorpusUnit):
    """Unit: the candidates of one shard → runs by cluster."""

    shard: Shard
    signatures: Path
    labels: Exchanged
    copies: Exchanged  # by the document that stays
    kind: ShingleKind
    length: int
    priority: Sequence[str]
    output: Path


def collect_candidates(unit: CandidateUnit) -> Summary:
    """Write one shard's candidates; the summary has their ``bytes``."""
    tables = [*unit.labels.read_parts(unit.corpus, unit.shard.first, unit.shard.rows)]
    documents = np.concatenate([np.empty(0, np.int64), *(unit.corpus.numbers(t["sort"].to_numpy()) for t in tables)])
    roots = np.concatenate([np.empty(0, np.int64), *(table["root"].to_numpy() for table in tables)])
    rows = documents - unit.shard.first
    signatures = read_signatures(unit.signatures).take(pa.array(rows))
    times = np.ones(unit.shard.rows, np.int64)
    for table in unit.copies.read_documents(unit.corpus, unit.shard.first, unit.shard.rows) if len(rows) else ():
        np.add.at(times, unit.corpus.numbers(table["sort"].to_numpy()) - unit.shard.first, 1)
    first = size = 0
    with write_runs(unit.output) as runs:
        for _, batch in read_rows(unit.shard.path, rows, ["text"]) if len(rows) else ():
            for texts in small_batches(batch):
                values, bounds = shingle_sets(*hash_shingles(texts["text"], unit.kind, unit.length))
                part = slice(first, first := first + texts.num_rows)
                of_part = signatures.slice(part.start, texts.num_rows)
                columns = {
                    "document": documents[part],
                    "rank": source_ranks(of_part["source"].to_numpy(), unit.priority),
                    "order": of_part["order"],
                    "times": times[rows[part]],
                    "keys": of_part["keys"],
                    "shingles": sets_column(values, bounds),
                }
                runs.add(fmix64(roots[part].astype(np.uint64)), columns)
                size += values.nbytes + of_part.nbytes
    return {"candidates": len(rows), "bytes": size}


def sets_column(values: NDArray[np.uint64], bounds: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """A column of sets, as bytes: Arrow reorders lists number by number."""
    buffers = [None, pa.py_buffer(values.itemsize * bounds), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


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
