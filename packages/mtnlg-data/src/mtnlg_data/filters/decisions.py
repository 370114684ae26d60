"""What the rules decide about the documents of a batch: which go, for what reason, and what is left of the others."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from . import c4
from .lists import read_lines
from .personal import replace_personal
from .prose import fineweb_measures, gopher_measures
from .repetition import repetition_shares
from .rules import EMPTY, NUMBERS, RULES, family_rules
from .texts import character_table, column_of, find_words, texts_of
from .urls import UrlFilter
from .word_counts import count_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .lists import ListFiles
    from .settings import FilterSettings
    from .texts import Texts, Words

KEPT = -1
REASONS = (*(rule.name for rule in RULES), EMPTY)
EMPTY_NUMBER = len(RULES)
GOPHER = ("gopher_repetition", "gopher_quality")


class Decisions(NamedTuple):
    """The decisions on a batch of documents."""

    reasons: NDArray[np.int64]  # of each document: index in REASONS, or KEPT
    scores: NDArray[np.float64]  # of each document: the measure that decided, NaN where a rule has none
    texts: pa.LargeStringArray  # of the documents that are kept
    edits: Counter[str]  # lines removed and matches replaced, by rule


class DocumentFilter:
    """Rules that are asked for (names as ``expand_rules`` gives them), with their thresholds and lists.

    ``split`` finds the words of the Gopher and FineWeb rules; by default that is ``settings.words``.
    """

    def __init__(
        self,
        rules: Sequence[str],
        settings: FilterSettings,
        lists: ListFiles,
        split: Callable[[Texts], Words] | None = None,
    ) -> None:
        self._settings = settings
        marks = settings.words == "unicode"
        self._split = split or partial(find_words, marks=marks)
        self._count: Callable[[Texts], NDArray[np.int64]] = lambda texts: count_words(texts, character_table(), marks)
        if split is not None:
            self._count = lambda texts: self._split(texts).bounds
        asked = {rule.family: family_rules(rule.family) for rule in RULES if rule.name in rules}
        self._asked = {name: np.array([rule.name in rules for rule in family]) for name, family in asked.items()}
        self._urls = UrlFilter(lists, self._asked["url"], settings.url_soft_words) if "url" in asked else None
        bad_words = lists.bad_words if "c4_bad_words" in rules else ()
        self._bad_words = [word for file in bad_words for some in read_lines(file.path) for word in some]

    def decide(self, texts: pa.LargeStringArray, urls: Sequence[str | None]) -> Decisions:
        """The decisions on documents of these texts and addresses."""
        batch = _Batch(texts)
        if self._urls is not None:
            broken = self._urls.broken(urls)
            batch.drop(np.where(broken == KEPT, KEPT, NUMBERS["url_domain"] + broken))
        if any(family in self._asked for family in GOPHER):
            self._apply_gopher(batch)
        if "c4" in self._asked:
            self._apply_c4(batch, self._asked["c4"])
        if "fineweb" in self._asked:
            part = texts_of(batch.texts)
            bounds = self._count(part)
            measures = fineweb_measures(part, bounds, self._settings.fineweb_short_line)
            batch.drop(*self._first_broken({"fineweb": measures}, bounds))
        if "pii" in self._asked:
            self._replace_personal(batch, self._asked["pii"])
        return Decisions(batch.reasons, batch.scores, batch.texts, batch.edits)

    def _apply_gopher(self, batch: _Batch) -> None:
        texts = texts_of(batch.texts)
        words = self._split(texts)
        measures = {}
        if "gopher_repetition" in self._asked:
            measures["gopher_repetition"] = repetition_shares(texts, words)
        if "gopher_quality" in self._asked:
            measures["gopher_quality"] = gopher_measures(texts, words, self._settings.stop_words)
        batch.drop(*self._first_broken(measures, words.bounds))

    def _first_broken(
        self, measures: dict[str, NDArray[np.float64]], word_bounds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The first rule that each text breaks, of these families' measures in their order, and its measure."""
        rules = [rule for family in measures for rule in family_rules(family)]
        asked = np.concatenate([self._asked[family] for family in measures])
        limits = np.array([getattr(self._settings, rule.name) for rule in rules], np.float64)
        table = np.hstack([*measures.values()])
        broken = np.where([rule.at_least for rule in rules], table < limits, table > limits) & asked
        first = broken.argmax(axis=1)
        numbers = np.where(broken.any(axis=1), np.array([NUMBERS[rule.name] for rule in rules])[first], KEPT)
        numbers[np.diff(word_bounds) == 0] = EMPTY_NUMBER
        return numbers, table[np.arange(len(first)), first]

    def _apply_c4(self, batch: _Batch, asked: NDArray[np.bool_]) -> None:
        if self._bad_words:
            bad = c4.has_word(batch.texts, self._bad_words)
            batch.drop(np.where(bad, NUMBERS["c4_bad_words"], KEPT))
        edited, sentences, dropped, edits = c4.edit_lines(texts_of(batch.texts), asked[1:], self._settings)
        numbers = np.where(dropped == KEPT, KEPT, NUMBERS["c4_longest_word"] + dropped)
        numbers[(numbers == KEPT) & (np.diff(edited.bounds) == 0)] = EMPTY_NUMBER
        if asked[-1]:
            few = (dropped == KEPT) & (sentences < self._settings.c4_fewest_sentences)
            numbers[few] = NUMBERS["c4_fewest_sentences"]
        batch.count(dict(zip((rule.name for rule in family_rules("c4")[1:]), edits.sum(axis=0).tolist(), strict=False)))
        batch.texts = column_of(edited)
        batch.drop(numbers, np.where(numbers == NUMBERS["c4_fewest_sentences"], sentences, np.nan))

    def _replace_personal(self, batch: _Batch, asked: NDArray[np.bool_]) -> None:
        names = [rule.name for rule, is_asked in zip(family_rules("pii"), asked, strict=True) if is_asked]
        replacements = {name: getattr(self._settings, name) for name in names}
        batch.texts, counts = replace_personal(batch.texts, replacements)
        batch.count({name: int(count.sum()) for name, count in counts.items()})


class _Batch:
    """A batch at work: the texts of the documents that are still there, and what was decided on the others."""

    def __init__(self, texts: pa.LargeStringArray) -> None:
        self.texts = texts
        self.edits: Counter[str] = Counter()
        self.reasons, self.scores = np.full(len(texts), KEPT), np.full(len(texts), np.nan)
        self._rows = np.arange(len(texts))

    def drop(self, numbers: NDArray[np.int64], scores: NDArray[np.float64] | None = None) -> None:
        """Drop each text that is still there for the reason of this number, ``KEPT`` for none."""
        gone = numbers != KEPT
        if gone.any():
            self.reasons[self._rows[gone]] = numbers[gone]
            if scores is not None:
                self.scores[self._rows[gone]] = scores[gone]
            self._rows = self._rows[~gone]
            self.texts = self.texts.filter(pa.array(~gone))

    def count(self, edits: dict[str, int]) -> None:
        """Count edits, by rule."""
        self.edits.update({rule: number for rule, number in edits.items() if number})
