"""FineWeb's rules (Penedo et al. 2024, 3.6): lines are the parts between line feeds that are not blank.

A sentence ends with a character of Unicode's property Sentence_Terminal, or with a letter of Thai or a related script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.quantities import characters, per_word, share
from mtnlg_data.text.characters import (
    SCRIPT_BIT,
    character_table,
    code_at,
    code_before,
    count_characters,
    ends_sentence,
    is_ascii,
    strip,
)
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import hash_span

from .repetition import LINE_FEED, count_repeated, scratch
from .rules import Rule, measure

if TYPE_CHECKING:
    from mtnlg_data.array_types import Float64s, Int64s, UInt8s
    from mtnlg_data.text.arrays import Texts
    from mtnlg_data.text.batch import TextBatch

    from .repetition import Scratch
    from .settings import FilterSettings

LINE_PUNCTUATION, SHORT_LINES, DUPLICATE_LINES, NEWLINES = range(4)
BLANK, DELETE = 0x20, 0x7F
WIDTHS = (1.0, 1.5, 3.0, 2.0)  # by script: letters; fourths and halves of words of six characters; syllables
SHORT_LINE = characters(30, "Length of a short line (FineWeb: 30).")


@measure(
    "fineweb",
    source="FineWeb",
    words=True,
    rules=[
        Rule(
            "fineweb_line_punctuation",
            at_least=share(0.12, "Minimum share of lines that end with sentence punctuation (FineWeb: 0.12)."),
        ),
        Rule(
            "fineweb_short_lines",
            at_most=share(0.67, "Maximum share of lines of at most fineweb_short_line characters (FineWeb: 0.67)."),
            settings={"fineweb_short_line": (int, SHORT_LINE)},
        ),
        Rule(
            "fineweb_duplicate_line_characters",
            at_most=share(
                0.1, "Maximum share of characters in repeated lines (FineWeb: 0.1 in the paper, 0.01 in code)."
            ),
        ),
        Rule("fineweb_newlines", at_most=per_word(0.3, "Maximum line ends per word (FineWeb's script: 0.3).")),
    ],
)
def fineweb(batch: TextBatch, settings: FilterSettings) -> Float64s:
    """The number that each rule compares, [rules, texts]."""
    texts = batch.texts
    begin = texts.bounds[0]
    line_feeds = begin + np.flatnonzero(texts.data[begin : texts.bounds[-1]] == LINE_FEED)
    counts = (batch.word_counts, line_feeds)
    return _measure(texts, counts, settings.fineweb_short_line, character_table(), scratch(texts))


@jit
def _width(data: UInt8s, begin: int, end: int, table: UInt8s) -> int:
    """Characters of a line, where one of another script counts as many as the letters and spaces that say the same."""
    width = 0.0
    while begin < end:
        code, size = code_at(data, begin)
        width += WIDTHS[table[code] >> SCRIPT_BIT]
        begin += size
    return int(width)


@jit
def _measure(
    texts: Texts,
    counts: tuple[Int64s, Int64s],
    short_line: int,
    table: UInt8s,
    room: Scratch,
) -> Float64s:
    data, (words, line_feeds), feed = texts.data, counts, 0
    measures = np.zeros((NEWLINES + 1, len(words)), np.float64)
    for text in range(len(words)):
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
                terminal += ends_sentence(table[code_before(data, stop)[0]])
                short += room.numbers[lines] <= short_line and _width(data, begin, stop, table) <= short_line
                lines += 1
            begin = stop + 1
        if not lines:
            continue
        characters = end - texts.bounds[text] if ascii_only else count_characters(data, texts.bounds[text], end)
        measures[LINE_PUNCTUATION, text] = terminal / lines
        measures[SHORT_LINES, text] = short / lines
        measures[DUPLICATE_LINES, text] = count_repeated(lines, room)[1] / (characters - feeds)
        measures[NEWLINES, text] = feeds / max(1, words[text])
    return measures
