"""Decontamination leaves what a plain re-implementation of its definition leaves."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from decontamination import SMALL, cut_at, run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtnlg_data.decontaminate.ngrams import (
    NgramSet,
    TaskText,
    task_ngrams,
)
from mtnlg_data.text.characters import fold_case

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from mtnlg_data.steps.decontaminate import DecontaminateSettings


def plain_words(text: str) -> list[tuple[int, int, str]]:
    return [(match.start(), match.end(), match.group()) for match in re.finditer(r"\w+", fold_case(text))]


def plain_ngrams(texts: Sequence[tuple[str, str]], config: DecontaminateSettings) -> set[tuple[str, ...]]:
    ngrams = set()
    for _, text in texts:
        words = tuple(word for _, _, word in plain_words(text))
        if config.minimum <= len(words) < config.n:
            ngrams.add(words)
        for first in range(len(words) - config.n + 1):
            ngrams.add(words[first : first + config.n])
    return ngrams


def plain_first(
    text: str, ngrams: set[tuple[str, ...]], config: DecontaminateSettings
) -> tuple[int, int, tuple[str, ...]] | None:
    words = plain_words(text)
    for first in range(len(words)):
        for length in range(config.n, config.minimum - 1, -1):
            run_of_words = tuple(word for _, _, word in words[first : first + length])
            if len(run_of_words) == length and run_of_words in ngrams:
                return words[first][0], words[first + length - 1][1], run_of_words
    return None


def plain_cut(text: str, ngrams: set[tuple[str, ...]], config: DecontaminateSettings) -> list[str]:
    """Take the first n-gram and what surrounds it out, go on with the rest, as the paper's tool does."""
    kept, is_whole = [], True
    while match := plain_first(text, ngrams, config) if is_whole or len(text) >= config.shortest else None:
        start, end, _ = match
        is_whole = False
        left = start - config.window
        while left > 0 and text[left] not in ".!?":
            left -= 1
        kept.append(text[: left + 1] if left > 0 else "")
        right = end + config.window
        while right < len(text) and text[right] not in ".!?":
            right += 1
        text = text[right + 1 :]
    if is_whole:
        return [text]
    return [piece for piece in [*kept, text] if piece and len(piece) >= config.shortest]


def plain(documents: Sequence[str], texts: Sequence[tuple[str, str]], config: DecontaminateSettings) -> list[str]:
    ngrams = plain_ngrams(texts, config)
    holders: Counter[tuple[str, ...]] = Counter()
    for text in documents:
        words = [word for _, _, word in plain_words(text)]
        runs = {tuple(words[i : i + n]) for n in range(config.minimum, config.n + 1) for i in range(len(words) - n + 1)}
        holders.update(runs & ngrams)
    rare = {ngram for ngram in ngrams if holders[ngram] < config.common}
    left = []
    for text in documents:
        parts = plain_cut(text, rare, config)
        left += parts if len(parts) <= config.most_splits else []
    return left


words = st.sampled_from(["a", "B", "b", "é", "É", "İ", "i", "ΟΔΟΣ", "οδος", "한국", "x_1", "\U0001d518"])
gaps = st.sampled_from([" ", "\n", ", ", ". ", "! ", "? ", ".", "  ", "-", "'"])
prose = st.lists(st.tuples(words, gaps), max_size=40).map(lambda parts: "".join(word + gap for word, gap in parts))
task_texts = st.lists(
    st.tuples(
        st.sampled_from(["boolq", "wic"]),
        st.lists(st.tuples(words, gaps), max_size=7).map(lambda parts: "".join(word + gap for word, gap in parts)),
    ),
    max_size=4,
)


@settings(max_examples=8)  # of up to twelve documents each, through all the files
@given(documents=st.lists(prose, max_size=12), texts=task_texts, common=st.integers(1, 4), window=st.integers(0, 9))
def test_what_is_left_is_what_the_definition_leaves(
    documents: list[str],
    texts: list[tuple[str, str]],
    common: int,
    window: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = SMALL.model_copy(update={"common": common, "window": window})
    summary, left = run(tmp_path_factory.mktemp("d"), documents, texts, config)
    expected = plain(documents, texts, config)
    assert [row["text"] for row in left] == expected
    assert summary["documents_out"] == len(expected)
    assert summary["characters_out"] == sum(map(len, expected))


@given(texts=task_texts, documents=st.lists(prose, max_size=3))
@example(texts=[("wic", "a b"), ("wic", "a b i é"), ("boolq", "a b i")], documents=["é A. b i É a b", "a b"])
def test_all_ngrams_are_found_longest_first(texts: list[tuple[str, str]], documents: list[str]) -> None:
    ngrams = task_ngrams([TaskText(task=task, id="", text=text) for task, text in texts], 4, 2)
    assert {tuple(ngram.split()) for ngram in ngrams} == plain_ngrams(texts, SMALL)
    numbered = list(ngrams)
    occurrences = list(zip(*(column.tolist() for column in NgramSet(numbered, 2).search(documents)), strict=True))
    for number, text in enumerate(documents):
        spans = plain_words(text)
        runs = [spans[i : i + n] for i in range(len(spans)) for n in range(4, 1, -1) if i + n <= len(spans)]
        expected = [(r[0][0], r[-1][1], " ".join(word for _, _, word in r)) for r in runs]
        ours = [(start, end, numbered[ngram]) for of, start, end, ngram in occurrences if of == number]
        assert ours == [e for e in expected if e[2] in ngrams]


@settings(max_examples=150)
@given(text=prose, texts=task_texts, window=st.integers(0, 9), shortest=st.integers(0, 9))
def test_the_pieces_of_a_text_are_those_of_the_definition(
    text: str, texts: list[tuple[str, str]], window: int, shortest: int
) -> None:
    config = SMALL.model_copy(update={"window": window, "shortest": shortest})
    ngrams = [" ".join(ngram) for ngram in sorted(plain_ngrams(texts, config))]
    matches = NgramSet(ngrams, config.minimum).search([text])
    spans = list(zip(matches.starts.tolist(), matches.ends.tolist(), strict=True))
    left = cut_at(text, spans, window, shortest)[0] if spans else [text]
    assert left == plain_cut(text, plain_ngrams(texts, config), config)
