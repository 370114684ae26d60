"""64-bit hashes of words, n-grams and strings.

With c_0, c_1, ... the code points of a word, b_0, b_1, ... the bytes of a string, and w_0, w_1, ... the hashes of
consecutive words, all modulo 2**64:

    word                    fmix64(sum_i c_i A**i)               A = CHARACTER_BASE
      over 64 characters    fmix64(sum_i fmix64(c_i + 2**32 i))
    n-gram                  fmix64(sum_j w_j B**(n - 1 - j))     B = WORD_BASE
    string                  fmix64(sum_i b_i A**i)
      over 64 bytes         fmix64 of its words of 8 bytes, each mixed with those before
    document's key, salted  BLAKE2b of 8 bytes

``fmix64`` is the finalizer of MurmurHash3, a bijection. Without it in the sum, Thue-Morse words of 1,024 letters have
equal hashes whatever A is.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from .arrays import texts_of
from .compiled import jit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mtnlg_data.array_types import Int64s, UInt8s, UInt32s, UInt64s

Hashes = TypeVar("Hashes", np.uint64, "UInt64s")
CHARACTER_BASE = np.uint64(0x9E3779B97F4A7C15)
WORD_BASE = np.uint64(0xD6E8FEB86659FD93)
LONGEST_SUM = 64  # characters of the longest word whose hash is a sum of powers
SOURCE_BIT = np.uint64(48)  # of a document's order: the rank of its source is above, the hash of its key below
KEY_BITS = np.uint64(16)


@jit
def long_word_hash(codes: UInt32s) -> np.uint64:
    """Hash of a word of more than ``LONGEST_SUM`` characters."""
    total = np.uint64(0)
    for place in range(len(codes)):
        total += fmix64_scalar((np.uint64(place) << np.uint64(32)) + np.uint64(codes[place]))
    return np.uint64(fmix64_scalar(total))


@jit
def hash_bytes(data: UInt8s, begin: int, end: int) -> np.uint64:
    """Hash of these bytes."""
    total, power = np.uint64(0), np.uint64(1)
    for place in range(begin, end):
        total += np.uint64(data[place]) * power
        power *= CHARACTER_BASE
    return total


@jit
def hash_span(data: UInt8s, begin: int, end: int) -> np.uint64:
    """Another hash of these bytes, each eight mixed with those before: faster, and collisions are hard to construct."""
    total, rest = np.uint64(end - begin) * WORD_BASE, np.uint64(0)  # spread, or "" would be like a control character
    eights = data[begin : end - (end - begin) % 8].view(np.uint64)
    for place in range(len(eights)):
        total = np.uint64((total ^ eights[place]) * CHARACTER_BASE)
        total ^= total >> np.uint64(32)
    for place in range(end - (end - begin) % 8, end):
        rest = np.uint64(rest << np.uint64(8)) | np.uint64(data[place])
    return fmix64_scalar(total ^ rest)


@jit
def hash_spans(data: UInt8s, starts: Int64s, ends: Int64s) -> UInt64s:
    """A hash of each of these parts of the bytes."""
    hashes = np.empty(len(starts), np.uint64)
    for span in range(len(starts)):
        if ends[span] - starts[span] > LONGEST_SUM:
            hashes[span] = hash_span(data, starts[span], ends[span])
        else:  # faster for words
            hashes[span] = fmix64_scalar(hash_bytes(data, starts[span], ends[span]))
    return hashes


def hash_strings(column: pa.Array) -> UInt64s:
    """A hash of each string of a column without nulls."""
    texts = texts_of(column.cast(pa.large_string()))
    return hash_spans(texts.data, texts.bounds[:-1], texts.bounds[1:])


def salted_hashes(keys: Iterable[str], salt: str) -> UInt64s:
    """A hash of the salt and each document's key, for draws and shuffles that differ from seed to seed."""
    key = salt.encode()
    return np.frombuffer(b"".join(blake2b(one.encode(), digest_size=8, key=key).digest() for one in keys), "<u8")


def document_orders(batch: pa.RecordBatch, priority: Sequence[str]) -> UInt64s:
    """Order of each document in the corpus: of equal ones, or of near duplicates, the one with the lowest stays.

    Sources come in the order of ``priority``; others share the last rank.
    """
    rank = {source: place for place, source in enumerate(priority)}
    sources = batch["source"].dictionary_encode()
    ranks = np.array([rank.get(source, len(rank)) for source in sources.dictionary.to_pylist()], np.uint64)
    return np.asarray(ranks.take(sources.indices) << SOURCE_BIT | hash_strings(batch["key"]) >> KEY_BITS)


def ngram_hashes(hashes: UInt64s, n: int, starts: Int64s) -> UInt64s:
    """Hash of the n hashes from each of ``starts`` on."""
    total = np.zeros(len(starts), np.uint64)
    for j in range(n):
        total *= WORD_BASE
        total += hashes[starts + j]
    return fmix64(total)


def fmix64(values: Hashes) -> Hashes:
    """MurmurHash3's 64-bit finalizer: every input bit affects every output bit."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


fmix64_scalar = jit(fmix64)  # of one value, for use inside compiled loops
