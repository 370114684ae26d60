"""Candidates → pairs whose Jaccard similarity of exact shingle sets reaches the threshold (paper.md 4.3).

A bucket, the candidates of one band key, also contains false positives. In each of at most 11 rounds a pivot is drawn
from the rest of the bucket; every candidate that reaches the threshold with it is its duplicate and leaves the bucket
together with it. Buckets of up to 12 candidates are thus compared in full. The draw is a hash of (seed, band, key,
round), so it is independent of order, groups and restarts. A candidate of which the corpus has many exact copies is as
likely drawn as all of them: it is the one that most near duplicates come from.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)

from mtnlg_data.exchange import stable_order
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import fmix64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

GROUP_BYTES = 1 << 27  # of the candidates of a group, more or less
SPILL_BYTES = GROUP_BYTES  # the sets of a group that has a larger cluster go to disk, and so do its band keys

FAULT_BYTES = 1 << 21  # of a mapped file that the kernel may map at a time, however few are read


class ShingleSets(NamedTuple):
    """Set i is ``values[starts[i]:ends[i]]``, ascending; ``mapping`` is the file that the values are in, if any."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    mapping: mmap.mmap | None = None


class Candidates(NamedTuple):
    """The candidates of one group, by cluster and document; what decides which of them stays, and what is compared."""

    documents: NDArray[np.int64]
    ranks: NDArray[np.uint32]
    orders: NDArray[np.uint64]
    times: NDArray[np.int64]  # that its text stands in the corpus
    keys: Iterable[NDArray[np.uint64]]  # of each band, once
    sets: ShingleSets


