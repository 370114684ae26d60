"""Texts of a batch as one array of UTF-8 bytes, their words, and the properties of characters that rules ask for.

The rules are loops over these arrays, compiled by numba: no text becomes a Python string. Of words, running sums over
the batch are kept, from which count, characters and hash of any word n-gram follow in constant time:

    prefix[k] = sum_(i < k) b_i B**i     over the bytes b_i of all words up to word k, white space and all else left out
    hash of words j to k = (prefix[k] - prefix[j]) B**-(bytes before j), modulo 2**64

So n-grams hash as the texts of their words joined, without the spaces between them.
"""

from __future__ import annotations

import re
import string
import sys
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.words import LETTER as LETTER_OF_A_WORD
from mtnlg_data.words import LONGEST_SUM, character_kinds, fmix64_scalar, jit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SPACE, LETTER, MARK, TERMINAL, LINE_END, WORD, DIGIT, JOINER = (np.uint8(1 << bit) for bit in range(8))
#: Code points and ranges of them, in hexadecimal. Marks are ASCII punctuation, control characters, the ends of
#: sentences, and these, which CCNet normalises (Wenzek et al. 2020).
MARKS = (
    "AB B4 BB 2013 2014 2019 201C 201D 201E 2026 2236 2501 25BA 3001 3002 3008 3009 300A 300B 300C 300D 3010 3011 "
    "FF01 FF05 FF08 FF09 FF0C FF0E FF11 FF1A FF1B FF1F FF5E"
)
#: Unicode 15.0's property Sentence_Terminal and three Khmer signs.
TERMINALS = (
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6 "
    "17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 "
    "2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB "
    "FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 "
    "111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 "
    "1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 "
    "16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
JOINERS = "'\u2019.:\xb7,;"  # the frequent ones of Unicode's MidNumLet, MidLetter and MidNum (UAX #29)
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # of ``str.splitlines``
NO_WORD, IN_WORD, ALONE, AFTER_ALONE = range(-4, 0)  # beside code points
BYTE_BASE = np.uint64(0x9E3779B97F4A7C15)
BYTE_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
SPREAD = np.uint64(0xD6E8FEB86659FD93)
BYTES_AT_A_TIME = 1 << 20  # of texts, so that the arrays about them stay in the processor's caches


class Texts(NamedTuple):
    """UTF-8 bytes of several texts; text t is ``data[bounds[t]:bounds[t + 1]]``."""

    data: NDArray[np.uint8]
    bounds: NDArray[np.int64]


def texts_of(column: pa.LargeStringArray) -> Texts:
    """The texts of an Arrow column without nulls, not copied."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset) if offsets else np.zeros(1, np.int64)
    return Texts(np.frombuffer(data or b"", np.uint8), bounds)


def column_of(texts: Texts) -> pa.LargeStringArray:
    """An Arrow column of these texts; ``bounds`` begins at 0."""
    return pa.LargeStringArray.from_buffers(len(texts.bounds) - 1, pa.py_buffer(texts.bounds), pa.py_buffer(texts.data))


def small_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Consecutive parts of a batch, of about ``BYTES_AT_A_TIME`` of text each."""
    ends = np.cumsum(pc.binary_length(batch["text"]).to_numpy())
    first = 0
    while first < batch.num_rows:
        full = ends[first - 1] + BYTES_AT_A_TIME if first else BYTES_AT_A_TIME
        last = max(first + 1, int(np.searchsorted(ends, full, side="right")))
        yield batch.slice(first, last - first)
        first = last


class Words(NamedTuple):
    """Words of several texts; text t has words ``bounds[t]`` to ``bounds[t + 1]``.

    ``prefix`` and ``characters`` are sums over all words before a word, and so have one entry more. ``inverse[k]`` is
    the factor for the hash of an n-gram that begins with word k.
    """

    bounds: NDArray[np.int64]
    prefix: NDArray[np.uint64]
    inverse: NDArray[np.uint64]
    characters: NDArray[np.int64]
    has_letter: NDArray[np.bool_]
    is_mark: NDArray[np.bool_]


@cache
def character_table() -> NDArray[np.uint8]:
    """Properties of every code point, as bits: ``SPACE`` to ``JOINER``."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    table = np.zeros(len(every), np.uint8)
    for pattern, bit in ((r"\s+", SPACE), (r"\w+", WORD), (r"\d+", DIGIT)):
        for match in re.finditer(pattern, every):
            table[match.start() : match.end()] |= bit
    table[[code for code in np.flatnonzero(table & WORD).tolist() if chr(code).isalpha()]] |= LETTER
    alone = (
        character_kinds() > LETTER_OF_A_WORD
    )  # of scripts without spaces, where each letter is a word, with its signs
    table[alone] &= ~WORD
    table[alone & (table & LETTER == 0)] |= JOINER
    terminals = [*_listed(TERMINALS)]
    table[terminals] |= TERMINAL
    table[[*map(ord, string.punctuation), *range(32), *range(127, 160), *terminals, *_listed(MARKS)]] |= MARK
    table[[*map(ord, LINE_ENDS)]] |= LINE_END
    table[[*map(ord, JOINERS)]] |= JOINER
    return table


def _listed(codes: str) -> Iterator[int]:
    for entry in codes.split():
        first, _, last = entry.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


@jit
def code_at(data: NDArray[np.uint8], place: int) -> tuple[int, int]:
    """Code point that begins at this byte, and its length in bytes."""
    first = int(data[place])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | int(data[place + 1]) & 0x3F, 2
    second = (int(data[place + 1]) & 0x3F) << 6 | int(data[place + 2]) & 0x3F
    if first < 0xF0:
        return (first & 0x0F) << 12 | second, 3
    return (first & 0x07) << 18 | second << 6 | int(data[place + 3]) & 0x3F, 4


@jit
def code_before(data: NDArray[np.uint8], place: int) -> tuple[int, int]:
    """Code point that ends before this byte, and its length in bytes."""
    begin = place - 1
    while data[begin] & 0xC0 == 0x80:
        begin -= 1
    return code_at(data, begin)


@jit
def strip(data: NDArray[np.uint8], begin: int, end: int, table: NDArray[np.uint8]) -> tuple[int, int]:
    """Bounds of a text without the white space around it; equal ones where there is nothing else."""
    begin = space_end(data, begin, end, table)
    return begin, space_begin(data, begin, end, table)


@jit
def space_end(data: NDArray[np.uint8], begin: int, end: int, table: NDArray[np.uint8]) -> int:
    """Where the white space that begins here ends, at ``end`` at the latest."""
    while begin < end:
        code, size = code_at(data, begin)
        if not table[code] & SPACE:
            break
        begin += size
    return begin


@jit
def space_begin(data: NDArray[np.uint8], begin: int, end: int, table: NDArray[np.uint8]) -> int:
    """Where the white space that ends here begins, at ``begin`` at the earliest."""
    while begin < end:
        code, size = code_before(data, end)
        if not table[code] & SPACE:
            break
        end -= size
    return end


@jit
def is_ascii(data: NDArray[np.uint8], begin: int, end: int) -> bool:
    """Whether these bytes are ASCII: characters of one byte each."""
    part, bits = data[begin:end], np.uint8(0)  # indices from 0 on are looked up many at a time
    for place in range(len(part)):
        bits = np.uint8(bits | part[place])
    return bool(bits < 0x80)


@jit
def line_end(data: NDArray[np.uint8], begin: int, end: int, table: NDArray[np.uint8]) -> tuple[int, int]:
    """End of the line that begins here, and where the next one begins, as ``str.splitlines`` has it."""
    place = begin
    while place < end:
        if 32 <= data[place] < 0x80:  # no line ends here, as almost everywhere
            place += 1
            continue
        code, size = code_at(data, place)
        if table[code] & LINE_END:
            is_pair = code == 13 and place + 1 < end and data[place + 1] == 10
            return place, place + (2 if is_pair else size)
        place += size
    return end, end


@jit
def word_spans(
    texts: Texts, table: NDArray[np.uint8], marks: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of every word, and the words' bounds by text.

    A word is a run of characters that are no white space. With ``marks`` it is a run of letters and digits, in which a
    joiner may stand between two; a letter of a script without spaces, with its signs; or a run of one mark.
    """
    data, bounds = texts
    size = bounds[-1] - bounds[0]
    starts, ends = np.empty(size, np.int64), np.empty(size, np.int64)
    word_bounds = np.zeros(len(bounds), np.int64)
    count = 0
    for text in range(len(bounds) - 1):
        place, end = bounds[text], bounds[text + 1]
        last = NO_WORD  # what a character must be to continue the word
        while place < end:
            code, size = code_at(data, place)
            kind = int(code)
            if table[code] & SPACE:
                kind = NO_WORD
            elif not marks or table[code] & WORD:
                kind = IN_WORD
            elif table[code] & LETTER:
                kind = ALONE
            elif last == ALONE and table[code] & JOINER and not table[code] & MARK:
                kind = AFTER_ALONE
            elif last == IN_WORD and table[code] & JOINER and place + size < end:
                following, _ = code_at(data, place + size)
                kind = IN_WORD if table[following] & WORD else kind
            if kind != NO_WORD:
                if kind == ALONE or kind not in (last, AFTER_ALONE):
                    starts[count] = place
                    count += 1
                ends[count - 1] = place + size
            last = ALONE if kind == AFTER_ALONE else kind
            place += size
        word_bounds[text + 1] = count
    return starts[:count].copy(), ends[:count].copy(), word_bounds


@jit
def _sum_words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], table: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    count = len(starts)
    prefix, inverse = np.zeros(count + 1, np.uint64), np.empty(count, np.uint64)
    characters = np.zeros(count + 1, np.int64)
    has_letter, is_mark = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    total, power, inverse_power = np.uint64(0), np.uint64(1), np.uint64(1)
    for word in range(count):
        inverse[word] = inverse_power
        place, length = starts[word], 0
        while place < ends[word]:
            code, size = code_at(data, place)
            has_letter[word] |= table[code] & LETTER != 0
            is_mark[word] &= table[code] & MARK != 0
            length += 1
            for byte in range(place, place + size):
                total += np.uint64(data[byte]) * power
                power *= BYTE_BASE
                inverse_power *= BYTE_INVERSE
            place += size
        prefix[word + 1] = total
        characters[word + 1] = characters[word] + length
    return prefix, inverse, characters, has_letter, is_mark


