"""Gopher's rules of quality (Rae et al. 2021, A.1.1) and FineWeb's (Penedo et al. 2024, 3.6): what prose looks like.

Lines are those of ``str.splitlines`` in Gopher's rules; in FineWeb's, what stands between line feeds and is not blank.
A sentence ends with a character of Unicode's property Sentence_Terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.words import jit

from .repetition import LINE_FEED, count_repeated
from .texts import (
    TERMINAL,
    character_table,
    code_at,
    code_before,
    count_characters,
    empty_slots,
    first_with_key,
    hash_bytes,
    hash_span,
    is_ascii,
    line_end,
    scratch,
    slot_of,
    strip,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .texts import Scratch, Texts, Words

GOPHER_MEASURES = 10
WORDS, SAME_WORDS, MEAN_WORD, SAME_MEAN_WORD, HASHES, ELLIPSES, BULLETS, ELLIPSIS_LINES, LETTERS, STOP = range(10)
LINE_PUNCTUATION, SHORT_LINES, DUPLICATE_LINES, NEWLINES = range(4)
FULL_STOP, HASH, HYPHEN = (ord(character) for character in ".#-")
BLANK, DELETE = 0x20, 0x7F
BULLET, ELLIPSIS = ord("•"), ord("…")


def gopher_measures(texts: Texts, words: Words, stop_words: Sequence[str]) -> NDArray[np.float64]:
    """What Gopher's rules of quality compare, in their order: a row for each text, of which each has a word."""
    encoded = [word.encode() for word in dict.fromkeys(stop_words)]
    joined = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.cumsum([0, *map(len, encoded)])
    stops = np.array([hash_bytes(joined, ends[n], ends[n + 1]) for n in range(len(encoded))], np.uint64)
    return _gopher(texts, words, stops, character_table())


@jit
def _gopher(texts: Texts, words: Words, stops: NDArray[np.uint64], table: NDArray[np.uint8]) -> NDArray[np.float64]:
    measures = np.zeros((len(texts.bounds) - 1, GOPHER_MEASURES), np.float64)
    seen = np.full(len(stops), -1, np.int64)  # the last text with this stop word
    slots = np.empty(4 * len(stops) + 16, np.int64)
    bits = empty_slots(slots, len(stops))
    for stop in range(len(stops)):
        first_with_key(slots, bits, stops, stop)
    for text in range(len(measures)):
        plain = plain_characters = letters = stop_words = 0
        for word in range(words.bounds[text], words.bounds[text + 1]):
            if not words.is_mark[word]:
                plain += 1
                plain_characters += words.characters[word + 1] - words.characters[word]
            letters += words.has_letter[word]
            key = (words.prefix[word + 1] - words.prefix[word]) * words.inverse[word]
            stop = slots[slot_of(slots, bits, stops, key)]
            if stop >= 0 and seen[stop] != text:
                seen[stop] = text
                stop_words += 1
        count = max(1, words.bounds[text + 1] - words.bounds[text])
        begin, end = texts.bounds[text], texts.bounds[text + 1]
        hashes, ellipses = _count_symbols(texts.data, begin, end)
        lines, bullets, ellipsis_lines = _count_lines(texts.data, begin, end, table)
        measures[text, WORDS] = measures[text, SAME_WORDS] = plain
        measures[text, MEAN_WORD] = measures[text, SAME_MEAN_WORD] = plain_characters / max(1, plain)
        measures[text, HASHES], measures[text, ELLIPSES] = hashes / count, ellipses / count
        measures[text, BULLETS] = bullets / max(1, lines)
        measures[text, ELLIPSIS_LINES] = ellipsis_lines / max(1, lines)
        measures[text, LETTERS], measures[text, STOP] = letters / count, stop_words
    return measures


@jit
def _count_symbols(data: NDArray[np.uint8], begin: int, end: int) -> tuple[int, int]:
    """Hash signs, and ellipses of either spelling; a run of six full stops is two."""
    hashes = ellipses = 0
    place = begin
    while place < end:
        byte = data[place]
        if byte == HASH:
            hashes += 1
        elif byte == FULL_STOP and place + 2 < end and data[place + 1] == FULL_STOP and data[place + 2] == FULL_STOP:
            ellipses += 1
            place += 2
        elif byte == 0xE2 and code_at(data, place)[0] == ELLIPSIS:
            ellipses += 1
        place += 1
    return hashes, ellipses


@jit
def _count_lines(data: NDArray[np.uint8], begin: int, end: int, table: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Lines, those that begin with a bullet point, and those that end with an ellipsis."""
    lines = bullets = ellipses = 0
    while begin < end:
        stop, following = line_end(data, begin, end, table)
        first, last = strip(data, begin, stop, table)
        lines += 1
        if first < last:
            code, _ = code_at(data, first)
            bullets += code in (BULLET, HYPHEN)
            ellipses += ends_with_ellipsis(data, first, last) or code_before(data, last)[0] == ELLIPSIS
        begin = following
    return lines, bullets, ellipses


@jit
def ends_with_ellipsis(data: NDArray[np.uint8], begin: int, end: int) -> bool:
    """Whether these bytes end with three full stops."""
    stops = 0
    while stops < 3 and begin < end - stops and data[end - 1 - stops] == FULL_STOP:
        stops += 1
    return stops == 3


def fineweb_measures(texts: Texts, word_bounds: NDArray[np.int64], short_line: int) -> NDArray[np.float64]:
    """What FineWeb's rules compare, in their order: a row for each text, of which each has a word."""
    begin = texts.bounds[0]
    line_feeds = begin + np.flatnonzero(texts.data[begin : texts.bounds[-1]] == LINE_FEED)
    return _fineweb(texts, (word_bounds, line_feeds), short_line, character_table(), scratch(texts))


@jit
def _fineweb(
    texts: Texts,
    bounds: tuple[NDArray[np.int64], NDArray[np.int64]],
    short_line: int,
    table: NDArray[np.uint8],
    room: Scratch,
) -> NDArray[np.float64]:
    data, (word_bounds, line_feeds), feed = texts.data, bounds, 0
    measures = np.zeros((len(texts.bounds) - 1, 4), np.float64)
    for text in range(len(measures)):
        lines = terminal = short = feeds = 0
        begin, end = texts.bounds[text], texts.bounds[text + 1]
        ascii_only = is_ascii(data, begin, end)
        while begin <= end:
            stop = end
            if feed < len(line_feeds) and line_feeds[feed] < end:
                stop = line_feeds[feed]
                feed += 1
                feeds += 1
            first, last = begin, stop
            if begin < stop and not BLANK < data[begin] < DELETE:  # else the line is surely not blank
                first, last = strip(data, begin, stop, table)
            if first < last:
                room.keys[lines] = hash_span(data, begin, stop)
                room.numbers[lines] = stop - begin if ascii_only else count_characters(data, begin, stop)
                terminal += table[code_before(data, stop)[0]] & TERMINAL != 0
                short += room.numbers[lines] <= short_line
                lines += 1
            begin = stop + 1
        if not lines:
            continue
        characters = end - texts.bounds[text] if ascii_only else count_characters(data, texts.bounds[text], end)
        measures[text, LINE_PUNCTUATION] = terminal / lines
        measures[text, SHORT_LINES] = short / lines
        measures[text, DUPLICATE_LINES] = count_repeated(lines, room)[1] / (characters - feeds)
        measures[text, NEWLINES] = feeds / max(1, word_bounds[text + 1] - word_bounds[text])
    return measures
