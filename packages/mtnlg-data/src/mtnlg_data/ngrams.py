"""The n-grams of the tasks' texts, and where they stand in other texts: exactly, never by hash alone.

A task text gives every run of ``n`` words; one of fewer, but at least ``minimum``, is a run as it stands; a shorter one
gives none (paper.md 4.4). Every run has ``minimum`` words or more, so a place in a text is looked at only when the hash
of its first ``minimum`` words is in a table of those of all runs; what remains is looked up by the hash of the whole
run, and what is found is compared word by word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from .console import Failure
from .words import fold, runs_of, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SLOTS_A_PREFIX = 16


class TaskText(BaseModel):
    """One line of the file of task texts that ``mtnlg-eval texts`` writes."""

    model_config = ConfigDict(frozen=True, strict=True)

    task: str
    id: str
    text: str


class Match(NamedTuple):
    """One n-gram in one text: characters ``start`` to ``end`` of it."""

    start: int
    end: int
    ngram: int


def read_task_texts(path: Path) -> Iterator[TaskText]:
    """The task texts of a JSON lines file. Raises ``Failure`` naming file and line."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield TaskText.model_validate(orjson.loads(line))
                except (orjson.JSONDecodeError, ValidationError) as error:
                    what = str(error).splitlines()[0]
                    raise Failure(f'{path}:{number}: expected {{"task", "id", "text"}}, all strings: {what}') from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; mtnlg-eval texts writes it") from None


def task_ngrams(texts: Iterable[TaskText], n: int, minimum: int) -> dict[str, list[str]]:
    """The n-grams of these texts, their words joined by a space, each with the names of its tasks; both sorted."""
    tasks: dict[str, set[str]] = {}
    for text in texts:
        folded = fold(text.text)
        found = words_of([folded])
        words = [folded[s:e] for s, e in zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
        if len(words) >= minimum:
            length = min(n, len(words))
            for first in range(len(words) - length + 1):
                tasks.setdefault(" ".join(words[first : first + length]), set()).add(text.task)
    return {ngram: sorted(tasks[ngram]) for ngram in sorted(tasks)}


class NgramSet:
    """N-grams by number, and the search for them."""

    def __init__(self, ngrams: Sequence[str], minimum: int) -> None:
        self.ngrams = ngrams
        self.minimum = minimum
        hashes, _, _, bounds = words_of(ngrams)
        counts = np.diff(bounds)
        prefixes = runs_of(hashes, minimum, bounds[:-1])
        bits = max(16, (SLOTS_A_PREFIX * max(1, len(ngrams))).bit_length())
        self._shift = np.uint64(64 - bits)
        self._is_prefix = np.zeros(1 << bits, np.bool_)
        self._is_prefix[prefixes >> self._shift] = True
        self._by_length: list[tuple[int, NDArray[np.uint64], NDArray[np.int64]]] = []
        for length in sorted(set(counts.tolist())):
            numbers = np.flatnonzero(counts == length)
            whole = runs_of(hashes, length, bounds[numbers])
            order = np.argsort(whole, kind="stable")
            self._by_length.append((length, whole[order], numbers[order]))

    def search(self, texts: Sequence[str]) -> list[list[Match]]:
        """Every place of every n-gram in each text, by start, the longest first."""
        folded = [fold(text) for text in texts]
        words = words_of(folded)
        places = np.flatnonzero(self._is_prefix[runs_of(words.hashes, self.minimum) >> self._shift])
        text_of = np.searchsorted(words.bounds, places, side="right") - 1
        found: list[list[Match]] = [[] for _ in texts]
        for length, hashes, numbers in self._by_length:
            fits = places + length <= words.bounds[text_of + 1]
            fitting, texts_of = places[fits], text_of[fits]
            runs = runs_of(words.hashes, length, fitting)
            first, last = np.searchsorted(hashes, runs), np.searchsorted(hashes, runs, side="right")
            for hit in np.flatnonzero(last > first):
                place, text = int(fitting[hit]), int(texts_of[hit])
                here = slice(place, place + length)
                starts, ends = words.starts[here].tolist(), words.ends[here].tolist()
                run = " ".join(folded[text][s:e] for s, e in zip(starts, ends, strict=True))
                equal = (int(k) for k in numbers[first[hit] : last[hit]] if self.ngrams[int(k)] == run)
                found[text] += [Match(starts[0], ends[-1], number) for number in equal]
        for matches in found:
            matches.sort(key=lambda match: (match.start, -match.end))
        return found
