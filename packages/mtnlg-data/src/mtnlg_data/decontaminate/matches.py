"""Occurrences of the tasks' n-grams in the documents, and which n-grams are too common to be cut (paper.md 4.4).

write_ngrams      the n-grams of the task texts
scan_shard        every match in a shard, as numbers; later steps decide from these and read no text
count_documents   documents per n-gram over all shards, by sums of sums
choose_rare       n-grams in ``common`` documents or more are not cut
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data import exchange
from mtnlg_data.document import UnitOutput, read_documents
from mtnlg_data.engine import Unit, key_of
from mtnlg_data.files import atomic_open, atomic_path
from mtnlg_data.text.arrays import text_batches
from mtnlg_data.text.characters import SOUTHEAST_ASIAN, character_kinds, code_points

from .ngrams import NgramSet, read_task_texts, task_ngrams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import StageFolder, Summary

#: . ! ? as in the paper, and the marks of other scripts: Chinese and Japanese, Arabic and Urdu, Hindi, Armenian,
#: Amharic, Tibetan, Khmer, Burmese.
SENTENCE_ENDS = code_points(
    ".!?\u3002\uff01\uff1f\uff0e\uff61\u061f\u06d4\u0964\u0965\u0589\u1362\u0f0d\u17d4\u17d5\u104b"
)
NGRAM_SCHEMA = pa.schema(
    [
        pa.field("ngram", pa.large_string()),
        pa.field("tasks", pa.list_(pa.string())),  # of every text with this n-gram
        pa.field("ids", pa.list_(pa.string())),
    ]
)
MATCH_COLUMNS = ("row", "length", "start", "end", "ngram", "stop", "resume")
#: ``row`` and ``length`` of the document, then a ``Match``; ``is_first`` marks an n-gram's first match in a document.
MATCH_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in MATCH_COLUMNS),
        pa.field("is_first", pa.bool_(), nullable=False),
    ]
)


class Match(NamedTuple):
    """One n-gram in one text, characters ``start`` up to ``end``, and the sentence ends around it.

    ``stop`` is the position of the last sentence's end at least ``window`` characters before the match, or -1;
    ``resume`` the first at least as far after it, or the length of the text.
    """

    start: int
    end: int
    ngram: int
    stop: int
    resume: int


@dataclass(frozen=True)
class NgramUnit(Unit):
    """Unit: the file of task texts → their n-grams; none without a file."""

    texts: Path | None
    checksum: str | None
    n: int
    minimum: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("ngrams", self.checksum, self.n, self.minimum)


def write_ngrams(unit: NgramUnit) -> Summary:
    """Write the n-grams of the task texts, sorted."""
    ngrams = task_ngrams(read_task_texts(unit.texts) if unit.texts else (), unit.n, unit.minimum)
    tasks, ids = ([[origin[part] for origin in origins] for origins in ngrams.values()] for part in (0, 1))
    with atomic_path(unit.output) as partial:
        pq.write_table(pa.table([list(ngrams), tasks, ids], schema=NGRAM_SCHEMA), partial, compression="zstd")
    return {"ngrams": len(ngrams)}


@dataclass(frozen=True)
class ScanUnit(Unit):
    """Unit: one shard → its matches, a table of ``MATCH_SCHEMA``."""

    shard: Shard
    ngrams: NgramUnit
    window: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("scan", self.shard.checksum, self.ngrams.key, self.window)


def scan_shard(unit: ScanUnit) -> Summary:
    """Write the matches of one shard."""
    ngrams = _load_ngrams(UnitOutput.of(unit.ngrams), unit.ngrams.minimum)
    first = matches = 0
    with atomic_path(unit.output) as partial, pq.ParquetWriter(partial, MATCH_SCHEMA, compression="zstd") as writer:
        for batch in read_documents(unit.shard.path, ["text"]) if len(ngrams) else ():
            for texts in text_batches(batch["text"].to_pylist()):
                table = _match_table(texts, first, ngrams, unit.window)
                if table.num_rows:
                    writer.write(table)
                matches += table.num_rows
                first += len(texts)
    return {"matches": matches}


@lru_cache(maxsize=1)  # once per worker
def _load_ngrams(ngrams: UnitOutput, minimum: int) -> NgramSet:
    return NgramSet(pq.read_table(ngrams.path, columns=["ngram"])["ngram"].to_pylist(), minimum)


def _match_table(texts: list[str], first_row: int, ngrams: NgramSet, window: int) -> pa.Table:
    matches = ngrams.search(texts)
    lengths = np.array([len(text) for text in texts], np.int64)[matches.texts]
    stops, resumes = np.empty_like(lengths), np.empty_like(lengths)
    is_new_text = np.concatenate([[True], matches.texts[1:] != matches.texts[:-1]])
    begins = np.flatnonzero(is_new_text)[: len(lengths)].tolist()
    for begin, end in pairwise([*begins, len(lengths)]):
        part, text = slice(begin, end), texts[matches.texts[begin]]
        stops[part], resumes[part] = sentence_ends(text, matches.starts[part], matches.ends[part], window)
    pairs = matches.texts * len(ngrams) + matches.ngrams
    is_first = np.zeros(len(pairs), np.bool_)
    is_first[np.unique(pairs, return_index=True)[1]] = True
    columns = [first_row + matches.texts, lengths, matches.starts, matches.ends, matches.ngrams, stops, resumes]
    return pa.table([*columns, is_first], schema=MATCH_SCHEMA)


def sentence_ends(
    text: str, starts: NDArray[np.int64], ends: NDArray[np.int64], window: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``Match.stop`` and ``Match.resume`` of matches of a text."""
    codes = code_points(text)
    marks = np.flatnonzero(_ends_sentence(codes))
    bounded = np.concatenate([[-1], marks, [len(text)]])
    before = np.searchsorted(marks, starts - window, side="right")
    after = np.searchsorted(marks, ends + window, side="left")
    return bounded[before], bounded[after + 1]


