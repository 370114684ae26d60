"""Documents → MinHash signatures → one 64-bit key a band: the state that deduplication keeps of every document.

    shingle    hash of n words (or characters, white space being one) in a row of the lower-cased text
    MinHash    h_p(document) = min over its shingles x of a_p fmix32(x) + b_p mod 2**32, a_p odd
    band key   hash of the ``rows`` values of one band

This is the scheme "affine32" of datasketch 2, bit for bit, permutations included; x is the upper half of the shingle's
64 bits. Case is folded and nothing else: texts that differ in Unicode's composition ("é" of one code point or of two)
differ here, and are made one by the stage before (ftfy composes them). A text of fewer than n words is one shingle; a
text without words has none, and is nobody's duplicate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from datasketch import MinHash

from mtnlg_data.document import read_documents
from mtnlg_data.engine import key_of
from mtnlg_data.words import (
    B,
    code_points,
    compiled,
    compiled_if_possible,
    fold,
    joined,
    mix,
    mixed,
    portions,
    runs_of,
    spans,
    word_characters,
)

from .bands import NO_KEY, write_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

ShingleKind = Literal["word", "character"]

EMPTY = np.uint32(0xFFFFFFFF)
SHINGLES_AT_ONCE = 4096


@dataclass(frozen=True)
class Signatures:
    """Unit: one shard → a run: the keys of each band in order, and how many shingles each document has."""

    shard: Shard
    kind: ShingleKind
    length: int
    bands: int
    rows: int
    seed: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("signatures", self.shard.checksum, self.kind, self.length, self.bands, self.rows, self.seed)


def sign(unit: Signatures) -> Summary:
    """Run one unit; the summary has the number of documents of each source."""
    a, b = permutations(unit.bands * unit.rows, unit.seed)
    keys = np.empty((unit.bands, unit.shard.rows), np.uint64)
    counts = np.empty(unit.shard.rows, np.uint32)
    sources: Counter[str] = Counter()
    done = 0
    for batch in read_documents(unit.shard.path, ["source", "text"]):
        for source in batch["source"].value_counts().to_pylist():
            sources[source["values"]] += source["counts"]
        for texts in portions(batch["text"].to_pylist()):
            values, bounds = shingles(texts, unit.kind, unit.length)
            signatures = minhash((values >> np.uint64(32)).astype(np.uint32), bounds, a, b)
            here = slice(done, done + len(texts))
            counts[here] = np.diff(bounds)
            keys[:, here] = band_keys(signatures, unit.bands).T
            keys[:, here][:, counts[here] == 0] = NO_KEY
            done += len(texts)
    write_run(unit.output, keys, counts)
    return {"documents": dict(sorted(sources.items()))}


def shingles(texts: Sequence[str], kind: ShingleKind, length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The shingles of all texts, and the bounds of each text's among them (one more than texts); repeats included."""
    lowered = [fold(text) for text in texts]
    if kind == "word":
        codes, begins = joined(lowered)
        hashes, starts, _ = spans(codes, word_characters())
        bounds = np.searchsorted(starts, begins)
    else:
        spaced = [" ".join(text.split()) for text in lowered]
        hashes = mix(code_points("".join(spaced)).astype(np.uint64))
        bounds = np.concatenate([[0], np.cumsum([len(text) for text in spaced], dtype=np.int64)])
    counts = np.diff(bounds)
    sizes = np.where(counts < length, counts > 0, counts - length + 1)
    out = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return runs_within(hashes, bounds, out), out


def _runs_by_arrays(
    hashes: NDArray[np.uint64], bounds: NDArray[np.int64], out: NDArray[np.int64]
) -> NDArray[np.uint64]:
    texts = zip(bounds[:-1], bounds[1:], np.diff(out), strict=True)
    runs = [runs_of(hashes[first:last], int(last - first - size + 1)) for first, last, size in texts if size]
    return np.concatenate([np.empty(0, np.uint64), *runs])


