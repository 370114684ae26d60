"""What the compiled loops compute, by whole-array operations of NumPy: another way to the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.quality.classifier import BUCKET_BITS, BUCKETS
from mtnlg_data.text.hashing import ngram_hashes
from mtnlg_data.text.words import hashed_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
