"""Candidates → pairs whose Jaccard similarity of exact shingle sets reaches the threshold (paper.md 4.3).

A bucket, the candidates of one key, holds false ones as well. In each of at most 11 rounds a pivot is drawn from what
is left of the bucket; what reaches the threshold with it is its duplicate and leaves with it. A bucket of up to 12 is
so compared in full. The draw is a hash of (seed, band, key, round): neither order, groups nor restarts can move it.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)

from mtnlg_data.words import compiled, compiled_if_possible, mix

from .clusters import GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SPILL_BYTES = 2 * GROUP_BYTES  # a cluster that is larger than this lies on disk


class Sets(NamedTuple):
    """The i-th of these sets is ``values[starts[i]:ends[i]]``, ascending."""

    values: NDArray[np.uint64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Candidates(NamedTuple):
    """The candidates of one group, by place."""

    numbers: NDArray[np.int64]
    ids: pa.Array
    sources: pa.Array
    keys: NDArray[np.uint64]  # [candidates, bands]
    sets: Sets


def gather(files: Sequence[tuple[Path, Sequence[int]]], scratch: Path) -> Candidates:
    """The candidates of a group out of these record batches of these files; ``scratch`` is for what memory cannot hold.

    One file is open at a time, there may be thousands; sets stay in the order of the files, so they are copied once.
    """
    tables: list[pa.RecordBatch] = []
    counts: list[NDArray[np.int64]] = []
    for batch in _batches(files):
        tables.append(batch.drop_columns(["shingles"]).take(pa.array(np.arange(batch.num_rows))))  # out of the map
        counts.append(np.diff(batch["shingles"].offsets.to_numpy()))
    names = pa.Table.from_batches(tables)
    del tables
    order = np.argsort(names["place"].to_numpy())
    names = names.take(pa.array(order)).combine_chunks()
    sizes = np.concatenate(counts)
    starts = np.cumsum(sizes) - sizes
    values = _room(int(sizes.sum()), scratch)
    done = 0
    for batch in _batches(files):
        part = batch["shingles"].flatten().to_numpy()
        values[done : done + len(part)] = part
        done += len(part)
    numbers, ids, sources, keys = (names[column].chunk(0) for column in ("number", "id", "source", "keys"))
    sets = Sets(values, starts[order], (starts + sizes)[order])
    return Candidates(numbers.to_numpy(), ids, sources, keys.flatten().to_numpy().reshape(len(names), -1), sets)


def _batches(files: Sequence[tuple[Path, Sequence[int]]]) -> Iterator[pa.RecordBatch]:
    for path, numbers in files:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            for number in numbers:
                yield reader.get_batch(number)


def _room(size: int, scratch: Path) -> NDArray[np.uint64]:
    if 8 * size <= SPILL_BYTES:
        return np.empty(size, np.uint64)
    with tempfile.TemporaryFile(dir=scratch) as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and would be a signal at the map
            os.posix_fallocate(file.fileno(), 0, 8 * size)
        return np.memmap(file, np.uint64, "w+", shape=(size,))


def duplicates(found: Candidates, threshold: float, rounds: int, seed: int) -> NDArray[np.int64]:
    """[pairs, 2]: (pivot, duplicate) by their places in the group."""
    twos: list[NDArray[np.int64]] = []
    pairs: list[NDArray[np.int64]] = []
    for band in range(found.keys.shape[1]):
        members, sizes = buckets(found.keys[:, band])
        twos.append(members[np.repeat(sizes == 2, sizes)].reshape(-1, 2))
        large = members[np.repeat(sizes > 2, sizes)]
        bounds = np.concatenate([[0], np.cumsum(sizes[sizes > 2])])
        pivots = draws(found.keys[large[bounds[:-1]], band], band, rounds, seed)
        pairs.append(verified(large, bounds, pivots, found.sets, threshold))
    once = np.unique(np.concatenate(twos), axis=0)  # the same two share the keys of many bands
    return np.concatenate([once[jaccard(once, found.sets) >= threshold], *pairs])


def buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of the keys that two or more candidates share: the candidates, key by key, and how many have each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))[: len(ordered)]
    sizes = np.diff(np.append(begins, len(ordered)))
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], sizes[shared]


def draws(keys: NDArray[np.uint64], band: int, rounds: int, seed: int) -> NDArray[np.int64]:
    """[buckets, rounds]: numbers from 0 to 2**63 - 1, from which a bucket's pivots follow."""
    turns = mix(np.arange(rounds, dtype=np.uint64) + np.uint64(seed << 32) + np.uint64(band << 16))
    return (mix(keys[:, None] + turns) >> np.uint64(1)).astype(np.int64)


def _common_by_arrays(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> int:
    return len(np.intersect1d(one, other, assume_unique=True))


@compiled(instead=_common_by_arrays)
def common(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> int:
    """How many values two ascending sets share."""
    i = j = count = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        count += a == b
        i += a <= b
        j += b <= a
    return count


@compiled_if_possible
def jaccard(pairs: NDArray[np.int64], sets: Sets) -> NDArray[np.float64]:
    """The Jaccard similarity of the sets of each pair [pairs, 2]; no set is empty."""
    values, starts, ends = sets
    found = np.empty(len(pairs), np.float64)
    for pair in range(len(pairs)):
        one, other = pairs[pair, 0], pairs[pair, 1]
        both = common(values[starts[one] : ends[one]], values[starts[other] : ends[other]])
        found[pair] = both / (ends[one] - starts[one] + ends[other] - starts[other] - both)
    return found


@compiled_if_possible
def verified(
    members: NDArray[np.int64],
    bounds: NDArray[np.int64],
    draws: NDArray[np.int64],
    sets: Sets,
    threshold: float,
) -> NDArray[np.int64]:
    """[pairs, 2]: (pivot, duplicate) of the buckets ``members[bounds[b]:bounds[b + 1]]``, one round a draw."""
    values, starts, ends = sets
    pairs = np.empty((len(members), 2), np.int64)
    left = members.copy()
    count = 0
    for bucket in range(len(bounds) - 1):
        begin, end = bounds[bucket], bounds[bucket + 1]
        for turn in range(draws.shape[1]):
            if end - begin < 2:
                break
            place = begin + draws[bucket, turn] % (end - begin)
            end -= 1
            pivot, left[place] = left[place], left[end]
            size = ends[pivot] - starts[pivot]
            kept = begin
            for here in range(begin, end):
                other = left[here]
                both = common(values[starts[pivot] : ends[pivot]], values[starts[other] : ends[other]])
                if both / (size + ends[other] - starts[other] - both) >= threshold:
                    pairs[count, 0], pairs[count, 1] = pivot, other
                    count += 1
                else:
                    left[kept] = other
                    kept += 1
            end = kept
    return pairs[:count]
