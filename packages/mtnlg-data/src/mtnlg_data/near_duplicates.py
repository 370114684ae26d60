"""Near duplicates among texts in memory: what the stage finds, without its files (paper.md 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .dedup.candidates import shingle_sets
from .dedup.minhash import hash_shingles, new_signatures, permutations, sign
from .dedup.verify import Candidates, ShingleSets, buckets, kept_candidates
from .exchange import begins
from .steps.deduplicate import Deduplicate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mtnlg_data.array_types import Int64s, UInt64s


def find_duplicates(
    texts: Iterable[str] | pa.Array | pa.ChunkedArray,
    **settings: Any,  # noqa: ANN401  (fields of the settings)
) -> Int64s:
    """For each text, the number of the text to keep in its stead: its own, or that of the first of its duplicates.

        kept = find_duplicates(texts, threshold=0.9)
        unique = [text for number, text in enumerate(texts) if kept[number] == number]

    The duplicates are those of ``Deduplicate(**settings)``: MinHash finds candidates, each pair is compared exactly;
    duplicate pairs that share a text are one component. Takes 8 bytes per text and band beside the texts. Raises
    ``TypeError`` for anything but texts, ``ValueError`` for nulls, ``UsageFailure`` for a wrong setting.
    """
    if isinstance(texts, str):
        raise TypeError("one text has no duplicates: give a sequence of texts")
    column = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.large_string())
    if column.null_count:
        raise ValueError(f"{column.null_count} of the texts are null")
    column = pa.chunked_array(column).cast(pa.large_string()).combine_chunks()
    search = Deduplicate(**settings).settings
    shingle = (search.shingle, search.shingle_length)
    counts, contents, keys = signed = new_signatures(len(column), search.bands)
    sign(column, shingle, permutations(search.bands * search.rows, search.seed), signed)
    first = _first_of_each(contents.T)
    compared = (counts > 0) & (first == np.arange(len(column)))
    rows, shares = np.flatnonzero(compared), np.zeros(len(column), np.bool_)
    for of_band in keys.T:
        members, _ = buckets(of_band[rows])  # of texts that share the band's key
        shares[rows[members]] = True
    rows = np.flatnonzero(shares)
    values, bounds = shingle_sets(*hash_shingles(column.take(pa.array(rows)), *shingle))
    times = np.bincount(first, minlength=len(column))[rows]
    sets = ShingleSets(values, bounds[:-1], bounds[1:])
    candidates = Candidates(rows, rows.astype(np.uint64), times, keys[rows], sets)
    removed, twins = kept_candidates(candidates, search.threshold, search.rounds, search.seed).T
    kept = np.arange(len(column))
    kept[rows[removed]] = rows[twins]
    return kept[first]


def _first_of_each(contents: UInt64s) -> Int64s:
    """For each content hash [2, texts], the first text that has it."""
    order = np.lexsort(contents)
    low, high = contents[:, order]
    is_first = begins(low) | begins(high)
    first = np.empty(len(order), np.int64)
    first[order] = order[is_first][np.cumsum(is_first) - 1]
    return first
