"""Gopher's rules against repetition (Rae et al. 2021, table A1): paragraphs, lines and word n-grams that recur.

    duplicate paragraphs, lines   the share of those that repeat an earlier one, and of the characters in them
    top n-gram                    characters of the most frequent n-gram, all its occurrences, the spaces in it included
    duplicate n-grams             characters of n-grams that repeat an earlier one, without spaces; they do not overlap

Shares of characters are of all characters of the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.words import jit

from .rules import DUPLICATE_NGRAMS, TOP_NGRAMS
from .texts import (
    SPREAD,
    character_table,
    count_characters,
    empty_slots,
    first_with_key,
    hash_bytes,
    scratch,
    strip,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .texts import Scratch, Texts, Words

LINE_FEED = 10
PARAGRAPHS, PARAGRAPH_CHARACTERS, LINES, LINE_CHARACTERS, TOP = range(5)
DUPLICATES = TOP + len(TOP_NGRAMS)
FIRST_TOP, LAST_TOP = TOP_NGRAMS[0], TOP_NGRAMS[-1]
FIRST_DUPLICATE, LAST_DUPLICATE = DUPLICATE_NGRAMS[0], DUPLICATE_NGRAMS[-1]


def repetition_shares(texts: Texts, words: Words) -> NDArray[np.float64]:
    """Shares of each text, in the order of Gopher's repetition rules: a row for each text."""
    return _shares(texts, words, character_table(), scratch(texts))


@jit
def _shares(texts: Texts, words: Words, table: NDArray[np.uint8], room: Scratch) -> NDArray[np.float64]:
    shares = np.zeros((len(texts.bounds) - 1, DUPLICATES + LAST_DUPLICATE - FIRST_DUPLICATE + 1), np.float64)
    for text in range(len(shares)):
        begin, end = texts.bounds[text], texts.bounds[text + 1]
        length = count_characters(texts.data, begin, end)
        if not length:
            continue
        inner_begin, inner_end = strip(texts.data, begin, end, table)
        count = _split(texts.data[inner_begin:inner_end], 2, room)
        repeated, repeated_characters = count_repeated(count, room)
        shares[text, PARAGRAPHS], shares[text, PARAGRAPH_CHARACTERS] = repeated / count, repeated_characters / length
        count = _split(texts.data[begin:end], 1, room)
        repeated, repeated_characters = count_repeated(count, room)
        shares[text, LINES], shares[text, LINE_CHARACTERS] = repeated / count, repeated_characters / length
        first, last = words.bounds[text], words.bounds[text + 1]
        for n in range(FIRST_TOP, LAST_TOP + 1):
            shares[text, TOP + n - FIRST_TOP] = _top_characters(words, first, last, n, room) / length
        for n in range(FIRST_DUPLICATE, LAST_DUPLICATE + 1):
            shares[text, DUPLICATES + n - FIRST_DUPLICATE] = _repeated_characters(words, first, last, n, room) / length
    return shares


@jit
def _split(data: NDArray[np.uint8], least: int, room: Scratch) -> int:
    """Hashes and characters of what stands between runs of ``least`` or more line feeds; returns how many there are."""
    count = start = place = 0
    while place <= len(data):
        after = place
        while after < len(data) and data[after] == LINE_FEED:
            after += 1
        if place == len(data) or after - place >= least:
            room.keys[count] = hash_bytes(data, start, place)
            room.numbers[count] = count_characters(data, start, place)
            count += 1
            start = after
        place = max(after, place + 1)
    return count


@jit
def count_repeated(count: int, room: Scratch) -> tuple[int, int]:
    """How many of these first items have the key of an earlier one, and the sum of their numbers."""
    bits = empty_slots(room.slots, count)
    repeated, characters = 0, 0
    for item in range(count):
        if first_with_key(room.slots, bits, room.keys, item) != item:
            repeated += 1
            characters += room.numbers[item]
    return repeated, characters


@jit
def _top_characters(words: Words, first: int, last: int, n: int, room: Scratch) -> int:
    """Characters of all occurrences of the most frequent n-gram, the first of several; 0 without any."""
    count = last - first - n + 1
    if count <= 0:
        return 0
    bits = empty_slots(room.slots, count)
    for item in range(count):
        key = np.uint64(0)
        for word in range(first + item, first + item + n):
            key = key * SPREAD + (words.prefix[word + 1] - words.prefix[word]) * words.inverse[word]
        room.keys[item] = key
        room.numbers[item] = 0
        room.numbers[first_with_key(room.slots, bits, room.keys, item)] += 1
    best = 0
    for item in range(1, count):
        if room.numbers[item] > room.numbers[best]:
            best = item
    letters = words.characters[first + best + n] - words.characters[first + best]
    return int(room.numbers[best] * (letters + n - 1))


@jit
def _repeated_characters(words: Words, first: int, last: int, n: int, room: Scratch) -> int:
    """Characters of the n-grams that repeat an earlier one; the next one begins after it."""
    bits = empty_slots(room.slots, max(0, last - first - n + 1))
    total, word = 0, first
    while word + n <= last:
        item = word - first
        room.keys[item] = (words.prefix[word + n] - words.prefix[word]) * words.inverse[word]
        if first_with_key(room.slots, bits, room.keys, item) == item:
            word += 1
        else:
            total += words.characters[word + n] - words.characters[word]
            word += n
    return int(total)
