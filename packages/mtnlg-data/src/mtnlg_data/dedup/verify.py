"""Candidates → pairs whose Jaccard similarity reaches the threshold, and the documents to remove (paper.md 4.3).

A bucket, the candidates of one band key, also contains false positives. In each of at most 11 rounds a pivot is drawn
from the rest of the bucket; every candidate that reaches the threshold with it is its duplicate and leaves the bucket
together with it. Buckets of up to 12 candidates are thus compared in full. The draw is a hash of (seed, band, key,
round), so it is independent of order, groups and restarts. A candidate's weight in the draw is how often its text
occurs in the corpus: the text with many exact copies is the one that most near duplicates come from.

Each component of verified pairs keeps the document from the best source; among several from that source, the one whose
key has the lowest hash, so that the result does not depend on shards or workers; a key names file and row, so other
files choose other copies. (On equal hashes, the first document.) In a chain of pairs, the ends may be less alike.
"""

from __future__ import annotations

import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray  # noqa: TC002  (stays beside what numba compiles)

from mtnlg_data.exchange import begins, stable_order, write_rows
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import fmix64

from .union_find import components, new_forest, unite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from mtnlg_data.array_types import Float64s, Int64s, UInt64s
    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range

GROUP_BYTES = 1 << 27  # approximate size of a group's candidates; a group has at least one cluster


class ShingleSets(NamedTuple):
    """Set i is ``values[starts[i]:ends[i]]``, ascending."""

    values: UInt64s
    starts: Int64s
    ends: Int64s


class Candidates(NamedTuple):
    """The candidates of one group, by cluster and document: what decides which are kept, and what is compared."""

    documents: Int64s
    orders: UInt64s
    times: Int64s  # how often its text occurs in the corpus
    keys: UInt64s  # [candidates, bands]
    sets: ShingleSets


def deduplicate_group(
    group: Range, output: Path, *, numbering: Numbering, threshold: float, rounds: int, seed: int
) -> Summary:
    """Verify one group's pairs, choose what each component keeps, and write what is removed, by document."""
    candidates = gather_candidates(group.tables(), group.folder)
    pairs = kept_candidates(candidates, threshold, rounds, seed)
    removed, twins = candidates.documents[pairs].T
    with write_rows(output) as runs:
        score = jaccard(pairs, candidates.sets).astype(np.float32)
        runs.add(numbering.keys(removed), {"kept": np.ascontiguousarray(twins), "score": score})
    return {"removed": len(removed)}


def kept_candidates(candidates: Candidates, threshold: float, rounds: int, seed: int) -> Int64s:
    """Pairs [removed, 2] of a candidate to remove and the one that its component keeps, as rows of the group."""
    parent = new_forest(len(candidates.documents))
    for pairs in verify_pairs(candidates, threshold, rounds, seed):
        unite(parent, *pairs.T)
    rows, component = components(parent)
    kept = rows[choose_representatives(candidates, rows, component)][component]
    return np.asarray(np.stack([rows, kept], axis=1)[kept != rows])


def choose_representatives(candidates: Candidates, rows: Int64s, component: Int64s) -> Int64s:
    """Index in ``rows`` of the candidate that each component keeps; components are numbered from 0."""
    order = np.lexsort((candidates.documents[rows], candidates.orders[rows], component))
    return order[np.searchsorted(component[order], np.arange(component.max(initial=-1) + 1))]


