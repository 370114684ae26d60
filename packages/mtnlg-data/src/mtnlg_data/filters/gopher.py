"""Gopher's rules of quality (Rae et al. 2021, A.1.1): what prose looks like; lines are those of ``str.splitlines``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.settings import setting
from mtnlg_data.text.characters import character_table, code_at, code_before, line_end, strip
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import hash_bytes

from .repetition import empty_slots, first_with_key, slot_of
from .rules import Rule, measure, per_word, share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mtnlg_data.text.arrays import Texts
    from mtnlg_data.text.batch import TextBatch
    from mtnlg_data.text.words import Words

    from .settings import FilterSettings

WORDS, SAME_WORDS, MEAN_WORD, SAME_MEAN_WORD, HASHES, ELLIPSES, BULLETS, ELLIPSIS_LINES, LETTERS, STOP = range(10)
FULL_STOP, HASH, HYPHEN = (ord(character) for character in ".#-")
BULLET, ELLIPSIS = ord("•"), ord("…")
STOP_WORDS = setting(
    ("the", "be", "to", "of", "and", "that", "have", "with"),
    "Words of which gopher_stop_words wants some; give those of the language of the documents.",
)


@measure(
    "gopher_quality",
    source="Gopher",
    words=True,
    rules=[
        Rule(
            "gopher_fewest_words", at_least=setting(50, "Fewest words of a document (Gopher: 50).", unit="words", ge=0)
        ),
        Rule(
            "gopher_most_words",
            at_most=setting(100_000, "Most words of a document (Gopher: 100,000).", unit="words", ge=1),
        ),
        Rule(
            "gopher_shortest_mean_word",
            at_least=setting(3.0, "Least mean length of words (Gopher: 3).", unit="characters", ge=0),
        ),
        Rule(
            "gopher_longest_mean_word",
            at_most=setting(10.0, "Greatest mean length of words (Gopher: 10).", unit="characters", ge=0),
        ),
        Rule("gopher_hashes", at_most=per_word(0.1, "Most hash signs per word (Gopher: 0.1).")),
        Rule("gopher_ellipses", at_most=per_word(0.1, "Most ellipses per word (Gopher: 0.1).")),
        Rule("gopher_bullet_lines", at_most=share(0.9, "Most lines that begin with a bullet point (Gopher: 0.9).")),
        Rule("gopher_ellipsis_lines", at_most=share(0.3, "Most lines that end with an ellipsis (Gopher: 0.3).")),
        Rule("gopher_alphabetic_words", at_least=share(0.8, "Fewest words with a letter (Gopher: 0.8).")),
        Rule(
            "gopher_stop_words",
            at_least=setting(2, "Fewest different stop words (Gopher: 2).", unit="words", ge=0),
            settings={"stop_words": (tuple[str, ...], STOP_WORDS)},
        ),
    ],
)
def gopher_quality(batch: TextBatch, settings: FilterSettings) -> NDArray[np.float64]:
    """What the rules compare."""
    encoded = [word.encode() for word in dict.fromkeys(settings.stop_words)]
    joined = np.frombuffer(b"".join(encoded), np.uint8)
    ends = np.cumsum([0, *map(len, encoded)])
    stops = np.array([hash_bytes(joined, ends[n], ends[n + 1]) for n in range(len(encoded))], np.uint64)
    return _measure(batch.texts, batch.words, stops, character_table())


@jit
def _measure(texts: Texts, words: Words, stops: NDArray[np.uint64], table: NDArray[np.uint8]) -> NDArray[np.float64]:
    measures = np.zeros((STOP + 1, len(texts.bounds) - 1), np.float64)
    seen = np.full(len(stops), -1, np.int64)  # the last text with this stop word
    slots = np.empty(4 * len(stops) + 16, np.int64)
    bits = empty_slots(slots, len(stops))
    for stop in range(len(stops)):
        first_with_key(slots, bits, stops, stop)
    for text in range(len(texts.bounds) - 1):
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
        measures[WORDS, text] = measures[SAME_WORDS, text] = plain
        measures[MEAN_WORD, text] = measures[SAME_MEAN_WORD, text] = plain_characters / max(1, plain)
        measures[HASHES, text], measures[ELLIPSES, text] = hashes / count, ellipses / count
        measures[BULLETS, text] = bullets / max(1, lines)
        measures[ELLIPSIS_LINES, text] = ellipsis_lines / max(1, lines)
        measures[LETTERS, text], measures[STOP, text] = letters / count, stop_words
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
