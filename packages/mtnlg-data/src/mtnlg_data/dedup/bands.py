"""Band keys → buckets: the documents that share a key of a band are candidates for being duplicates.

A band's keys of all documents are sorted, one band at a time: 8 bytes a document for the keys and 8 for their order.
With 20 bands of 13 rows a pair of Jaccard J shares a bucket with probability 1 - (1 - J**13)**20 (paper.md 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.dedup.ragged import Ragged, write_ragged
from mtnlg_data.dedup.signature import NO_KEY
from mtnlg_data.engine import key_of
from mtnlg_data.files import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.dedup.signature import Signatures
    from mtnlg_data.engine import Summary


@dataclass(frozen=True)
class Band:
    """Unit: one band of all shards → its buckets, by key; the documents of each by number."""

    number: int
    signatures: tuple[Signatures, ...]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("band", self.number, [unit.key for unit in self.signatures])


def bucket(unit: Band) -> Summary:
    """Run one unit."""
    parts = [np.load(part.output, mmap_mode="r")[unit.number] for part in unit.signatures if part.shard.rows]
    members, sizes = buckets(np.concatenate([np.empty(0, np.uint64), *parts]))
    write_ragged(unit.output, [(members, sizes)])
    return {"buckets": len(sizes), "members": len(members)}


def buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of the keys that two or more documents share: the documents, key by key, and how many have each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))[: len(ordered)]
    sizes = np.diff(np.append(begins, len(ordered)))
    shared = (sizes > 1) & (ordered[begins] != NO_KEY)
    return order[np.repeat(shared, sizes)], sizes[shared]


@dataclass(frozen=True)
class Candidates:
    """Unit: the buckets of all bands → the numbers of the documents that are in any, ascending."""

    bands: tuple[Band, ...]
    documents: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("candidates", [unit.key for unit in self.bands])


def gather(unit: Candidates) -> Summary:
    """Run one unit, with one byte a document."""
    is_candidate = np.zeros(unit.documents, np.bool_)
    for band in unit.bands:
        is_candidate[Ragged(band.output).values] = True
    with replacing(unit.output) as file:
        np.save(file, np.flatnonzero(is_candidate))
    return {"candidates": int(is_candidate.sum())}