def gather_candidates(tables: Iterable[pa.Table], scratch: Path) -> Candidates:
    """Collect a group's candidates. Their band keys and sets are memory-mapped from unnamed files in ``scratch``.

    So a cluster of millions takes disk space, and memory only while some is free.
    """
    columns: dict[str, list[NDArray[np.generic]]] = {"document": [], "order": [], "times": []}
    sizes, bands = [np.empty(0, np.int64)], 1
    with tempfile.TemporaryFile(dir=scratch) as keys, tempfile.TemporaryFile(dir=scratch) as values:
        for table in tables:
            for name, parts in columns.items():
                parts.append(table[name].to_numpy())
            bands = table.schema.field("keys").type.list_size
            for chunk in table["keys"].chunks:
                keys.write(chunk.flatten().to_numpy().data)
            for chunk in table["shingles"].chunks:
                numbers, bounds = texts_of(chunk)
                sizes.append(np.diff(bounds) // 8)
                values.write(numbers[bounds[0] : bounds[-1]].data)
        of_keys, of_sets = (_mapped(file) for file in (keys, values))
    ends = np.cumsum(np.concatenate(sizes))
    documents, orders, times = (
        np.concatenate([np.empty(0, dtype), *parts])
        for dtype, parts in zip((np.int64, np.uint64, np.int64), columns.values(), strict=True)
    )
    sets = ShingleSets(of_sets, np.append(0, ends)[:-1], ends)
    return Candidates(documents, orders, times, of_keys.reshape(-1, bands), sets)


def _mapped(file: IO[bytes]) -> UInt64s:
    file.flush()
    return np.asarray(np.memmap(file, np.uint64, "r+")) if file.tell() else np.empty(0, np.uint64)


def verify_pairs(candidates: Candidates, threshold: float, rounds: int, seed: int) -> Iterator[Int64s]:
    """Yield arrays of verified pairs [pairs, 2], (pivot, duplicate), as rows of the group."""
    pairs_of_two = [np.empty((0, 2), np.int64)]
    for band, keys in enumerate(map(np.ascontiguousarray, candidates.keys.T)):
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


def buckets(keys: UInt64s) -> tuple[Int64s, Int64s]:
    """The candidates that share a key with another, key by key, and the number of candidates of each such key."""
    order = stable_order(keys)
    ordered = keys[order]
    sizes = np.diff(np.append(np.flatnonzero(begins(ordered)), len(ordered)))
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], sizes[shared]


def draw_pivots(keys: UInt64s, band: int, rounds: int, seed: int) -> Int64s:
    """Random numbers [buckets, rounds] from 0 to 2**63 - 1 that select the pivots of buckets with these keys."""
    turns = fmix64(np.arange(rounds, dtype=np.uint64) + np.uint64(seed << 32) + np.uint64(band << 16))
    return (fmix64(keys[:, None] + turns) >> np.uint64(1)).astype(np.int64)


def verify_buckets(  # noqa: PLR0917  (all of a band)
    members: Int64s,
    sizes: Int64s,
    draws: Int64s,
    times: Int64s,
    sets: ShingleSets,
    threshold: float,
) -> Iterator[Int64s]:
    """Yield arrays of verified pairs [pairs, 2], (pivot, duplicate), of all buckets.

    ``members`` lists the candidates bucket by bucket, ``sizes`` [buckets] their number in each. ``draws`` [buckets,
    rounds] selects the pivots; a candidate's weight in the draw is its ``times``.
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
        duplicate_counts = np.add.reduceat(is_duplicate, np.cumsum(sizes) - sizes, dtype=np.int64)
        rest, sizes = rest[~is_duplicate], sizes - duplicate_counts


@jit
def jaccard(pairs: Int64s, sets: ShingleSets) -> Float64s:
    """Jaccard similarity of each pair [pairs, 2] of sets; no set is empty."""
    values, starts, ends = sets
    similarities = np.empty(len(pairs), np.float64)
    for pair in range(len(pairs)):
        a, b = pairs[pair, 0], pairs[pair, 1]
        both = intersection_size(values[starts[a] : ends[a]], values[starts[b] : ends[b]])
        similarities[pair] = both / (ends[a] - starts[a] + ends[b] - starts[b] - both)
    return similarities


@jit
def intersection_size(a: UInt64s, b: UInt64s) -> int:
    """Number of values that two ascending sets share."""
    i = j = count = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        count += x == y
        i += x <= y
        j += y <= x
    return count
