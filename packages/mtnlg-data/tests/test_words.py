"""Words are runs of letters, or characters of scripts without spaces, and hash alike with and without numba."""

from __future__ import annotations

import re
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtnlg_data.quality.classifier import hash_features
from mtnlg_data.text.arrays import texts_of
from mtnlg_data.text.characters import (
    EAST_ASIAN,
    EXTEND,
    LETTER,
    LETTERED,
    NO_WORD,
    SIGNS,
    SOUTHEAST_ASIAN,
    character_kinds,
    fold_case,
)
from mtnlg_data.text.hashing import ngram_hashes
from mtnlg_data.text.words import Split, characters_per_word, find_words, hashed_words

texts = st.lists(st.text(max_size=40), max_size=8)
#: Beginnings of the names of characters whose scripts put no spaces between words.
EAST_ASIAN_NAMES = (
    *("CJK", "IDEOGRAPHIC ITERATION", "IDEOGRAPHIC CLOSING", "IDEOGRAPHIC NUMBER", "VERTICAL IDEOGRAPHIC", "HANGZHOU"),
    *("HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "VERTICAL KANA", "MASU", "BOPOMOFO", "YI ", "NUSHU", "KHITAN"),
    *("TANGUT", "OLD CHINESE", "HENTAIGANA"),
)
SOUTHEAST_ASIAN_NAMES = ("THAI ", "LAO ", "TIBETAN ", "KHMER ", "MYANMAR ", "TAI ", "NEW TAI LUE ", "AHOM ")


def plain_words(text: str) -> list[tuple[int, int]]:
    """Runs of ``\\w`` and what extends them, of which characters of scripts without spaces are parted."""
    spans, begin = [], None
    for place, character in enumerate([*text, " "]):
        kind = character_kinds()[ord(character)]
        alone = kind > LETTER
        if begin is not None and kind not in {LETTER, EXTEND}:
            spans.append((begin, place))
            begin = None
        if alone:
            spans.append((place, place + 1))
        elif begin is None and re.match(r"\w", character):
            begin = place
    return spans


@given(texts=texts)
@example(texts=["", "a", "Straße_1 İstanbul ΟΔΟΣ", "日本 語", "x日本y語z", "ที่x", "한국 사람"])
@example(
    texts=["हिन्दी", "می\u200cروم in\u00adter e\u0301 \u0301e", "漢\ufe00字", "ที\u0301x", "\U0001f469\u200d\U0001f469"]
)
@example(texts=["x\U0001f600y", "\ud800a"])
def test_words_of_a_batch_match_words_of_each_text(texts: list[str]) -> None:
    words = hashed_words(texts)
    for number, text in enumerate(texts):
        here = slice(words.bounds[number], words.bounds[number + 1])
        places = words.starts[here] - words.text_starts[number], words.ends[here] - words.text_starts[number]
        assert list(zip(*(column.tolist() for column in places), strict=True)) == plain_words(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("भारत की राजधानी क्या है?", 5),
        ("இந்தியாவின் தலைநகரம் எது?", 3),
        ("ভারতের রাজধানী কী?", 3),
        ("می\u200cروم به خانه", 3),
        ("e\u0301te\u0301 fini", 2),
        ("inter\u00adnational law", 2),
        ("\u2764\ufe0f ok \U0001f44d\U0001f3fd", 1),
        ("क\u0941 क\u0942", 2),
    ],
)
def test_signs_and_joiners_are_inside_words(text: str, count: int) -> None:
    assert len(set(hashed_words([text]).hashes.tolist())) == count
    classified, _ = hash_features([text])
    assert len(classified) == 2 * count - 1


def test_standalone_characters_are_of_scripts_without_spaces() -> None:
    """By their names; the many Tangut ones have none in Python 3.11."""
    for code, kind in enumerate(character_kinds().tolist()):
        name = unicodedata.name(chr(code), "TANGUT" if 0x17000 <= code < 0x18D09 else "")
        is_word = re.match(r"\w", chr(code)) is not None
        if name.startswith(SOUTHEAST_ASIAN_NAMES):
            assert kind == (SOUTHEAST_ASIAN if is_word or unicodedata.category(chr(code)) in {"Mn", "Mc"} else NO_WORD)
        elif name.startswith(EAST_ASIAN_NAMES) or kind == EAST_ASIAN:
            assert kind in ({EAST_ASIAN} if is_word else {NO_WORD, EXTEND})
            assert name.startswith(EAST_ASIAN_NAMES)
        else:
            assert kind == LETTER if is_word else kind in {NO_WORD, EXTEND}


@given(texts=texts)
def test_words_hash_equal_iff_equal(texts: list[str]) -> None:
    words = hashed_words(texts)
    strings = [text[start:end] for text in texts for start, end in plain_words(text)]
    assert len(strings) == len(words.hashes)
    assert len(set(strings)) == len(set(zip(strings, words.hashes.tolist(), strict=True))) == len(set(words.hashes))


def thue_morse(size: int, pair: str) -> tuple[str, str]:
    """The word of 2**size letters and its complement, which any polynomial modulo 2**64 takes for one from 1,024 on."""
    word = pair[0]
    for _ in range(size):
        word += word.translate(str.maketrans(pair, pair[::-1]))
    return word, word.translate(str.maketrans(pair, pair[::-1]))


@pytest.mark.parametrize("pair", ["ab", "0_", "A\U00010041", "a\u0430"])
@pytest.mark.parametrize("size", range(13))
def test_thue_morse_words_of_any_length_differ(size: int, pair: str) -> None:
    assert len(set(hashed_words(thue_morse(size, pair)).hashes.tolist())) == 2


@given(values=st.lists(st.integers(0, 3), max_size=30), length=st.integers(1, 8))
def test_runs_hash_equal_iff_equal(values: list[int], length: int) -> None:
    starts = range(max(0, len(values) - length + 1))
    runs = ngram_hashes(np.array(values, np.uint64), length, np.array(starts, np.int64)).tolist()
    tuples = [tuple(values[i : i + length]) for i in starts]
    assert len(runs) == len(tuples)
    assert len(set(tuples)) == len(set(runs)) == len(set(zip(tuples, runs, strict=True)))


def test_planes_without_letters_have_only_signs() -> None:
    beyond = "".join(map(chr, range(LETTERED.stop, sys.maxunicode + 1)))
    assert not re.search(r"[\w\s]", beyond)
    assert fold_case(beyond) == beyond
    signs = [unicodedata.category(character) in {*SIGNS, "Cf"} for character in beyond]
    assert (character_kinds()[LETTERED.stop :] == np.where(signs, EXTEND, NO_WORD)).all()


@pytest.mark.parametrize(("split", "characters"), [("unicode", 2), ("whitespace", 1)])
def test_words_are_not_empty(split: Split, characters: float) -> None:
    words = find_words(texts_of(pa.array(["日本語の長い文章 日本語の文章"], pa.large_string())), split)
    assert characters_per_word(words, 0, len(words.inverse)) == characters