def find_words(texts: Texts, *, marks: bool) -> Words:
    """The words of these texts."""
    starts, ends, bounds = word_spans(texts, character_table(), marks)
    return sum_words(texts, starts, ends, bounds)


def sum_words(texts: Texts, starts: NDArray[np.int64], ends: NDArray[np.int64], bounds: NDArray[np.int64]) -> Words:
    """The words that begin and end at these bytes of the texts, found by whatever splitter."""
    return Words(bounds, *_sum_words(texts.data, starts, ends, character_table()))


@jit
def hash_bytes(data: NDArray[np.uint8], begin: int, end: int) -> np.uint64:
    """Hash of these bytes."""
    total, power = np.uint64(0), np.uint64(1)
    for place in range(begin, end):
        total += np.uint64(data[place]) * power
        power *= BYTE_BASE
    return total


@jit
def hash_span(data: NDArray[np.uint8], begin: int, end: int) -> np.uint64:
    """Another hash of these bytes, of which each eight are mixed with those before: faster, and hard to make equal."""
    total, rest = np.uint64(end - begin) * SPREAD, np.uint64(0)  # spread, or "" would be like a control character
    eights = data[begin : end - (end - begin) % 8].view(np.uint64)
    for place in range(len(eights)):
        total = np.uint64((total ^ eights[place]) * BYTE_BASE)
        total ^= total >> np.uint64(32)
    for place in range(end - (end - begin) % 8, end):
        rest = np.uint64(rest << np.uint64(8)) | np.uint64(data[place])
    return fmix64_scalar(total ^ rest)