@compiled(instead=_runs_by_arrays)
def runs_within(hashes: NDArray[np.uint64], bounds: NDArray[np.int64], out: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hashes of the runs of words (or characters) in each text, of which text t has ``out[t + 1] - out[t]``.

    As ``runs_of`` of ``words`` has it, but each is made of the one before it.
    """
    values = np.empty(out[-1], np.uint64)
    for text in range(len(bounds) - 1):
        first, last, size = bounds[text], bounds[text + 1], out[text + 1] - out[text]
        if size == 0:
            continue
        run = last - first - size + 1
        total, leaving = np.uint64(0), np.uint64(1)
        for place in range(first, first + run):
            total = total * B + hashes[place]
            leaving *= B
        values[out[text]] = mixed(total)
        for turn in range(1, size):
            place = first + turn
            total = total * B + hashes[place + run - 1] - hashes[place - 1] * leaving
            values[out[text] + turn] = mixed(total)
    return values


def permutations(count: int, seed: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The multipliers a (odd) and the offsets b of ``count`` permutations: datasketch's own."""
    a, b = MinHash(num_perm=count, seed=seed, scheme="affine32").permutations
    return a.astype(np.uint32), b.astype(np.uint32)


def _fmix32_by_arrays(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    values = values ^ (values >> np.uint32(16))
    values = values * np.uint32(0x85EBCA6B)
    values = values ^ (values >> np.uint32(13))
    values = values * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))


@compiled_if_possible
def fmix32(h: np.uint32) -> np.uint32:
    """MurmurHash3's 32-bit finalizer, inside compiled loops."""
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


def _minhash_by_arrays(
    values: NDArray[np.uint32], bounds: NDArray[np.int64], a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    values = _fmix32_by_arrays(values)
    signatures = np.full((len(bounds) - 1, len(a)), EMPTY)
    for text in range(len(bounds) - 1):
        for begin in range(bounds[text], bounds[text + 1], SHINGLES_AT_ONCE):
            some = values[begin : min(begin + SHINGLES_AT_ONCE, bounds[text + 1]), None]
            np.minimum(signatures[text], (some * a + b).min(axis=0), out=signatures[text])
    return signatures


@compiled(instead=_minhash_by_arrays)
def minhash(
    values: NDArray[np.uint32], bounds: NDArray[np.int64], a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Signatures [texts, permutations] of 32-bit shingle hashes; all ones where a text has none.

    Four shingles at once, the last of a text repeated, so that a signature is written to memory a quarter as often.
    """
    signatures = np.full((len(bounds) - 1, len(a)), np.uint32(0xFFFFFFFF), np.uint32)
    for text in range(len(bounds) - 1):
        signature, last = signatures[text], bounds[text + 1] - 1
        for place in range(bounds[text], last + 1, 4):
            h0, h1 = fmix32(values[place]), fmix32(values[min(place + 1, last)])
            h2, h3 = fmix32(values[min(place + 2, last)]), fmix32(values[min(place + 3, last)])
            for p in range(len(a)):
                low = min(np.uint32(a[p] * h0 + b[p]), np.uint32(a[p] * h1 + b[p]))
                high = min(np.uint32(a[p] * h2 + b[p]), np.uint32(a[p] * h3 + b[p]))
                signature[p] = min(signature[p], low, high)
    return signatures


def band_keys(signatures: NDArray[np.uint32], bands: int) -> NDArray[np.uint64]:
    """One key a band, [texts, bands], never ``NO_KEY``: two texts share it where they agree in all rows of the band."""
    by_band = signatures.reshape(len(signatures), bands, -1).astype(np.uint64)
    total = np.zeros(by_band.shape[:2], np.uint64)
    for row in range(by_band.shape[2]):
        total = mix(total + by_band[:, :, row] + np.uint64(1))
    return np.maximum(total, np.uint64(1))
