"""Apply the rules to a batch of documents: which are dropped, for what reason, and the texts of the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.text.batch import TextBatch

from .rules import EMPTY, Effect, choose
from .settings import with_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mtnlg_data.array_types import Float64s, Int64s

    from .rules import Chosen, Family
    from .settings import FilterSettings

KEPT = -1


class Decisions(NamedTuple):
    """The decisions on a batch of documents."""

    reasons: Int64s  # of each document: index in the filter's reasons, or KEPT
    scores: Float64s  # of each document: the number that decided, NaN where a rule has none
    texts: pa.LargeStringArray  # of the documents that are kept
    edits: Counter[str]  # lines removed and matches replaced, by rule


def _call(
    family: Family, look: Callable[[TextBatch], Any], batch: TextBatch
) -> tuple[pa.LargeStringArray, NDArray[Any]]:
    """The texts for the next family, and a number per rule and text; NaN if the rules use words and the text has none.

    Raises ``Failure`` if the function raises, or returns arrays of another shape.
    """
    try:
        column, numbers = look(batch) if family.edits else (batch.column, look(batch))
        table = np.asarray(numbers)
    except Exception as error:  # a user's function may raise anything
        raise Failure(f"{family.name}: {type(error).__name__}: {error}") from error
    expected = (len(family.rules), len(batch))
    if table.shape != expected or len(column) != len(batch):
        raise Failure(f"{family.name}: returned shape {table.shape}; must be {expected}, one number per rule and text")
    if family.words:
        table = np.where(batch.word_counts == 0, np.nan, table)
    return column, table


class DocumentFilter:
    """The rules that are asked for, with their settings; `rules.choose` resolves ``names``."""

    def __init__(self, names: Sequence[str], settings: FilterSettings) -> None:
        self._settings = with_rules(settings, chosen := choose(names))
        self._chosen = [(one, one.family.open(self._settings, one.asked)) for one in chosen]
        self.reasons = (*(rule.name for chosen, _ in self._chosen for rule in chosen.family.rules), EMPTY)

    def measure(
        self, texts: pa.LargeStringArray, urls: Sequence[str | None], languages: Sequence[str | None] = ()
    ) -> Float64s:
        """The numbers of all rules for all documents, [rules, documents], in the order of ``reasons``."""
        batch = TextBatch(texts, urls, self._settings.words, languages)
        numbers = [np.empty((0, len(texts)))]
        for chosen, look in self._chosen:
            column, own = _call(chosen.family, look, batch)
            numbers.append(own)
            batch = batch.with_texts(column) if chosen.family.edits else batch
        return np.concatenate(numbers)

    def decide(
        self,
        texts: pa.LargeStringArray,
        urls: Sequence[str | None],
        languages: Sequence[str | None] = (),
        measured: Float64s | None = None,
    ) -> Decisions:
        """Decide about documents with these texts, URLs and languages; ``measured`` is what `measure` returned."""
        batch, rows = TextBatch(texts, urls, self._settings.words, languages), np.arange(len(texts))
        reasons, scores = np.full(len(texts), KEPT), np.full(len(texts), np.nan)
        edits: Counter[str] = Counter()
        for chosen, look in self._chosen:
            family, kept = chosen.family, reasons[rows] == KEPT
            if not kept.all() and (family.edits or not batch.has_words):  # words that are found serve the next family
                batch = batch.filter(kept)
                rows, kept = rows[kept], kept[kept]
            if measured is None or family.edits:
                column, numbers = _call(family, look, batch)
            else:
                first = self.reasons.index(family.rules[0].name)
                numbers = measured[first : first + len(family.rules), rows]
            if family.edits:
                batch = batch.with_texts(column)
            broken, score = self._first_broken(chosen, batch, numbers, edits)
            dropped = kept & (broken != KEPT)
            reasons[rows[dropped]], scores[rows[dropped]] = broken[dropped], score[dropped]
        return Decisions(reasons, scores, batch.column.filter(pa.array(reasons[rows] == KEPT)), +edits)

    def _first_broken(
        self, chosen: Chosen, batch: TextBatch, numbers: NDArray[Any], edits: Counter[str]
    ) -> tuple[Int64s, Float64s]:
        """The first rule that each text breaks, and the rule's number for it; adds the edits to ``edits``."""
        broken, scores = np.full(len(batch), KEPT), np.full(len(batch), np.nan)
        for rule, own in reversed([*zip(chosen.family.rules, numbers, strict=True)]):
            if rule.name in chosen.asked and rule.effect is Effect.DROP:
                breaks = rule.broken(own, self._settings)
                broken[breaks] = self.reasons.index(rule.name)
                scores[breaks] = own[breaks] if rule.has_score else np.nan
            elif rule.name in chosen.asked:
                edits[rule.name] += int(own.sum())
        if chosen.family.words:
            empty = np.isnan(numbers).all(axis=0)
            broken[empty], scores[empty] = len(self.reasons) - 1, np.nan_to_num(scores[empty])
        elif any(rule.effect is Effect.CUT for rule in chosen.family.rules):
            broken[(broken == KEPT) & (np.diff(batch.texts.bounds) == 0)] = len(self.reasons) - 1
        return broken, scores