@jit
def hash_spans(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of each of these parts of the bytes."""
    hashes = np.empty(len(starts), np.uint64)
    for span in range(len(starts)):
        if ends[span] - starts[span] > LONGEST_SUM:
            hashes[span] = hash_span(data, starts[span], ends[span])
        else:  # faster for words
            hashes[span] = fmix64_scalar(hash_bytes(data, starts[span], ends[span]))
    return hashes


def hash_strings(column: pa.Array) -> NDArray[np.uint64]:
    """A hash of each string of a column without nulls."""
    texts = texts_of(column.cast(pa.large_string()))
    return hash_spans(texts.data, texts.bounds[:-1], texts.bounds[1:])


@jit
def count_characters(data: NDArray[np.uint8], begin: int, end: int) -> int:
    """Number of code points in these bytes."""
    part, count = data[begin:end], np.uint32(0)  # narrow: more of them in a vector
    for place in range(len(part)):
        count = np.uint32(count + np.uint32(part[place] & 0xC0 != 0x80))
    return int(count)


def text_lengths(column: pa.LargeStringArray) -> NDArray[np.int64]:
    """Characters of each text of a column without nulls."""
    return _text_lengths(*texts_of(column))


@jit
def _text_lengths(data: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths = np.empty(len(bounds) - 1, np.int64)
    for text in range(len(lengths)):
        lengths[text] = count_characters(data, bounds[text], bounds[text + 1])
    return lengths


@jit
def empty_slots(slots: NDArray[np.int64], items: int) -> int:
    """Empty as many slots as a table of so many items takes, a power of two; returns its logarithm."""
    bits = 3
    while 1 << bits < 2 * items:
        bits += 1
    slots[: 1 << bits] = -1
    return bits


@jit
def slot_of(slots: NDArray[np.int64], bits: int, keys: NDArray[np.uint64], key: np.uint64) -> int:
    """The slot of the item with this key, or the empty one that it would take."""
    slot = np.int64((key * SPREAD) >> np.uint64(64 - bits))
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + 1) & ((1 << bits) - 1)
    return int(slot)


@jit
def first_with_key(slots: NDArray[np.int64], bits: int, keys: NDArray[np.uint64], item: int) -> int:
    """The first item with the key of this one, which is itself where it is new; enters it into the table then."""
    slot = slot_of(slots, bits, keys, keys[item])
    if slots[slot] < 0:
        slots[slot] = item
    return int(slots[slot])


class Scratch(NamedTuple):
    """Room for the items of one text at a time: their keys, a number with each, and the table that finds equal keys."""

    slots: NDArray[np.int64]
    keys: NDArray[np.uint64]
    numbers: NDArray[np.int64]


def scratch(texts: Texts) -> Scratch:
    """Room for the words or lines of the longest text."""
    items = int(np.diff(texts.bounds).max(initial=0)) + 2
    return Scratch(np.empty(4 * items + 8, np.int64), np.empty(items, np.uint64), np.empty(items, np.int64))
