"""Gopher's rules against repetition (Rae et al. 2021, table A1): paragraphs, lines and word n-grams that recur.

    duplicate paragraphs, lines   the share of those that repeat an earlier one, and of the characters in them
    top n-gram                    characters of all occurrences of the most frequent n-gram, including the spaces in it
    duplicate n-grams             characters of n-grams that repeat an earlier one, without spaces; they do not overlap

Shares of characters are of all characters of the text. Where most words are characters of scripts without spaces, an
n-gram is as many of these characters as n words have on average (`text.words.characters_per_word`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data import quantities
from mtnlg_data.text.characters import character_table, count_characters, strip
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import WORD_BASE, hash_bytes
from mtnlg_data.text.words import characters_per_word

from .rules import Rule, measure

if TYPE_CHECKING:
    from mtnlg_data.array_types import Float64s, Int64s, UInt8s, UInt64s
    from mtnlg_data.text.arrays import Texts
    from mtnlg_data.text.batch import TextBatch
    from mtnlg_data.text.words import Words

    from .settings import FilterSettings

LINE_FEED = 10
PARAGRAPHS, PARAGRAPH_CHARACTERS, LINES, LINE_CHARACTERS, TOP = range(5)
FIRST_TOP, LAST_TOP, FIRST_DUPLICATE, LAST_DUPLICATE = 2, 4, 5, 10  # words of the n-grams of table A1
DUPLICATES = TOP + LAST_TOP - FIRST_TOP + 1
TOP_SHARES, DUPLICATE_SHARES = (0.20, 0.18, 0.16), (0.15, 0.14, 0.13, 0.12, 0.11, 0.10)


def most(name: str, share: float, what: str, le: float | None = 1) -> Rule:
    """Gopher's rule with this share as the maximum."""
    text = f"Most {what} (Gopher: {share:.2f})."
    return Rule(f"gopher_{name}", at_most=quantities.share(share, text, le=le))


@measure(
    "gopher_repetition",
    source="Gopher",
    words=True,
    rules=[
        most("duplicate_paragraphs", 0.30, "paragraphs that repeat an earlier one"),
        most("duplicate_paragraph_characters", 0.20, "characters in such paragraphs"),
        most("duplicate_lines", 0.30, "lines that repeat an earlier one"),
        most("duplicate_line_characters", 0.20, "characters in such lines"),
        *(
            most(f"top_{n}_gram", share, f"characters in the most frequent {n}-gram of words", le=None)
            for n, share in enumerate(TOP_SHARES, FIRST_TOP)
        ),
        *(
            most(f"duplicate_{n}_grams", share, f"characters in repeated {n}-grams")
            for n, share in enumerate(DUPLICATE_SHARES, FIRST_DUPLICATE)
        ),
    ],
)
def gopher_repetition(batch: TextBatch, _settings: FilterSettings) -> Float64s:
    """The share that each rule compares, [rules, texts]."""
    return _shares(batch.texts, batch.words, character_table(), scratch(batch.texts)).T


@jit
def _shares(texts: Texts, words: Words, table: UInt8s, room: Scratch) -> Float64s:
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
        per_word = characters_per_word(words, first, last)
        for n in range(FIRST_TOP, LAST_TOP + 1):
            spaces = n - 1 if per_word == 1 else 0
            top = _top_characters(words, (first, last), round(n * per_word), spaces, room)
            shares[text, TOP + n - FIRST_TOP] = top / length
        for n in range(FIRST_DUPLICATE, LAST_DUPLICATE + 1):
            repeated = _repeated_characters(words, first, last, round(n * per_word), room)
            shares[text, DUPLICATES + n - FIRST_DUPLICATE] = repeated / length
    return shares


@jit
def _split(data: UInt8s, least: int, room: Scratch) -> int:
    """Write hash and characters of each part between ``least`` or more line feeds to ``room``; returns their number."""
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
    """How many of the first ``count`` items have the key of an earlier one, and the sum of their numbers."""
    bits = empty_slots(room.slots, count)
    repeated, characters = 0, 0
    for item in range(count):
        if first_with_key(room.slots, bits, room.keys, item) != item:
            repeated += 1
            characters += room.numbers[item]
    return repeated, characters


@jit
def _top_characters(words: Words, bounds: tuple[int, int], n: int, spaces: int, room: Scratch) -> int:
    """Characters and spaces in all occurrences of the most frequent n-gram, the first of equals; 0 if there is none."""
    first, last = bounds
    count = last - first - n + 1
    if count <= 0:
        return 0
    bits = empty_slots(room.slots, count)
    for item in range(count):
        key = np.uint64(0)
        for word in range(first + item, first + item + n):
            key = key * WORD_BASE + (words.prefix[word + 1] - words.prefix[word]) * words.inverse[word]
        room.keys[item] = key
        room.numbers[item] = 0
        room.numbers[first_with_key(room.slots, bits, room.keys, item)] += 1
    best = 0
    for item in range(1, count):
        if room.numbers[item] > room.numbers[best]:
            best = item
    letters = words.characters[first + best + n] - words.characters[first + best]
    return int(room.numbers[best] * (letters + spaces))


@jit
def _repeated_characters(words: Words, first: int, last: int, n: int, room: Scratch) -> int:
    """Characters of the n-grams that repeat an earlier one; counted n-grams do not overlap."""
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


@jit
def empty_slots(slots: Int64s, items: int) -> int:
    """Clear the slots of a hash table for this many items, a power of two; returns its base-2 logarithm."""
    bits = 3
    while 1 << bits < 2 * items:
        bits += 1
    slots[: 1 << bits] = -1
    return bits


@jit
def slot_of(slots: Int64s, bits: int, keys: UInt64s, key: np.uint64) -> int:
    """The slot of the item with this key, or the empty one that it would take."""
    slot = np.int64((key * WORD_BASE) >> np.uint64(64 - bits))
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + 1) & ((1 << bits) - 1)
    return int(slot)


@jit
def first_with_key(slots: Int64s, bits: int, keys: UInt64s, item: int) -> int:
    """The first item with this item's key; if the key is new, the item itself, which is entered into the table."""
    slot = slot_of(slots, bits, keys, keys[item])
    if slots[slot] < 0:
        slots[slot] = item
    return int(slots[slot])


class Scratch(NamedTuple):
    """Working memory for the items of one text: their keys, a number each, and the hash table that finds equal keys."""

    slots: Int64s
    keys: UInt64s
    numbers: Int64s


def scratch(texts: Texts) -> Scratch:
    """Working memory for the words or lines of the longest text."""
    items = int(np.diff(texts.bounds).max(initial=0)) + 2
    return Scratch(np.empty(4 * items + 8, np.int64), np.empty(items, np.uint64), np.empty(items, np.int64))
