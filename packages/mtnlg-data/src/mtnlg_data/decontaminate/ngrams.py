"""The n-grams of the tasks' texts, and where they stand in other texts: exactly, never by hash alone.

A task text gives every run of ``n`` words; one of fewer, but at least ``minimum``, is a run as it stands; a shorter one
gives none (paper.md 4.4). Words are runs of letters, digits and "_" of any script, in lower case; what parts them, line
breaks included, does not count.

Every run has ``minimum`` words or more, so a place in a text is looked at only when the hash of its first ``minimum``
words, made of the hash one word before, is in a table of those of all runs. What remains must be in a table of whole
runs, is then looked up by the hash of the whole run, and what is found is compared word by word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from mtnlg_data.console import Failure
from mtnlg_data.words import (
    SEPARATOR,
    B,
    compiled,
    compiled_if_possible,
    fold,
    joined,
    mixed,
    portions,
    runs_of,
    spans,
    word_characters,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

SLOTS_A_RUN = 32  # of a table's bits one in so many is set


class TaskText(BaseModel):
    """One line of the file of task texts that ``mtnlg-eval texts`` writes."""

    model_config = ConfigDict(frozen=True, strict=True)

    task: str
    id: str
    text: str


class Found(NamedTuple):
    """N-grams in a batch of texts, text by text, by start, the longest first: int64[matches] each."""

    texts: NDArray[np.int64]
    starts: NDArray[np.int64]  # first character of the match in its text
    ends: NDArray[np.int64]  # one past its last
    ngrams: NDArray[np.int64]


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


def task_ngrams(texts: Iterable[TaskText], n: int, minimum: int) -> dict[str, list[tuple[str, str]]]:
    """The n-grams of these texts, their words joined by a space, each with (task, id) of its texts; both sorted."""
    rows: dict[str, set[tuple[str, str]]] = {}
    for text in texts:
        folded = fold(text.text)
        found = words_of([folded])
        words = [folded[s:e] for s, e in zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
        if len(words) >= minimum:
            length = min(n, len(words))
            for first in range(len(words) - length + 1):
                rows.setdefault(" ".join(words[first : first + length]), set()).add((text.task, text.id))
    return {ngram: sorted(rows[ngram]) for ngram in sorted(rows)}


class NgramSet:
    """N-grams by number, and the search for them."""

    def __init__(self, ngrams: list[str], minimum: int) -> None:
        self.minimum = minimum
        made = [_Made.of(some, minimum) for some in [*portions(ngrams), []]]
        prefixes, hashes, counts, sizes, letters = (np.concatenate(column) for column in zip(*made, strict=True))
        self._letters = letters.astype(np.min_scalar_type(int(letters.max(initial=0))))
        self._begins = np.concatenate([[0], np.cumsum(sizes)])
        self._shift = np.uint64(64 - max(16, (SLOTS_A_RUN * max(1, len(ngrams))).bit_length()))
        self._is_prefix = _table(prefixes, self._shift)
        self._is_whole = _table(hashes, self._shift)
        self._by_length: list[tuple[int, NDArray[np.uint64], NDArray[np.int64]]] = []
        for length in np.unique(counts).tolist():
            numbers = np.flatnonzero(counts == length)
            order = np.argsort(hashes[numbers], kind="stable")
            self._by_length.append((length, hashes[numbers][order], numbers[order]))

    def __len__(self) -> int:
        """How many n-grams."""
        return len(self._begins) - 1

    def search(self, texts: Sequence[str]) -> Found:
        """Every place of every n-gram in each text."""
        codes, begins = joined([fold(text) for text in texts])
        hashes, starts, ends = spans(codes, word_characters())
        bounds = np.searchsorted(starts, begins)
        places = begun(hashes, bounds, self.minimum, self._is_prefix, self._shift)
        text_of = np.searchsorted(bounds, places, side="right") - 1
        hits = [np.empty((3, 0), np.int64)]
        for length, wholes, numbers in self._by_length:
            fits = np.flatnonzero(places + length <= bounds[text_of + 1])
            runs = runs_of(hashes, length, places[fits])
            likely = _is_in_by_arrays(self._is_whole, runs >> self._shift)
            fits, runs = fits[likely], runs[likely]
            first, last = np.searchsorted(wholes, runs), np.searchsorted(wholes, runs, side="right")
            fits, ngrams = np.repeat(fits, last - first), numbers[_ranges(first, last)]
            hits.append(np.stack([places[fits], places[fits] + length, ngrams]))
        first, last, ngrams = np.concatenate(hits, axis=1)
        equal = spelt(np.stack([first, last, ngrams]), (codes, starts, ends), (self._letters, self._begins))
        first, last, ngrams = first[equal], last[equal], ngrams[equal]
        of = np.searchsorted(bounds, first, side="right") - 1
        order = np.lexsort((-last, first))
        shift = begins[of]
        return Found(of[order], (starts[first] - shift)[order], (ends[last - 1] - shift)[order], ngrams[order])


class _Made(NamedTuple):
    """Of some n-grams: hashes of their first words and of all, how many words and letters each has, and the letters."""

    prefixes: NDArray[np.uint64]
    wholes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    letters: NDArray[np.uint32]

    @classmethod
    def of(cls, ngrams: list[str], minimum: int) -> _Made:
        codes, begins = joined(ngrams)
        hashes, starts, _ = spans(codes, word_characters())
        bounds = np.searchsorted(starts, begins)
        counts = np.diff(bounds)
        wholes = np.empty(len(ngrams), np.uint64)
        for length in set(counts.tolist()):
            wholes[counts == length] = runs_of(hashes, length, bounds[:-1][counts == length])
        letters = np.append(codes, [np.uint32(ord(SEPARATOR))] * bool(ngrams)).astype(np.uint32)
        return cls(runs_of(hashes, minimum, bounds[:-1]), wholes, counts, np.diff(begins), letters)


Spans = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]
Letters = tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]


@compiled_if_possible
def spelt(hits: NDArray[np.int64], spans: Spans, ngrams: Letters) -> NDArray[np.bool_]:
    """Whether words ``hits[0]`` to ``hits[1]`` are n-gram ``hits[2]`` letter by letter.

    ``spans`` has characters and where words start and end in them; ``ngrams`` has the letters of all n-grams, their
    words parted by a space, and where each begins.
    """
    codes, starts, ends = spans
    letters, begins = ngrams
    equal = np.empty(hits.shape[1], np.bool_)
    for hit in range(hits.shape[1]):
        first, last, ngram = hits[0, hit], hits[1, hit], hits[2, hit]
        at, end = begins[ngram], begins[ngram + 1] - 1
        same = True
        for word in range(first, last):
            size = ends[word] - starts[word]
            same = same and at + size <= end
            if not same:
                break
            for letter in range(size):
                same &= codes[starts[word] + letter] == letters[at + letter]
            at += size + 1  # as many words as the n-gram has: were this no space, a space would be in a word
        equal[hit] = same and at == end + 1
    return equal


def _ranges(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers ``first[i]`` to ``last[i]``, one range after another."""
    sizes = last - first
    begins: NDArray[np.int64] = np.cumsum(sizes) - sizes
    return np.repeat(first - begins, sizes) + np.arange(int(sizes.sum()))


