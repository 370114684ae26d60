"""Gopher's quality rules (Rae et al. 2021, A.1.1): properties of prose. Lines are those of ``str.splitlines``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.extract.boilerplate import stop_words
from mtnlg_data.extract.language import ENGLISH, UNKNOWN, language_code
from mtnlg_data.quantities import characters, per_word, share, words
from mtnlg_data.settings import setting
from mtnlg_data.text.characters import character_table, code_at, code_before, line_end, strip
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import WORD_BASE, hash_bytes
from mtnlg_data.text.words import characters_per_word

from .repetition import empty_slots, first_with_key, slot_of
from .rules import Rule, measure

if TYPE_CHECKING:
    from mtnlg_data.array_types import Float64s, UInt8s, UInt64s
    from mtnlg_data.text.arrays import Texts
    from mtnlg_data.text.batch import TextBatch
    from mtnlg_data.text.words import Words

    from .settings import FilterSettings

WORDS, SAME_WORDS, MEAN_WORD, SAME_MEAN_WORD, HASHES, ELLIPSES, BULLETS, ELLIPSIS_LINES, LETTERS, STOP = range(10)
FULL_STOP, HASH, HYPHEN = (ord(character) for character in ".#-")
BULLET, ELLIPSIS = ord("•"), ord("…")
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
STOP_WORDS_SETTING = setting(
    (),
    "Words for gopher_stop_words; if none are given, Gopher's 8 for English and where the language is "
    "unknown, jusText's list for other languages; where that has none, the rule is skipped.",
)


@measure(
    "gopher_quality",
    source="Gopher",
    words=True,
    rules=[
        Rule("gopher_fewest_words", at_least=words(50, "Fewest words of a document (Gopher: 50).")),
        Rule("gopher_most_words", at_most=words(100_000, "Most words of a document (Gopher: 100,000).", ge=1)),
        Rule("gopher_shortest_mean_word", at_least=characters(3.0, "Minimum mean word length (Gopher: 3).")),
        Rule("gopher_longest_mean_word", at_most=characters(10.0, "Maximum mean word length (Gopher: 10).")),
        Rule("gopher_hashes", at_most=per_word(0.1, "Maximum hash signs per word (Gopher: 0.1).")),
        Rule("gopher_ellipses", at_most=per_word(0.1, "Most ellipses per word (Gopher: 0.1).")),
        Rule("gopher_bullet_lines", at_most=share(0.9, "Maximum share of lines with a bullet point (Gopher: 0.9).")),
        Rule(
            "gopher_ellipsis_lines", at_most=share(0.3, "Maximum share of lines ending in an ellipsis (Gopher: 0.3).")
        ),
        Rule("gopher_alphabetic_words", at_least=share(0.8, "Fewest words with a letter (Gopher: 0.8).")),
        Rule(
            "gopher_stop_words",
            at_least=words(2, "Fewest different stop words (Gopher: 2)."),
            settings={"stop_words": (tuple[str, ...], STOP_WORDS_SETTING)},
        ),
    ],
)
def gopher_quality(batch: TextBatch, settings: FilterSettings) -> Float64s:
    """The number per rule; the mean word length is NaN if most words are syllables or of scripts without spaces."""
    numbers = {language: number for number, language in enumerate(dict.fromkeys(batch.languages))}
    hashes = [stop_hashes(settings.stop_words or words_of(language)) for language in numbers]
    salts = np.arange(len(numbers), dtype=np.uint64) * WORD_BASE  # a word is one of its language
    of_texts = np.array([numbers[language] for language in batch.languages], np.int64)
    stops = np.concatenate([salts[:0], *(own + salt for own, salt in zip(hashes, salts, strict=True))])
    measures = _measure(batch.texts, batch.words, stops, salts[of_texts], character_table())
    measures[STOP, np.array([len(own) == 0 for own in hashes], np.bool_)[of_texts]] = np.nan
    return measures


def words_of(language: str | None) -> tuple[str, ...] | frozenset[str]:
    """Stop words of a language."""
    return STOP_WORDS if language in {None, UNKNOWN, ENGLISH} else stop_words(language_code(language))


@cache
def stop_hashes(words: tuple[str, ...] | frozenset[str]) -> UInt64s:
    """Hashes of words."""
    encoded = [word.encode() for word in dict.fromkeys(words)]
    joined, ends = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])
    return np.array([hash_bytes(joined, ends[n], ends[n + 1]) for n in range(len(encoded))], np.uint64)


@jit
def _measure(texts: Texts, words: Words, stops: UInt64s, salts: UInt64s, table: UInt8s) -> Float64s:
    measures = np.zeros((STOP + 1, len(texts.bounds) - 1), np.float64)
    seen = np.full(len(stops), -1, np.int64)  # the last text with this stop word
    slots = np.empty(4 * len(stops) + 16, np.int64)
    bits = empty_slots(slots, len(stops))
    for stop in range(len(stops)):
        first_with_key(slots, bits, stops, stop)
    for text in range(len(texts.bounds) - 1):
        plain = plain_characters = letters = others = stop_count = 0
        for word in range(words.bounds[text], words.bounds[text + 1]):
            if not words.is_mark[word]:
                plain += 1
                plain_characters += words.characters[word + 1] - words.characters[word]
            letters += words.has_letter[word]
            others += words.script[word] != 0
            key = (words.prefix[word + 1] - words.prefix[word]) * words.inverse[word] + salts[text]
            stop = slots[slot_of(slots, bits, stops, key)]
            if stop >= 0 and seen[stop] != text:
                seen[stop] = text
                stop_count += 1
        count = max(1, words.bounds[text + 1] - words.bounds[text])
        begin, end = texts.bounds[text], texts.bounds[text + 1]
        hashes, ellipses = _count_symbols(texts.data, begin, end)
        lines, bullets, ellipsis_lines = _count_lines(texts.data, begin, end, table)
        per_word = characters_per_word(words, words.bounds[text], words.bounds[text + 1])
        measures[WORDS, text] = measures[SAME_WORDS, text] = plain / per_word
        mean = plain_characters / max(1, plain) if 2 * others <= plain else np.nan
        measures[MEAN_WORD, text] = measures[SAME_MEAN_WORD, text] = mean
        measures[HASHES, text], measures[ELLIPSES, text] = hashes / count, ellipses / count
        measures[BULLETS, text] = bullets / max(1, lines)
        measures[ELLIPSIS_LINES, text] = ellipsis_lines / max(1, lines)
        measures[LETTERS, text], measures[STOP, text] = letters / count, stop_count
    return measures


@jit
def _count_symbols(data: UInt8s, begin: int, end: int) -> tuple[int, int]:
    """Numbers of hash signs and of ellipses in either spelling; a run of six full stops is two ellipses."""
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
def _count_lines(data: UInt8s, begin: int, end: int, table: UInt8s) -> tuple[int, int, int]:
    """Numbers of lines, of those that begin with a bullet point, and of those that end with an ellipsis."""
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
def ends_with_ellipsis(data: UInt8s, begin: int, end: int) -> bool:
    """Whether these bytes end with three full stops."""
    stops = 0
    while stops < 3 and begin < end - stops and data[end - 1 - stops] == FULL_STOP:
        stops += 1
    return stops == 3
