"""Documents → MinHash signatures → one 64-bit key per band, and a hash of all shingles.

    shingle    hash of n consecutive words (or characters, white space collapsed) of the lower-cased text; of 3/5 n
               words where most words are characters of scripts without spaces
    MinHash    h_p(document) = min over its shingles x of a_p fmix32(x) + b_p mod 2**32, a_p odd
    band key   hash of the ``rows`` MinHash values of one band
    content    sum over the shingles, repeats included, of two independent mixes of their 64 bits: 128 bits; for a text
               without shingles, BLAKE2b of its bytes

Two documents with equal content hashes have the same shingles, each as often: a Jaccard similarity of 1. The odds that
other documents share a hash by chance are 1 in 2**128 per pair, about 1 in 10**21 over all pairs of a billion
documents.

The signatures are those of datasketch 2's scheme "affine32", bit for bit, permutations included; x is the upper half of
the shingle's 64 bits. Only case is folded: texts that differ in Unicode composition ("é" as one code point or two)
differ here, and the clean stage before (ftfy) composes them. A text of fewer than n words is one shingle; a text
without words has none, and only equal texts are its duplicates.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.document import read_documents
from mtnlg_data.exchange import write_rows
from mtnlg_data.files import atomic_path
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.characters import (
    EXTEND,
    LETTER,
    LETTERED,
    SPACE,
    character_kinds,
    character_table,
    code_at,
    code_before,
    code_points,
    fold_case,
)
from mtnlg_data.text.compiled import jit, wide_vectors
from mtnlg_data.text.hashing import CHARACTER_BASE, LONGEST_SUM, WORD_BASE, document_orders, fmix64_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int64s, UInt8s, UInt32s, UInt64s
    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.steps.deduplicate import ShingleKind
    from mtnlg_data.text.arrays import Texts

    #: Table of case folding; of kinds of characters, or of white space; whether shingles are of words; their length n.
    Measure = tuple[UInt32s, UInt8s, bool, int]
    #: Numbers of shingles [texts], content hashes [2, texts], band keys [texts, bands].
    Signatures = tuple[UInt32s, UInt64s, UInt64s]

MIXES = (np.uint64(0x9AE16A3B2F90404F), np.uint64(0xC949D7C7509E6557))  # flipped before mixing: the mixes differ
ASCII = 128  # first code point, and first byte, outside ASCII
BLANK = np.uint64(32)
BYTES_SIGNED = 1 << 16  # bytes of text at a time, so that all their data stays in the processor's caches
LANES = 16  # 32-bit numbers per vector


def write_signatures(
    item: tuple[Shard, int],
    output: Path,
    *,
    shingle: tuple[ShingleKind, int],
    bands: int,
    rows: int,
    seed: int,
    priority: Sequence[str],
) -> Summary:
    """Write rows of one shard's documents by content hash; ``item`` has the shard and the number of its first document.

    A file beside them has the ``keys`` of all bands, the ``count`` of shingles with repeats, and the document's
    ``order``. The summary counts the documents of each source.
    """
    shard, first = item
    orders = np.empty(shard.rows, np.uint64)
    counts, contents, keys = new_signatures(shard.rows, bands)
    sources: Counter[str] = Counter()
    drawn = permutations(bands * rows, seed)
    row = 0
    for batch in read_documents(shard.path, ["source", "key", "text"]):
        sources.update({name["values"]: name["counts"] for name in batch["source"].value_counts().to_pylist()})
        batch_rows = slice(row, row := row + batch.num_rows)
        orders[batch_rows] = document_orders(batch, priority)
        sign(batch["text"], shingle, drawn, (counts[batch_rows], contents[batch_rows], keys[batch_rows]))
    band_columns = pa.FixedSizeListArray.from_arrays(keys.reshape(-1), bands)
    table = pa.record_batch({"keys": band_columns, "count": counts, "order": orders})
    beside = signatures_path(output)
    with atomic_path(beside) as partial, pa.ipc.new_file(str(partial), table.schema) as writer:
        writer.write_batch(table)
    with write_rows(output) as runs:
        runs.add(contents[:, 0], {"high": contents[:, 1], "order": orders, "document": first + np.arange(shard.rows)})
    return {"documents": dict(sorted(sources.items())), "files": [beside.name]}


def new_signatures(texts: int, bands: int) -> Signatures:
    """Arrays for ``sign`` to fill in; rows of each are contiguous, so that one compiled loop does for any batch."""
    return np.empty(texts, np.uint32), np.empty((texts, 2), np.uint64), np.empty((texts, bands), np.uint64)


def sign(
    column: pa.LargeStringArray,
    shingle: tuple[ShingleKind, int],
    drawn: tuple[UInt32s, UInt32s],
    signatures: Signatures,
) -> None:
    """Fill in the signatures of these texts; ``drawn`` are permutations."""
    counts, contents, keys = signatures
    _sign(texts_of(column), _measure(*shingle), *drawn, counts, contents, keys)
    for empty in np.flatnonzero(counts == 0).tolist():
        digest = blake2b(column[empty].as_buffer(), digest_size=16).digest()
        contents[empty] = np.frombuffer(digest, np.uint64)


def signatures_path(contents: Path) -> Path:
    """The file of signatures beside the file of rows by content hash."""
    return contents.with_name(f"signatures-{contents.name}")


def read_signatures(contents: Path) -> pa.RecordBatch:
    """The signatures beside these rows, memory-mapped."""
    return pa.ipc.open_file(pa.memory_map(str(signatures_path(contents)))).get_batch(0)


def permutations(count: int, seed: int) -> tuple[UInt32s, UInt32s]:
    """Multipliers a (odd) and offsets b of ``count`` permutations, as datasketch draws them.

    Importing datasketch would also import SciPy: 42 MB per worker.
    """
    draw = np.random.RandomState(seed)  # its stream never changes
    a = draw.randint(0, 1 << 31, count, np.uint32) * np.uint32(2) + np.uint32(1)
    return a, draw.randint(0, 1 << 32, count, np.uint32)


def hash_shingles(column: pa.LargeStringArray, kind: ShingleKind, length: int) -> tuple[UInt64s, Int64s]:
    """Shingle hashes of all texts, repeats included, and bounds: text t has ``shingles[bounds[t] : bounds[t + 1]]``."""
    return _hash_shingles(*texts_of(column), _measure(kind, length))


def _measure(kind: ShingleKind, length: int) -> Measure:
    return folded_codes(), character_kinds() if kind == "word" else character_table() & SPACE, kind == "word", length


@jit
def _sign(  # noqa: PLR0917  (numba takes no keywords)
    texts: Texts,
    measure: Measure,
    a: UInt32s,
    b: UInt32s,
    counts: UInt32s,
    contents: UInt64s,
    keys: UInt64s,
) -> None:
    """Fill in the number of shingles, the content hash and the band keys of each text, some texts at a time."""
    data, bounds = texts
    first = 0
    while first < len(counts):
        last = first + 1
        while last < len(counts) and bounds[last + 1] - bounds[first] <= BYTES_SIGNED:
            last += 1
        shingles, ends = _hash_shingles(data, bounds[first : last + 1], measure)
        counts[first:last] = ends[1:] - ends[:-1]
        contents[first:last] = content_hashes(shingles, ends).T
        keys[first:last] = band_keys(minhash(shingles, ends, a, b), keys.shape[1])
        first = last


@jit
def _hash_shingles(data: UInt8s, bounds: Int64s, measure: Measure) -> tuple[UInt64s, Int64s]:
    folds, kinds, is_word, length = measure
    lengths = np.full(len(bounds) - 1, length)
    if is_word:
        hashes, parts, characters = hash_words(data, bounds, folds, kinds)
        lengths[2 * characters > parts[1:] - parts[:-1]] = -(-3 * length // 5)
    else:
        hashes, parts = _hash_characters(data, bounds, folds, kinds)
    return shingle_ngrams(hashes, parts, lengths)


@jit
def _hash_characters(data: UInt8s, bounds: Int64s, folds: UInt32s, is_space: UInt8s) -> tuple[UInt64s, Int64s]:
    """Hashes of the characters of case-folded texts, white space collapsed as by ``str.split``, and their bounds."""
    hashes, hash_bounds = np.empty(bounds[-1] - bounds[0], np.uint64), np.zeros(len(bounds), np.int64)
    count = 0
    for text in range(len(bounds) - 1):
        place, first, parted = bounds[text], count, False
        while place < bounds[text + 1]:
            code, size = code_at(data, place)
            if is_space[code]:
                parted = count > first
            else:
                if parted:
                    hashes[count] = fmix64_scalar(BLANK)
                    count += 1
                hashes[count] = fmix64_scalar(np.uint64(folds[code]))
                count, parted = count + 1, False
            place += size
        hash_bounds[text + 1] = count
    return hashes[:count], hash_bounds


@cache
def folded_codes() -> UInt32s:
    """Table from each code point to the one that ``fold_case`` replaces it by."""
    folded = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    folded[LETTERED] = code_points(fold_case("".join(map(chr, LETTERED))))
    return folded


@jit
def hash_words(data: UInt8s, bounds: Int64s, folds: UInt32s, kinds: UInt8s) -> tuple[UInt64s, Int64s, Int64s]:
    """``words.find_words`` of case-folded UTF-8 texts: the words' hashes and bounds, and how many are characters.

    Over ASCII there is no branch per word, which processors mispredict: letters are summed and counted under a mask,
    and the sum so far is stored at each byte, in the place of the word that may end there.
    """
    folded, powers = folds[:ASCII], np.full(ASCII, CHARACTER_BASE)
    powers[0] = np.uint64(1)
    powers = np.cumprod(powers)
    letter_of = np.where(kinds[folded] == LETTER, folded, 0).astype(np.uint64)
    hashes = np.empty((bounds[-1] - bounds[0]) // 2 + len(bounds), np.uint64)
    word_bounds, characters = np.zeros(len(bounds), np.int64), np.zeros(len(bounds) - 1, np.int64)
    none, one = np.uint64(0), np.uint64(1)
    count = none
    for text in range(len(bounds) - 1):
        place, end = np.uint64(bounds[text]), np.uint64(bounds[text + 1])
        letters = total = none
        while place < end:
            while place < end and data[place] < ASCII and letters <= LONGEST_SUM:
                letter = letter_of[data[place]]
                inside = none - np.uint64(letter != none)  # all bits or none
                hashes[count] = total
                total = (total + letter * powers[letters]) & inside
                through = (letters + one) & inside
                count += np.uint64(through < letters)
                letters = through
                place += one
            if place == end:
                break
            code, size = code_at(data, int(np.int64(place)))
            code = folds[code]
            kind = kinds[code]
            if kind == LETTER or (kind == EXTEND and letters):
                total += np.uint64(code) * powers[letters % ASCII]
                letters += one
            else:
                if letters:
                    hashes[count] = _word_sum(total, letters, data, place, folds)
                    count += one
                    letters = total = none
                if kind > LETTER:
                    hashes[count] = code
                    count += one
                    characters[text] += 1
            place += np.uint64(size)
        if letters:
            hashes[count] = _word_sum(total, letters, data, place, folds)
            count += one
        word_bounds[text + 1] = count
    hashes = hashes[:count]
    for word in range(len(hashes)):
        hashes[word] = fmix64_scalar(hashes[word])
    return hashes, word_bounds, characters


@jit
def _word_sum(total: np.uint64, letters: np.uint64, data: UInt8s, end: np.uint64, folds: UInt32s) -> np.uint64:
    """Input of ``fmix64`` for the word of so many ``letters`` that ends at ``end``: ``total``, unless it is long."""
    if letters <= LONGEST_SUM:
        return total
    place, total = int(np.int64(end)), np.uint64(0)
    for letter in range(np.int64(letters) - 1, -1, -1):
        code, size = code_before(data, place)
        total += fmix64_scalar((np.uint64(letter) << np.uint64(32)) + np.uint64(folds[code]))
        place -= size
    return total


@jit
def shingle_ngrams(hashes: UInt64s, bounds: Int64s, lengths: Int64s) -> tuple[UInt64s, Int64s]:
    """``words.ngram_hashes`` within each text, n from ``lengths``, and bounds; a text of fewer words is one n-gram.

    There is one pass over a text's shingles for each of the n words: vector instructions handle many shingles at a
    time, a rolling hash only one.
    """
    wide_vectors()
    counts = bounds[1:] - bounds[:-1]
    lengths = np.minimum(lengths, counts)
    shingle_bounds = np.zeros(len(bounds), np.int64)
    shingle_bounds[1:] = np.cumsum(counts - lengths + (counts > 0))
    values = np.zeros(shingle_bounds[-1], np.uint64)
    for text in range(len(counts)):
        of_text = values[shingle_bounds[text] : shingle_bounds[text + 1]]
        size = len(of_text)
        for word in range(bounds[text], bounds[text] + lengths[text]):
            words = hashes[word : word + size]
            for shingle in range(size):
                of_text[shingle] = of_text[shingle] * WORD_BASE + words[shingle]
        for shingle in range(size):
            of_text[shingle] = fmix64_scalar(of_text[shingle])
    return values, shingle_bounds


@jit
def minhash(shingles: UInt64s, bounds: Int64s, a: UInt32s, b: UInt32s) -> UInt32s:
    """Signatures [texts, permutations] of the shingles' upper halves; all ones for a text without shingles.

    Eight shingles per pass, the last of a text repeated, so that a signature is written to memory an eighth as often.
    """
    wide_vectors()
    signatures = np.empty((len(bounds) - 1, len(a)), np.uint32)
    signature = np.empty(-(-len(a) // LANES) * LANES, np.uint32)
    scales, offsets = np.zeros_like(signature), np.zeros_like(signature)
    scales[: len(a)], offsets[: len(b)] = a, b
    for text in range(len(bounds) - 1):
        signature[:], last = np.uint32(0xFFFFFFFF), bounds[text + 1] - 1
        for first in range(bounds[text], last + 1, 8):
            h0, h1 = fmix32_upper(shingles[first]), fmix32_upper(shingles[min(first + 1, last)])
            h2, h3 = fmix32_upper(shingles[min(first + 2, last)]), fmix32_upper(shingles[min(first + 3, last)])
            h4, h5 = fmix32_upper(shingles[min(first + 4, last)]), fmix32_upper(shingles[min(first + 5, last)])
            h6, h7 = fmix32_upper(shingles[min(first + 6, last)]), fmix32_upper(shingles[min(first + 7, last)])
            for p in range(len(signature)):
                low = min(np.uint32(scales[p] * h0 + offsets[p]), np.uint32(scales[p] * h1 + offsets[p]))
                low = min(low, np.uint32(scales[p] * h2 + offsets[p]), np.uint32(scales[p] * h3 + offsets[p]))
                high = min(np.uint32(scales[p] * h4 + offsets[p]), np.uint32(scales[p] * h5 + offsets[p]))
                high = min(high, np.uint32(scales[p] * h6 + offsets[p]), np.uint32(scales[p] * h7 + offsets[p]))
                signature[p] = min(signature[p], low, high)
        signatures[text] = signature[: len(a)]
    return signatures


@jit
def fmix32_upper(value: np.uint64) -> np.uint32:
    """MurmurHash3's 32-bit finalizer of the upper half of a value, for use inside compiled loops."""
    h = np.uint32(value >> np.uint64(32))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@jit
def content_hashes(shingles: UInt64s, bounds: Int64s) -> UInt64s:
    """Content hashes [2, texts]."""
    wide_vectors()
    hashes = np.zeros((2, len(bounds) - 1), np.uint64)
    for text in range(len(bounds) - 1):
        of_text = shingles[bounds[text] : bounds[text + 1]]
        low, high = np.uint64(0), np.uint64(0)
        for shingle in range(len(of_text)):
            low += fmix64_scalar(of_text[shingle] ^ MIXES[0])
            high += fmix64_scalar(of_text[shingle] ^ MIXES[1])
        hashes[0, text], hashes[1, text] = low, high
    return hashes


@jit
def band_keys(signatures: UInt32s, bands: int) -> UInt64s:
    """Keys [texts, bands]; two texts share a band's key exactly if they agree in all rows of the band."""
    keys = np.zeros((len(signatures), bands), np.uint64)
    rows = signatures.shape[1] // bands
    for text in range(len(signatures)):
        for row in range(rows):
            for band in range(bands):
                keys[text, band] = fmix64_scalar(keys[text, band] + signatures[text, band * rows + row] + np.uint64(1))
    return keys