def _ends_sentence(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which characters end a sentence; after a letter of Thai, Lao or Burmese, which need no mark, a space does."""
    after_letter = np.concatenate([[False], character_kinds()[codes[:-1]] == SOUTHEAST_ASIAN])
    return np.isin(codes, SENTENCE_ENDS) | (after_letter & np.isin(codes, code_points(" \n")))


@dataclass(frozen=True)
class CountUnit(Unit):
    """Unit: ``FAN_OUT`` files of matches, or of counts, at most -> their sum: int64[2, n-grams found]."""

    folder: Path
    files: tuple[str, ...]
    contents: str  # digest of their units' keys
    ngrams: NgramUnit
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("count", self.contents)


def count_documents(unit: CountUnit) -> Summary:
    """Write the numbers of the n-grams found, and in how many documents each is; takes 8 bytes of memory per n-gram."""
    documents = np.zeros(pq.read_metadata(unit.ngrams.output).num_rows, np.int64)
    for name in unit.files:
        for ngrams, counts in _counts(unit.folder / name):
            documents[ngrams] += counts
    found = np.flatnonzero(documents)
    with atomic_open(unit.output) as file:
        np.save(file, np.stack([found, documents[found]]))
    return {}


def _counts(path: Path) -> Iterator[NDArray[np.int64]]:
    """Different n-grams, and documents of each: as a unit has written them, or of each batch of matches."""
    if path.suffix == ".npy":
        yield np.load(path)
        return
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["ngram", "is_first"]):
            ngrams = batch["ngram"].to_numpy()[batch["is_first"].to_numpy(zero_copy_only=False)]
            yield np.stack(np.unique(ngrams, return_counts=True))


def run_counts(scans: Sequence[ScanUnit], stage: StageFolder) -> UnitOutput:
    """Count the documents of each n-gram over all shards, ``FAN_OUT`` files a unit, in as many levels as it takes."""
    units: Sequence[ScanUnit | CountUnit] = scans
    level = 0
    while level == 0 or len(units) > 1:
        groups = [units[first : first + exchange.FAN_OUT] for first in range(0, len(units), exchange.FAN_OUT)]
        counts = [
            CountUnit(
                stage.state,
                tuple(unit.output.name for unit in group),
                key_of([unit.key for unit in group]),
                scans[0].ngrams,
                stage.state / f"counts-{level}-{number:05d}.npy",
            )
            for number, group in enumerate(groups)
        ]
        stage.run(count_documents, counts, "decontaminate: count")
        units, level = counts, level + 1
    return UnitOutput.of(units[0])


@dataclass(frozen=True)
class RareUnit(Unit):
    """Unit: the counts of all shards -> bool[n-grams], True where an n-gram is rare enough to be cut."""

    counts: UnitOutput
    ngrams: NgramUnit
    common: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("rare", self.ngrams.key, self.counts.key, self.common)


def choose_rare(unit: RareUnit) -> Summary:
    """Write which n-grams are cut: a byte each."""
    ngrams, documents = np.load(unit.counts.path)
    is_cut = np.ones(pq.read_metadata(unit.ngrams.output).num_rows, np.bool_)
    is_cut[ngrams] = documents < unit.common
    with atomic_open(unit.output) as file:
        np.save(file, is_cut)
    return {"found": len(ngrams), "common": int((~is_cut).sum())}


def read_matches_to_cut(path: Path, is_cut: NDArray[np.bool_]) -> Iterator[tuple[int, int, list[Match]]]:
    """Row, length and matches, in order, of each document with matches of n-grams that are cut."""
    row, length = -1, 0
    matches: list[Match] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=list(MATCH_COLUMNS)):
            rare = batch.filter(pa.array(is_cut[batch["ngram"].to_numpy()], pa.bool_()))
            for next_row, size, *match in zip(*(rare[name].to_pylist() for name in MATCH_COLUMNS), strict=True):
                if next_row != row and matches:
                    yield row, length, matches
                    matches = []
                row, length = next_row, size
                matches.append(Match(*match))
    if matches:
        yield row, length, matches
