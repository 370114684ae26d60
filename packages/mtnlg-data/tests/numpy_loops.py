"""What the compiled loops compute, by whole-array operations of NumPy: another way to the same results."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.decontaminate.ngrams import _bits_are_set
from mtnlg_data.dedup.minhash import MIXES
from mtnlg_data.quality.classifier import BUCKET_BITS, BUCKETS
from mtnlg_data.text.arrays import join_texts
from mtnlg_data.text.characters import LETTER
from mtnlg_data.text.hashing import fmix64, ngram_hashes
from mtnlg_data.text.words import hashed_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCH_SHINGLES = 4096


def hash_words_numpy(
    data: NDArray[np.uint8], bounds: NDArray[np.int64], folds: NDArray[np.uint32], kinds: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """``minhash.hash_words``."""
    texts = [bytes(data[begin:end]).decode() for begin, end in pairwise(bounds.tolist())]
    codes, text_bounds = join_texts(texts)
    codes = folds[codes]
    hashes, starts, _ = hashed_spans(codes)
    word_bounds = np.searchsorted(starts, text_bounds)
    characters = np.concatenate([[0], np.cumsum(kinds[codes[starts]] > LETTER)])[word_bounds]
    return hashes, word_bounds, np.diff(characters)


def shingle_ngrams_numpy(
    hashes: NDArray[np.uint64], bounds: NDArray[np.int64], shingle_bounds: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """``minhash.shingle_ngrams``."""
    texts = zip(bounds[:-1], bounds[1:], np.diff(shingle_bounds), strict=True)
    ngrams = [ngram_hashes(hashes[first:last], int(last - first - size + 1)) for first, last, size in texts if size]
    return np.concatenate([np.empty(0, np.uint64), *ngrams])


def minhash_numpy(
    shingles: NDArray[np.uint64], bounds: NDArray[np.int64], a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """``minhash.minhash``."""
    mixed = fmix32_numpy((shingles >> np.uint64(32)).astype(np.uint32))
    signatures = np.full((len(bounds) - 1, len(a)), np.uint32(0xFFFFFFFF))
    for text in range(len(bounds) - 1):
        for begin in range(bounds[text], bounds[text + 1], BATCH_SHINGLES):
            batch = mixed[begin : min(begin + BATCH_SHINGLES, bounds[text + 1]), None]
            np.minimum(signatures[text], (batch * a + b).min(axis=0), out=signatures[text])
    return signatures


def fmix32_numpy(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's 32-bit finalizer."""
    values = values ^ (values >> np.uint32(16))
    values = values * np.uint32(0x85EBCA6B)
    values = values ^ (values >> np.uint32(13))
    values = values * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))


def content_hashes_numpy(shingles: NDArray[np.uint64], bounds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``minhash.content_hashes``."""
    sums = np.zeros((2, len(shingles) + 1), np.uint64)
    for total, mix in zip(sums, MIXES, strict=True):
        np.cumsum(fmix64(shingles ^ mix), out=total[1:])
    return sums[:, bounds[1:]] - sums[:, bounds[:-1]]


def band_keys_numpy(signatures: NDArray[np.uint32], bands: int) -> NDArray[np.uint64]:
    """``minhash.band_keys``."""
    by_band = signatures.reshape(len(signatures), bands, -1).astype(np.uint64)
    total = np.zeros(by_band.shape[:2], np.uint64)
    for row in range(by_band.shape[2]):
        total = fmix64(total + by_band[:, :, row] + np.uint64(1))
    return total


def intersection_size_numpy(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """``verify.intersection_size``."""
    return len(np.intersect1d(a, b, assume_unique=True))


def find_prefixes_numpy(
    hashes: NDArray[np.uint64], bounds: NDArray[np.int64], minimum: int, table: NDArray[np.uint64], shift: np.uint64
) -> NDArray[np.int64]:
    """``ngrams.find_prefixes``."""
    words = np.flatnonzero(_bits_are_set(table, ngram_hashes(hashes, minimum) >> shift))
    return words[words + minimum <= bounds[np.searchsorted(bounds, words, side="right")]]


def distinct_buckets_numpy(
    codes: NDArray[np.uint32], kinds: NDArray[np.uint8], text_bounds: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """``classifier.distinct_buckets``."""
    del longest, kinds
    hashes, starts, _ = hashed_spans(codes)
    text_of = np.searchsorted(text_bounds, starts, "right") - 1
    within = text_of[1:] == text_of[:-1]
    pairs = ngram_hashes(hashes, 2)[within]
    keys = [(text_of << BUCKET_BITS) | bucket(hashes), (text_of[1:][within] << BUCKET_BITS) | bucket(pairs)]
    distinct = np.unique(np.concatenate(keys))
    bounds = np.searchsorted(distinct, np.arange(len(text_bounds)) << BUCKET_BITS)
    return (distinct & (BUCKETS - 1)).astype(np.int32), bounds


def bucket(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bucket of each hash."""
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
