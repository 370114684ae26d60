"""Candidates with everything that verification needs: their ranking, band keys, exact sets of shingle hashes.

Rows are keyed by a hash of the cluster's root, so a range of keys, called a group, holds whole clusters, and all groups
are of about the same size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.document import read_rows
from mtnlg_data.exchange import begins, write_rows
from mtnlg_data.text.arrays import binary_column, small_batches
from mtnlg_data.text.hashing import fmix64

from .minhash import hash_shingles, read_signatures

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.array_types import Int64s, UInt64s
    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range
    from mtnlg_data.job import Done
    from mtnlg_data.steps.deduplicate import ShingleKind


def collect_candidates(
    item: tuple[Shard, Done, Range, Range],
    output: Path,
    *,
    numbering: Numbering,
    shingle: tuple[ShingleKind, int],
) -> Summary:
    """Write one shard's candidates by cluster; ``item`` has the shard, its contents, and its labels and copies.

    The summary has their ``bytes``.
    """
    shard, contents, labels, copies = item
    roots = labels.column("root", np.int64)
    documents = numbering.numbers(labels.column("sort", np.uint64))
    rows = documents - shard.first
    signatures = read_signatures(contents.output).take(pa.array(rows))
    times = np.ones(shard.rows, np.int64)
    for table in copies.tables() if len(rows) else ():
        stays = ~table["stays"].to_numpy()
        np.add.at(times, numbering.numbers(table["sort"].to_numpy()[stays]) - shard.first, 1)
    first = size = 0
    with write_rows(output) as runs:
        for batch in read_rows(shard.path, rows, ["text"]) if len(rows) else ():
            for texts in small_batches(batch):
                values, bounds = shingle_sets(*hash_shingles(texts["text"], *shingle))
                part = slice(first, first := first + texts.num_rows)
                of_part = signatures.slice(part.start, texts.num_rows)
                columns = {
                    "document": documents[part],
                    "order": of_part["order"],
                    "times": times[rows[part]],
                    "keys": of_part["keys"],
                    "shingles": binary_column(values, bounds),
                }
                runs.add(fmix64(roots[part].astype(np.uint64)), columns)
                size += values.nbytes + of_part.nbytes
    return {"candidates": len(rows), "bytes": size}


def shingle_sets(shingles: UInt64s, bounds: Int64s) -> tuple[UInt64s, Int64s]:
    """The distinct shingles of each text, ascending, and their bounds; sorts ``shingles`` in place."""
    for begin, end in pairwise(bounds.tolist()):
        shingles[begin:end].sort()
    is_new = begins(shingles)
    is_new[bounds[:-1][np.diff(bounds) > 0]] = True
    return shingles[is_new], np.concatenate([[0], np.cumsum(is_new)])[bounds]
