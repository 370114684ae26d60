"""Buckets → edges: pairs whose Jaccard similarity of exact shingle sets reaches the threshold (paper.md 4.3).

A bucket holds false candidates as well. In each of at most 11 rounds a pivot is drawn from what is left of the bucket;
what reaches the threshold with it is its duplicate and leaves with it. A bucket of up to 12 is so compared in full. The
draw is a hash of (seed, band, bucket, round), so neither order nor restarts can move it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.compiled import compiled
from mtnlg_data.dedup.ragged import Ragged, write_ragged
from mtnlg_data.dedup.signature import shingles
from mtnlg_data.engine import key_of
from mtnlg_data.files import replacing
from mtnlg_data.shards import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.dedup.bands import Band
    from mtnlg_data.dedup.signature import ShingleKind
    from mtnlg_data.engine import Summary
    from mtnlg_data.shards import Made, Shard

EDGE = np.dtype([("one", np.int64), ("other", np.int64), ("jaccard", np.float64)])


@dataclass(frozen=True)
class ShingleSets:
    """Unit: the candidates of one shard → the sorted set of shingle hashes of each, 64 bits a shingle."""

    shard: Shard
    candidates: Made
    kind: ShingleKind
    length: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("sets", self.shard.first, self.candidates.key, self.kind, self.length)


def collect(unit: ShingleSets) -> Summary:
    """Run one unit."""
    first, last = unit.shard.first, unit.shard.first + unit.shard.rows
    numbers = np.load(unit.candidates.path)
    rows = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last)] - first
    return {"sets": write_ragged(unit.output, _sets(unit, rows))}


def _sets(unit: ShingleSets, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    for _, table in rows_of(unit.shard.path, rows, ["text"]):
        values, bounds = shingles(table["text"].to_pylist(), unit.kind, unit.length)
        signed = values.view(np.int64)
        sets = [np.unique(signed[bounds[i] : bounds[i + 1]]) for i in range(len(bounds) - 1)]
        yield np.concatenate(sets), np.array([len(part) for part in sets], np.int64)


class Shelf:
    """The shingle set of any candidate, out of the files of all shards."""

    def __init__(self, parts: Sequence[ShingleSets]) -> None:
        self._numbers = np.load(parts[0].candidates.path, mmap_mode="r")
        self._files = [Ragged(part.output) for part in parts]
        self._firsts = np.searchsorted(self._numbers, [part.shard.first for part in parts])

    def __call__(self, document: int) -> NDArray[np.int64]:
        """The sorted set of this document's shingle hashes."""
        place = int(np.searchsorted(self._numbers, document))
        file = int(np.searchsorted(self._firsts, place, side="right")) - 1
        return self._files[file][place - int(self._firsts[file])]


@dataclass(frozen=True)
class Verification:
    """Unit: the buckets of one band → the pairs in them that are duplicates, as ``EDGE``."""

    band: Band
    sets: tuple[ShingleSets, ...]
    threshold: float
    rounds: int
    seed: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("edges", self.band.key, [p.key for p in self.sets], self.threshold, self.rounds, self.seed)


def verify(unit: Verification) -> Summary:
    """Run one unit."""
    shelf = Shelf(unit.sets)
    buckets = Ragged(unit.band.output)
    edges: list[tuple[int, int, float]] = []
    for number in range(len(buckets)):
        draws = (_draw(unit.seed, unit.band.number, number, turn) for turn in range(unit.rounds))
        edges += duplicates(buckets[number].tolist(), shelf, unit.threshold, draws)
    with replacing(unit.output) as file:
        np.save(file, np.array(edges, EDGE))
    return {"edges": len(edges)}


def duplicates(
    documents: list[int],
    shingles_of: Callable[[int], NDArray[np.int64]],
    threshold: float,
    draws: Iterator[int],
) -> list[tuple[int, int, float]]:
    """(pivot, duplicate, Jaccard) of one bucket; one round a draw."""
    edges = []
    for draw in draws:
        if len(documents) < 2:
            break
        pivot = documents.pop(draw % len(documents))
        pivot_set = shingles_of(pivot)
        left = []
        for document in documents:
            similarity = jaccard(pivot_set, shingles_of(document))
            if similarity >= threshold:
                edges.append((pivot, document, similarity))
            else:
                left.append(document)
        documents = left
    return edges


def _draw(seed: int, band: int, bucket: int, turn: int) -> int:
    digest = hashlib.blake2b(f"{seed} {band} {bucket} {turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def jaccard(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Size of the intersection over size of the union of two sorted sets, of which one is not empty."""
    both = int(shared(one, other))
    return both / (len(one) + len(other) - both)


def _shared_by_arrays(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    return len(np.intersect1d(one, other, assume_unique=True))


@compiled(instead=_shared_by_arrays)
def shared(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many values two sorted sets have in common."""
    i = j = count = 0
    while i < len(one) and j < len(other):
        if one[i] < other[j]:
            i += 1
        elif one[i] > other[j]:
            j += 1
        else:
            i, j, count = i + 1, j + 1, count + 1
    return count
