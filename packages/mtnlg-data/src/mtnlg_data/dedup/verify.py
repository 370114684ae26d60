"""Candidates → pairs whose Jaccard similarity of exact shingle sets reaches the threshold (paper.md 4.3).

A bucket, the candidates of one band key, also contains false positives. In each of at most 11 rounds a pivot is drawn
from the rest of the bucket; every candidate that reaches the threshold with it is its duplicate and leaves the bucket
together with it. Buckets of up to 12 candidates are thus compared in full. The draw is a hash of (seed, band, key,
round), so it is independent of order, groups and restarts. A candidate of which the corpus has many exact copies is as
likely drawn as all of them: it is the one that most near duplicates come from.
"""

from __future__ import annotations

import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)

from mtnlg_data.words import fmix64, jit, jit_or_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

GROUP_BYTES = 1 << 28  # of the candidates of a group, more or less
SPILL_BYTES = GROUP_BYTES  # the sets, and the band keys, of a group that has a larger cluster go to disk


class ShingleSets(NamedTuple):
    """Set i is ``values[starts[i]:ends[i]]``, ascending."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Candidates(NamedTuple):
    """The candidates of one group, by cluster and document; what decides which of them stays, and what is compared."""

    documents: NDArray[np.int64]
    ranks: NDArray[np.uint32]
    orders: NDArray[np.uint64]
    times: NDArray[np.int64]  # that its text stands in the corpus
    keys: NDArray[np.uint64]  # [candidates, bands]
    sets: ShingleSets


def gather_candidates(tables: Iterable[pa.Table], scratch: Path) -> Candidates:
    """Collect a group's candidates; ``scratch`` is a folder to spill band keys and sets to."""
    columns: dict[str, list[NDArray[np.generic]]] = {"document": [], "rank": [], "order": [], "times": []}
    sizes = [np.empty(0, np.int64)]
    keys, values, bands = Column(scratch), Column(scratch), 1
    for table in tables:
        for name, parts in columns.items():
            parts.append(table[name].to_numpy())
        bands = table.schema.field("keys").type.list_size
        for chunk in table["keys"].chunks:
            keys.append(chunk.flatten().to_numpy())
        for chunk in table["shingles"].chunks:
            sizes.append(np.diff(chunk.offsets.to_numpy()))
            values.append(chunk.flatten().to_numpy())
    ends = np.cumsum(np.concatenate(sizes))
    sets = ShingleSets(values.array(), ends - np.concatenate(sizes), ends)
    documents, ranks, orders, times = (
        np.concatenate([np.empty(0, dtype), *parts])
        for dtype, parts in zip((np.int64, np.uint32, np.uint64, np.int64), columns.values(), strict=True)
    )
    return Candidates(documents, ranks, orders, times, keys.array().reshape(-1, bands), sets)


class Column:
    """Numbers that are appended to, in memory up to ``SPILL_BYTES``, and then in a file that is mapped."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._parts = [np.empty(0, np.uint64)]
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, numbers: NDArray[np.uint64]) -> None:
        """Append numbers, which may be part of a mapped file."""
        self._bytes += numbers.nbytes
        if self._file is None and self._bytes > SPILL_BYTES:
            self._file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115  (the map outlives it)
            for part in self._parts:
                self._file.write(part.data)
            self._parts = []
        if self._file is None:
            self._parts.append(numbers.copy())
        else:
            self._file.write(np.ascontiguousarray(numbers).data)

    def array(self) -> NDArray[np.uint64]:
        """All numbers."""
        if self._file is None:
            return np.concatenate(self._parts)
        with self._file as file:
            file.flush()
            return np.memmap(file, np.uint64, "r", shape=(self._bytes // 8,))


def verify_pairs(candidates: Candidates, threshold: float, rounds: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield verified pairs [pairs, 2], a band at a time: (pivot, duplicate), as rows of the group."""
    pairs_of_two: list[NDArray[np.int64]] = []
    for band in range(candidates.keys.shape[1]):
        keys = np.ascontiguousarray(candidates.keys[:, band])
        members, sizes = buckets(keys)
        pairs_of_two.append(members[np.repeat(sizes == 2, sizes)].reshape(-1, 2))
        large = members[np.repeat(sizes > 2, sizes)]
        bounds = np.concatenate([[0], np.cumsum(sizes[sizes > 2])])
        draws = draw_pivots(keys[large[bounds[:-1]]], band, rounds, seed)
        yield verify_buckets(large, bounds, draws, candidates.times, candidates.sets, threshold)
    once = np.unique(np.concatenate(pairs_of_two), axis=0)  # one pair often shares the keys of many bands
    yield once[jaccard(once, candidates.sets) >= threshold]


def buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The candidates that share a key with another, key by key, and the number of candidates of each such key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))[: len(ordered)]
    sizes = np.diff(np.append(begins, len(ordered)))
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], sizes[shared]


def draw_pivots(keys: NDArray[np.uint64], band: int, rounds: int, seed: int) -> NDArray[np.int64]:
    """Random numbers [buckets, rounds] from 0 to 2**63 - 1 that select the pivots of buckets with these keys."""
    turns = fmix64(np.arange(rounds, dtype=np.uint64) + np.uint64(seed << 32) + np.uint64(band << 16))
    return (fmix64(keys[:, None] + turns) >> np.uint64(1)).astype(np.int64)


@jit_or_python
def verify_buckets(  # noqa: PLR0917  (numba takes no keywords)
    members: NDArray[np.int64],
    bounds: NDArray[np.int64],
    draws: NDArray[np.int64],
    times: NDArray[np.int64],
    sets: ShingleSets,
    threshold: float,
) -> NDArray[np.int64]:
    """Verified pairs [pairs, 2], (pivot, duplicate), of the buckets ``members[bounds[b]:bounds[b + 1]]``.

    ``draws`` [buckets, rounds] selects the pivots, each candidate as likely as ``times`` of them.
    """
    values, starts, ends = sets
    pairs = np.empty((len(members), 2), np.int64)
    rest = members.copy()
    count = 0
    for bucket in range(len(bounds) - 1):
        begin, end = bounds[bucket], bounds[bucket + 1]
        for turn in range(draws.shape[1]):
            if end - begin < 2:
                break
            before = draws[bucket, turn] % times[rest[begin:end]].sum()
            drawn = begin
            while before >= times[rest[drawn]]:
                before -= times[rest[drawn]]
                drawn += 1
            end -= 1
            pivot, rest[drawn] = rest[drawn], rest[end]
            size = ends[pivot] - starts[pivot]
            kept = begin
            for position in range(begin, end):
                other = rest[position]
                both = intersection_size(values[starts[pivot] : ends[pivot]], values[starts[other] : ends[other]])
                if both / (size + ends[other] - starts[other] - both) >= threshold:
                    pairs[count, 0], pairs[count, 1] = pivot, other
                    count += 1
                else:
                    rest[kept] = other
                    kept += 1
            end = kept
    return pairs[:count]


@jit_or_python
def jaccard(pairs: NDArray[np.int64], sets: ShingleSets) -> NDArray[np.float64]:
    """Jaccard similarity of each pair [pairs, 2] of sets; no set is empty."""
    values, starts, ends = sets
    similarities = np.empty(len(pairs), np.float64)
    for pair in range(len(pairs)):
        a, b = pairs[pair, 0], pairs[pair, 1]
        both = intersection_size(values[starts[a] : ends[a]], values[starts[b] : ends[b]])
        similarities[pair] = both / (ends[a] - starts[a] + ends[b] - starts[b] - both)
    return similarities


def _intersection_size_numpy(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    return len(np.intersect1d(a, b, assume_unique=True))


@jit(fallback=_intersection_size_numpy)
def intersection_size(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """Number of values that two ascending sets share."""
    i = j = count = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        count += x == y
        i += x <= y
        j += y <= x
    return count
