"""Words are the matches of Python's regular expression, and hash alike with and without numba."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from mtnlg_data.words import (
    _word_spans_numpy,
    code_points,
    find_words,
    fold_case,
    ngram_hashes,
    word_character_table,
    word_spans,
)

texts = st.lists(st.text(max_size=40), max_size=8)


@given(texts=texts)
@example(texts=["", "a", "Straße_1 İstanbul ΟΔΟΣ", "日本 語", "x\U0001f600y", "\ud800a"])
def test_words_are_what_re_finds_in_each_text_of_a_batch(texts: list[str]) -> None:
    words = find_words(texts)
    for number, text in enumerate(texts):
        here = slice(words.bounds[number], words.bounds[number + 1])
        found = list(zip(words.starts[here].tolist(), words.ends[here].tolist(), strict=True))
        assert found == [match.span() for match in re.finditer(r"\w+", text)]


@given(texts=texts)
def test_words_hash_alike_exactly_where_they_are_alike(texts: list[str]) -> None:
    words = find_words(texts)
    strings = [match for text in texts for match in re.findall(r"\w+", text)]
    assert len(strings) == len(words.hashes)
    assert len(set(strings)) == len(set(zip(strings, words.hashes.tolist(), strict=True))) == len(set(words.hashes))


@given(text=st.text(max_size=200))
def test_numba_and_numpy_find_the_same_words_and_sums(text: str) -> None:
    codes = code_points(text)
    for compiled, arrays in zip(
        word_spans(codes, word_character_table()), _word_spans_numpy(codes, word_character_table()), strict=True
    ):
        assert compiled.dtype == arrays.dtype
        assert compiled.tolist() == arrays.tolist()


@given(values=st.lists(st.integers(0, 3), max_size=30), length=st.integers(1, 8))
def test_runs_hash_alike_exactly_where_they_are_alike(values: list[int], length: int) -> None:
    runs = ngram_hashes(np.array(values, np.uint64), length).tolist()
    tuples = [tuple(values[i : i + length]) for i in range(max(0, len(values) - length + 1))]
    assert len(runs) == len(tuples)
    assert len(set(tuples)) == len(set(runs)) == len(set(zip(tuples, runs, strict=True)))


greek = st.text(
    alphabet="a\u0391\u03a3\u03c2\u03c3'.İI \u0307"
)  # with every sigma, and what lower() looks at beside one


@given(one=greek, other=greek)
@example(one="a\u03a3", other="a")
def test_folding_a_character_does_not_look_at_its_neighbours(one: str, other: str) -> None:
    assert fold_case(one + other) == fold_case(one) + fold_case(other)
    assert len(fold_case(one)) == len(one)
    assert fold_case("ΟΔΟΣ") == fold_case("οδος")