def gather_candidates(tables: Iterable[pa.Table], scratch: Path) -> Candidates:
    """Collect a group's candidates; ``scratch`` is a folder to spill band keys and sets to."""
    columns: dict[str, list[NDArray[np.generic]]] = {"document": [], "rank": [], "order": [], "times": []}
    sizes = [np.empty(0, np.int64)]
    keys: list[Column] = []
    values = Column(scratch, SPILL_BYTES)
    for table in tables:
        for name, parts in columns.items():
            parts.append(table[name].to_numpy())
        bands = table.schema.field("keys").type.list_size
        keys = keys or [Column(scratch, SPILL_BYTES // bands) for _ in range(bands)]
        for chunk in table["keys"].chunks:
            for column, of_band in zip(keys, chunk.flatten().to_numpy().reshape(-1, bands).T, strict=True):
                column.append(of_band)
        for chunk in table["shingles"].chunks:
            numbers, bounds = texts_of(chunk)
            sizes.append(np.diff(bounds) // 8)
            values.append(numbers[bounds[0] : bounds[-1]].view(np.uint64))
    ends = np.cumsum(np.concatenate(sizes))
    starts = np.concatenate([[0], ends])[:-1]
    documents, ranks, orders, times = (
        np.concatenate([np.empty(0, dtype), *parts])
        for dtype, parts in zip((np.int64, np.uint32, np.uint64, np.int64), columns.values(), strict=True)
    )
    sets = ShingleSets(values.array(), starts, ends, values.mapping)
    return Candidates(documents, ranks, orders, times, _in_turn(keys), sets)


def _in_turn(columns: list[Column]) -> Iterator[NDArray[np.uint64]]:
    """The numbers of each column, of which none is kept."""
    while columns:
        yield columns.pop(0).array()


class Column:
    """Numbers that are appended to, in memory up to so many bytes, and then in a file that is mapped."""

    def __init__(self, scratch: Path, limit: int) -> None:
        self.mapping: mmap.mmap | None = None  # once there is an array
        self._scratch = scratch
        self._limit = limit
        self._parts: list[NDArray[np.uint64]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, numbers: NDArray[np.uint64]) -> None:
        """Append numbers, which may be part of a mapped file."""
        self._bytes += numbers.nbytes
        self._parts.append(numbers.copy())
        if self._bytes > self._limit:
            self._file = self._file or tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115  (the map outlives it)
            for part in self._parts:
                self._file.write(part.data)
            self._parts = []

    def array(self) -> NDArray[np.uint64]:
        """All numbers; nothing can be appended then."""
        if self._file is None:
            numbers, end = np.empty(self._bytes // 8, np.uint64), self._bytes // 8
            while self._parts:  # from the last, so that each goes as it is copied
                part = self._parts.pop()
                numbers[end - len(part) : end] = part
                end -= len(part)
            return numbers
        with self._file as file:
            file.flush()
            self.mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self.mapping, np.uint64)


def verify_pairs(candidates: Candidates, threshold: float, rounds: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield verified pairs [pairs, 2], some at a time: (pivot, duplicate), as rows of the group."""
    pairs_of_two = [np.empty((0, 2), np.int64)]
    for band, keys in enumerate(candidates.keys):
        members, sizes = buckets(keys)
        pairs_of_two.append(members[np.repeat(sizes == 2, sizes)].reshape(-1, 2))
        large, of_large = members[np.repeat(sizes > 2, sizes)], sizes[sizes > 2]
        del members
        draws = draw_pivots(keys[large[np.cumsum(of_large) - of_large]], band, rounds, seed)
        yield from verify_buckets(large, of_large, draws, candidates.times, candidates.sets, threshold)
    first, second = np.concatenate(pairs_of_two).astype(np.uint64).T
    packed = np.sort(first << np.uint64(32) | second)
    packed = packed[np.diff(packed, append=~packed[-1:]) != 0]  # one pair often shares the keys of many bands
    once = np.stack([packed >> np.uint64(32), packed & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)
    yield once[jaccard(once, candidates.sets) >= threshold]


def buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The candidates that share a key with another, key by key, and the number of candidates of each such key."""
    order = stable_order(keys)
    ordered = keys[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))[: len(ordered)]
    sizes = np.diff(np.append(begins, len(ordered)))
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], sizes[shared]


def draw_pivots(keys: NDArray[np.uint64], band: int, rounds: int, seed: int) -> NDArray[np.int64]:
    """Random numbers [buckets, rounds] from 0 to 2**63 - 1 that select the pivots of buckets with these keys."""
    turns = fmix64(np.arange(rounds, dtype=np.uint64) + np.uint64(seed << 32) + np.uint64(band << 16))
    return (fmix64(keys[:, None] + turns) >> np.uint64(1)).astype(np.int64)


def verify_buckets(  # noqa: PLR0917  (all of a band)
    members: NDArray[np.int64],
    sizes: NDArray[np.int64],
    draws: NDArray[np.int64],
    times: NDArray[np.int64],
    sets: ShingleSets,
    threshold: float,
) -> Iterator[NDArray[np.int64]]:
    """Yield verified pairs [pairs, 2], (pivot, duplicate), of all buckets, which have so many of the members each.

    ``draws`` [buckets, rounds] selects the pivots, each candidate as likely as ``times`` of them.
    """
    rest = members
    for turn in range(draws.shape[1]):
        is_open = sizes > 1
        rest, sizes, draws = rest[np.repeat(is_open, sizes)], sizes[is_open], draws[is_open]
        if not len(sizes):
            return
        lasts = np.cumsum(sizes) - 1
        through = np.cumsum(times[rest])
        before = np.append(0, through[lasts[:-1]])
        drawn = np.searchsorted(through, before + draws[:, turn] % (through[lasts] - before), "right")
        del through
        pivots = rest[drawn]
        rest[drawn] = rest[lasts]
        rest, sizes = np.delete(rest, lasts), sizes - 1
        pairs = np.stack([np.repeat(pivots, sizes), rest], axis=1)
        is_duplicate = jaccard(pairs, sets) >= threshold
        yield pairs[is_duplicate]
        found = np.add.reduceat(is_duplicate, np.cumsum(sizes) - sizes, dtype=np.int64)
        rest, sizes = rest[~is_duplicate], sizes - found


def jaccard(pairs: NDArray[np.int64], sets: ShingleSets) -> NDArray[np.float64]:
    """Jaccard similarity of each pair [pairs, 2] of sets; no set is empty.

    Of mapped sets no more than about ``SPILL_BYTES`` count as memory at a time.
    """
    values, starts, ends, mapping = sets
    if mapping is None:
        return _jaccard(pairs, values, starts, ends)
    read = np.zeros(len(pairs), np.int64)
    for one in pairs.T:
        read += 8 * (ends[one] - starts[one])
        read[1:] += FAULT_BYTES * (np.diff(starts[one] // (FAULT_BYTES // 8)) != 0)
    read = np.cumsum(read) // SPILL_BYTES
    similarities = []
    for part in np.split(pairs, np.flatnonzero(np.diff(read)) + 1):
        similarities.append(_jaccard(part, values, starts, ends))
        mapping.madvise(mmap.MADV_DONTNEED)
    return np.concatenate(similarities)


@jit
def _jaccard(
    pairs: NDArray[np.int64], values: NDArray[np.uint64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    similarities = np.empty(len(pairs), np.float64)
    for pair in range(len(pairs)):
        a, b = pairs[pair, 0], pairs[pair, 1]
        both = intersection_size(values[starts[a] : ends[a]], values[starts[b] : ends[b]])
        similarities[pair] = both / (ends[a] - starts[a] + ends[b] - starts[b] - both)
    return similarities


@jit
def intersection_size(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """Number of values that two ascending sets share."""
    i = j = count = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        count += x == y
        i += x <= y
        j += y <= x
    return count