def _table(hashes: NDArray[np.uint64], shift: np.uint64) -> NDArray[np.uint64]:
    """A bit for every value of ``hash >> shift``, set for these."""
    bits = np.zeros(1 << int(np.uint64(64) - shift), np.bool_)
    bits[hashes >> shift] = True
    return np.packbits(bits, bitorder="little").view(np.uint64)


def _is_in_by_arrays(table: NDArray[np.uint64], slots: NDArray[np.uint64]) -> NDArray[np.bool_]:
    bits: NDArray[np.uint64] = (table[slots >> np.uint64(6)] >> (slots & np.uint64(63))) & np.uint64(1)
    return bits > 0


@compiled_if_possible
def is_in(table: NDArray[np.uint64], slot: np.uint64) -> bool:
    """Whether this bit of a table is set, inside compiled loops."""
    return bool((table[slot >> np.uint64(6)] >> (slot & np.uint64(63))) & np.uint64(1))


def _begun_by_arrays(
    hashes: NDArray[np.uint64], bounds: NDArray[np.int64], minimum: int, is_prefix: NDArray[np.uint64], shift: np.uint64
) -> NDArray[np.int64]:
    places = np.flatnonzero(_is_in_by_arrays(is_prefix, runs_of(hashes, minimum) >> shift))
    return places[places + minimum <= bounds[np.searchsorted(bounds, places, side="right")]]


@compiled(instead=_begun_by_arrays)
def begun(
    hashes: NDArray[np.uint64], bounds: NDArray[np.int64], minimum: int, is_prefix: NDArray[np.uint64], shift: np.uint64
) -> NDArray[np.int64]:
    """Words from which on ``minimum`` words of a text are in the table; each hash is made of the one before it."""
    places = np.empty(len(hashes), np.int64)
    count = 0
    leaving = np.uint64(1)
    for _ in range(minimum):
        leaving *= B
    for text in range(len(bounds) - 1):
        total = np.uint64(0)
        for end in range(bounds[text], bounds[text + 1]):
            total = total * B + hashes[end]
            place = end - minimum + 1
            if place < bounds[text]:
                continue
            if place > bounds[text]:
                total -= hashes[place - 1] * leaving
            if is_in(is_prefix, mixed(total) >> shift):
                places[count] = place
                count += 1
    return places[:count].copy()
