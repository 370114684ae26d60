"""N-grams of the tasks' texts, and a search for them in other texts.

A task text gives every run of ``n`` consecutive words; a text of fewer words, but at least ``minimum``, gives one
n-gram of all its words; a shorter one gives none (paper.md 4.4). Words are runs of letters, digits and "_" of any
script, lower-cased; punctuation and white space between them, line breaks included, are ignored. In scripts without
spaces each character is a word here, and counts as its average fraction of a word: two Han characters or kana count as
one word, as do four characters of Thai.

Every n-gram has ``minimum`` words or more. At every word of a text, a rolling hash over ``minimum`` words is looked up
in a bit table of the n-grams' first words. Words that pass are hashed at each n-gram length, filtered by a bit table of
whole n-grams and looked up by that hash, of 64 bits: the chance of one wrong match is 9 % over the paper's corpus, of
2.5 x 10**11 words and 7 x 10**6 n-grams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from mtnlg_data.console import Failure
from mtnlg_data.exchange import stable_order
from mtnlg_data.files import file_lines
from mtnlg_data.text.arrays import text_batches
from mtnlg_data.text.characters import LETTER, QUARTERS, character_kinds, code_points, fold_case
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import WORD_BASE, Hashes, fmix64_scalar, ngram_hashes
from mtnlg_data.text.words import hashed_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int64s, UInt64s

BITS_PER_NGRAM = 32  # of a bit table


class TaskText(BaseModel):
    """One line of the JSON lines file that ``mtnlg-eval texts`` writes."""

    model_config = ConfigDict(frozen=True, strict=True)

    task: str
    id: str
    text: str


class Occurrences(NamedTuple):
    """N-grams found in a batch of texts, sorted by text, then start, then the longest first: int64[matches] each."""

    texts: Int64s
    starts: Int64s  # first character of the match in its text
    ends: Int64s  # one past its last character
    ngrams: Int64s


def read_task_texts(path: Path) -> Iterator[TaskText]:
    """Read a file of task texts. Raises ``Failure`` naming file and line."""
    try:
        for number, line in enumerate(file_lines(path, follow=True), 1):
            try:
                yield TaskText.model_validate(orjson.loads(line))
            except (orjson.JSONDecodeError, ValidationError) as error:
                raise Failure(
                    f'{path}:{number}: expected {{"task", "id", "text"}}, all strings: {_reason(error)}'
                ) from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; mtnlg-eval texts writes it") from None


def _reason(error: orjson.JSONDecodeError | ValidationError) -> str:
    if isinstance(error, orjson.JSONDecodeError):
        return str(error)
    detail = error.errors(include_url=False)[0]
    return " ".join((*(f"{key}:" for key in detail["loc"]), detail["msg"]))


def check_task_texts(path: Path) -> None:
    """Read all lines of a file of task texts. Raises ``Failure`` as `read_task_texts` does, and if it has none."""
    if not sum(1 for _ in read_task_texts(path)):
        raise Failure(f"{path}: no task text; mtnlg-eval texts writes one per line")


def task_ngrams(texts: Iterable[TaskText], n: int, minimum: int) -> dict[str, list[tuple[str, str]]]:
    """N-grams of these texts, words joined by a space, each with the (task, id) of its texts; both sorted."""
    origins: dict[str, set[tuple[str, str]]] = {}
    for text in texts:
        for ngram in _text_ngrams(fold_case(text.text), n, minimum):
            origins.setdefault(ngram, set()).add((text.task, text.id))
    return {ngram: sorted(origins[ngram]) for ngram in sorted(origins)}


def _text_ngrams(text: str, n: int, minimum: int) -> Iterator[str]:
    """N-grams of a case-folded text; a space joins words, except two characters of scripts without spaces."""
    spans = hashed_words([text])
    kinds = character_kinds()[code_points(text)[spans.starts]]
    sums = np.cumsum([0, *(QUARTERS.get(kind, 4) for kind in kinds.tolist())])
    if sums[-1] < 4 * minimum:
        return
    parted = (kinds[1:] == LETTER) | (kinds[:-1] == LETTER)
    words = [text[start:end] for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)]
    words[1:] = [" " * space + word for space, word in zip(parted.tolist(), words[1:], strict=True)]
    lasts = np.searchsorted(sums, sums + min(4 * n, sums[-1])).tolist()
    for first, last in enumerate(lasts[: lasts.index(len(sums))]):
        yield "".join(words[first:last]).lstrip(" ")


class NgramSet:
    """An index of n-grams, numbered in the order given, that finds their occurrences in texts."""

    def __init__(self, ngrams: list[str], minimum: int) -> None:
        self.minimum = minimum
        self._size = len(ngrams)
        batches = [_hash_ngrams(batch, minimum) for batch in [*text_batches(ngrams), []]]
        prefixes, hashes, counts = (np.concatenate(column) for column in zip(*batches, strict=True))
        self._shift = np.uint64(64 - max(16, (BITS_PER_NGRAM * max(1, len(ngrams))).bit_length()))
        self._prefix_bits = _bit_table(prefixes, self._shift)
        self._ngram_bits = _bit_table(hashes, self._shift)
        self._by_length: list[tuple[int, UInt64s, Int64s]] = []  # length, hashes, numbers
        for length in np.unique(counts).tolist():
            numbers = np.flatnonzero(counts == length)
            order = stable_order(hashes[numbers])
            self._by_length.append((length, hashes[numbers][order], numbers[order]))

    def __len__(self) -> int:
        """Number of n-grams."""
        return self._size

    def search(self, texts: Sequence[str]) -> Occurrences:
        """Find every occurrence of every n-gram in each text."""
        hashes, starts, ends, bounds, text_starts = hashed_words([fold_case(text) for text in texts])
        words = find_prefixes(hashes, bounds, self.minimum, self._prefix_bits, self._shift)
        text_of = np.searchsorted(bounds, words, side="right") - 1
        hits = [np.empty((3, 0), np.int64)]
        for length, known_hashes, numbers in self._by_length:
            fits = np.flatnonzero(words + length <= bounds[text_of + 1])
            runs = ngram_hashes(hashes, length, words[fits])
            likely = bits_at(self._ngram_bits, runs >> self._shift) > 0
            fits, runs = fits[likely], runs[likely]
            places = np.minimum(np.searchsorted(known_hashes, runs), len(known_hashes) - 1)
            is_known = known_hashes[places] == runs
            first = words[fits[is_known]]
            hits.append(np.stack([first, first + length, numbers[places[is_known]]]))
        first, last, ngrams = np.concatenate(hits, axis=1)
        order = np.lexsort((-last, first))
        first, last, ngrams = first[order], last[order], ngrams[order]
        text = np.searchsorted(bounds, first, side="right") - 1
        return Occurrences(text, starts[first] - text_starts[text], ends[last - 1] - text_starts[text], ngrams)


def _hash_ngrams(ngrams: list[str], minimum: int) -> tuple[UInt64s, UInt64s, Int64s]:
    """Hashes of the first ``minimum`` words of each n-gram and of all its words, and the number of its words."""
    words, _, _, bounds, _ = hashed_words(ngrams)
    counts = np.diff(bounds)
    hashes = np.empty(len(ngrams), np.uint64)
    for length in set(counts.tolist()):
        hashes[counts == length] = ngram_hashes(words, length, bounds[:-1][counts == length])
    return ngram_hashes(words, minimum, bounds[:-1]), hashes, counts


def _bit_table(hashes: UInt64s, shift: np.uint64) -> UInt64s:
    """Bit set over ``hash >> shift`` that contains these hashes."""
    bits = np.zeros(1 << int(np.uint64(64) - shift), np.bool_)
    bits[hashes >> shift] = True
    return np.packbits(bits, bitorder="little").view(np.uint64)


@jit
def bits_at(table: UInt64s, slots: Hashes) -> Hashes:
    """The bit (0 or 1) of a bit table in this slot, or in each of several slots."""
    bits: Hashes = (table[slots >> np.uint64(6)] >> (slots & np.uint64(63))) & np.uint64(1)
    return bits


@jit
def find_prefixes(hashes: UInt64s, bounds: Int64s, minimum: int, table: UInt64s, shift: np.uint64) -> Int64s:
    """Words that begin a run of ``minimum`` words of one text whose rolling hash is in the bit table."""
    words = np.empty(len(hashes), np.int64)
    count = 0
    leaving = np.uint64(1)
    for _ in range(minimum):
        leaving *= WORD_BASE
    for text in range(len(bounds) - 1):
        total = np.uint64(0)
        for last in range(bounds[text], bounds[text + 1]):
            total = total * WORD_BASE + hashes[last]
            first = last - minimum + 1
            if first < bounds[text]:
                continue
            if first > bounds[text]:
                total -= hashes[first - 1] * leaving
            if bits_at(table, fmix64_scalar(total) >> shift):
                words[count] = first
                count += 1
    return words[:count].copy()
