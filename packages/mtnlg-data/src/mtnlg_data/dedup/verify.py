"""Candidates → pairs whose Jaccard similarity of exact shingle sets reaches the threshold (paper.md 4.3).

A bucket, the candidates of one band key, also contains false positives. In each of at most 11 rounds a pivot is drawn
from the rest of the bucket; every candidate that reaches the threshold with it is its duplicate and leaves the bucket
together with it. Buckets of up to 12 candidates are thus compared in full. The draw is a hash of (seed, band, key,
round), so it is independent of order, groups and restarts.
"""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)

from mtnlg_data.words import fmix64, fmix64_scalar, jit, jit_or_python

from .candidates import NAMES
from .clusters import GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SPILL_BYTES = 2 * GROUP_BYTES  # the sets of a cluster larger than this go to disk


class ShingleSets(NamedTuple):
    """Set i is ``values[starts[i]:ends[i]]``, ascending."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Candidates(NamedTuple):
    """The candidates of one group; those of one place are row ``rows[place]`` of names and band keys."""

    rows: NDArray[np.int64]
    documents: NDArray[np.int64]  # by place
    names: pa.Table  # id, key and source
    keys: NDArray[np.uint64]  # [candidates, bands]
    sets: ShingleSets  # by place


def gather_candidates(files: Sequence[tuple[Path, Sequence[int]]], scratch: Path) -> Candidates:
    """Read a group's candidates from these record batches of these files; ``scratch`` is a folder to spill sets to.

    Opens one of possibly thousands of files at a time. The sets stay in file order, and equal ones are there once: a
    page that was crawled a million times takes the memory of its names alone.
    """
    tables: list[pa.RecordBatch] = []
    counts: list[NDArray[np.int64]] = []
    hashes: list[NDArray[np.uint64]] = []
    for batch in _read_batches(files):
        in_memory = batch.drop_columns(["shingles"]).take(pa.array(np.arange(batch.num_rows)))  # not the mapped file
        tables.append(in_memory)
        offsets, values = _sets_of(batch)
        counts.append(np.diff(offsets))
        hashes.append(_hash_sets(values, offsets))
    table = pa.Table.from_batches(tables)
    del tables
    rows = np.argsort(table["place"].to_numpy())
    documents, names = table["number"].to_numpy()[rows], table.select(NAMES)
    keys = np.concatenate([chunk.flatten().to_numpy() for chunk in table["keys"].chunks]).reshape(len(rows), -1)
    del table
    sizes = np.concatenate(counts)
    starts, values = _store_once(files, sizes, np.concatenate(hashes), scratch)
    return Candidates(rows, documents, names, keys, ShingleSets(values, starts[rows], (starts + sizes)[rows]))


def _read_batches(files: Sequence[tuple[Path, Sequence[int]]]) -> Iterator[pa.RecordBatch]:
    for path, batches in files:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            for batch in batches:
                yield reader.get_batch(batch)


def _sets_of(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    sets = batch["shingles"]
    return sets.offsets.to_numpy() - sets.offsets[0].as_py(), sets.flatten().to_numpy()


@jit_or_python
def _hash_sets(values: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    hashes = np.zeros(len(offsets) - 1, np.uint64)
    for row in range(len(offsets) - 1):
        total = np.uint64(0)
        for place in range(offsets[row], offsets[row + 1]):
            total = total ^ fmix64_scalar(values[place])
        hashes[row] = total
    return hashes


def _store_once(
    files: Sequence[tuple[Path, Sequence[int]]], sizes: NDArray[np.int64], hashes: NDArray[np.uint64], scratch: Path
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Where each set starts, and the values of all: of sets with one size and hash the first, where they are equal."""
    order = np.lexsort((sizes, hashes))
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(hashes[order]) != 0) | (np.diff(sizes[order]) != 0)
    twins = np.empty_like(order)
    twins[order] = order[begins][np.cumsum(begins) - 1]
    is_first = twins == np.arange(len(twins))
    own = np.where(is_first, sizes, 0)
    starts = np.cumsum(own) - own
    values = _allocate(int(own.sum()), scratch)
    unequal: list[NDArray[np.uint64]] = []
    end, row = len(values), 0
    for batch in _read_batches(files):
        offsets, shingles = _sets_of(batch)
        for begin, stop in pairwise(offsets.tolist()):
            twin, own_set = starts[twins[row]], shingles[begin:stop]
            if is_first[row]:
                values[twin : twin + stop - begin] = own_set
            elif np.array_equal(values[twin : twin + stop - begin], own_set):
                starts[row] = twin
            else:
                starts[row], end = end, end + stop - begin
                unequal.append(own_set.copy())
            row += 1
    return starts, np.concatenate([values, *unequal]) if unequal else values


def _allocate(size: int, scratch: Path) -> NDArray[np.uint64]:
    if 8 * size <= SPILL_BYTES:
        return np.empty(size, np.uint64)
    with tempfile.TemporaryFile(dir=scratch) as file:
        if hasattr(os, "posix_fallocate"):  # raises on a full disk, where writing to the map would end in SIGBUS
            os.posix_fallocate(file.fileno(), 0, 8 * size)
        return np.memmap(file, np.uint64, "w+", shape=(size,))


def verify_pairs(candidates: Candidates, threshold: float, rounds: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield verified pairs [pairs, 2], a band at a time: (pivot, duplicate), as places in the group."""
    pairs_of_two: list[NDArray[np.int64]] = []
    for band in range(candidates.keys.shape[1]):
        keys = candidates.keys[candidates.rows, band]
        members, sizes = buckets(keys)
        pairs_of_two.append(members[np.repeat(sizes == 2, sizes)].reshape(-1, 2))
        large = members[np.repeat(sizes > 2, sizes)]
        bounds = np.concatenate([[0], np.cumsum(sizes[sizes > 2])])
        draws = draw_pivots(keys[large[bounds[:-1]]], band, rounds, seed)
        yield verify_buckets(large, bounds, draws, candidates.sets, threshold)
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
def verify_buckets(
    members: NDArray[np.int64],
    bounds: NDArray[np.int64],
    draws: NDArray[np.int64],
    sets: ShingleSets,
    threshold: float,
) -> NDArray[np.int64]:
    """Verified pairs [pairs, 2], (pivot, duplicate), of the buckets ``members[bounds[b]:bounds[b + 1]]``.

    ``draws`` [buckets, rounds] selects the pivots.
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
            drawn = begin + draws[bucket, turn] % (end - begin)
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
