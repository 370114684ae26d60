"""Where the tasks' n-grams stand in the documents, and which of them are too common to be cut (paper.md 4.4).

list     the n-grams of the task texts
scan     where any of them stands, every shard once, in numbers: nothing behind it reads a text to decide
count    in how many documents each stands, over all shards: those in ``common`` or more are left alone
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.document import Made, read_documents
from mtnlg_data.engine import key_of
from mtnlg_data.files import aside, replacing
from mtnlg_data.words import code_points, portions

from .ngrams import NgramSet, read_task_texts, task_ngrams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

ENDS = ".!?"
NGRAMS = pa.schema(
    [
        pa.field("ngram", pa.large_string()),
        pa.field("tasks", pa.list_(pa.string())),  # of every text that has it
        pa.field("ids", pa.list_(pa.string())),
    ]
)
NUMBERS = ("row", "length", "start", "end", "ngram", "stop", "resume")
#: ``row`` and ``length`` of the document, then a ``Match``; ``is_first`` of its n-gram in the document.
MATCHES = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in NUMBERS),
        pa.field("is_first", pa.bool_(), nullable=False),
    ]
)


class Match(NamedTuple):
    """One n-gram in one text: characters ``start`` to ``end`` of it, and where sentences end around it.

    ``stop`` is the last end of a sentence ``window`` characters or more before the match, -1 where there is none;
    ``resume`` the first as far behind it, or the length of the text.
    """

    start: int
    end: int
    ngram: int
    stop: int
    resume: int


@dataclass(frozen=True)
class Ngrams:
    """Unit: the file of task texts → their n-grams. Without a file there are none."""

    texts: Path | None
    checksum: str | None
    n: int
    minimum: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("ngrams", self.checksum, self.n, self.minimum)


def list_ngrams(unit: Ngrams) -> Summary:
    """Run one unit."""
    ngrams = task_ngrams(read_task_texts(unit.texts) if unit.texts else (), unit.n, unit.minimum)
    tasks, ids = ([[row[part] for row in rows] for rows in ngrams.values()] for part in (0, 1))
    with aside(unit.output) as partial:
        pq.write_table(pa.table([list(ngrams), tasks, ids], schema=NGRAMS), partial, compression="zstd")
    return {"ngrams": len(ngrams)}


@dataclass(frozen=True)
class Scan:
    """Unit: one shard → where which n-grams stand in it, as ``MATCHES``."""

    shard: Shard
    ngrams: Ngrams
    window: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("scan", self.shard.checksum, self.ngrams.key, self.window)


def scan(unit: Scan) -> Summary:
    """Run one unit."""
    ngrams = _ngram_set(Made.by(unit.ngrams), unit.ngrams.minimum)
    first = matches = 0
    with aside(unit.output) as partial, pq.ParquetWriter(partial, MATCHES, compression="zstd") as writer:
        for batch in read_documents(unit.shard.path, ["text"]) if len(ngrams) else ():
            for texts in portions(batch["text"].to_pylist()):
                table = _scanned(texts, first, ngrams, unit.window)
                if table.num_rows:
                    writer.write(table)
                matches += table.num_rows
                first += len(texts)
    return {"matches": matches}


@lru_cache(maxsize=1)
def _ngram_set(made: Made, minimum: int) -> NgramSet:
    """Read once a worker."""
    return NgramSet(pq.read_table(made.path, columns=["ngram"])["ngram"].to_pylist(), minimum)


def _scanned(texts: list[str], first: int, ngrams: NgramSet, window: int) -> pa.Table:
    found = ngrams.search(texts)
    lengths = np.array([len(text) for text in texts], np.int64)[found.texts]
    stops, resumes = np.empty_like(lengths), np.empty_like(lengths)
    begins = np.flatnonzero(np.concatenate([[True], found.texts[1:] != found.texts[:-1]]))[: len(lengths)].tolist()
    for begin, end in pairwise([*begins, len(lengths)]):
        here, text = slice(begin, end), texts[found.texts[begin]]
        stops[here], resumes[here] = sentence_ends(text, found.starts[here], found.ends[here], window)
    pairs = found.texts * len(ngrams) + found.ngrams
    is_first = np.zeros(len(pairs), np.bool_)
    is_first[np.unique(pairs, return_index=True)[1]] = True
    numbers = [first + found.texts, lengths, found.starts, found.ends, found.ngrams, stops, resumes]
    return pa.table([*numbers, is_first], schema=MATCHES)


def sentence_ends(
    text: str, starts: NDArray[np.int64], ends: NDArray[np.int64], window: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``stop`` and ``resume`` of the matches at these places of a text."""
    codes = code_points(text)
    marks = np.flatnonzero(np.logical_or.reduce([codes == ord(mark) for mark in ENDS]))
    bounded = np.concatenate([[-1], marks, [len(text)]])
    before = np.searchsorted(marks, starts - window, side="right")
    behind = np.searchsorted(marks, ends + window, side="left")
    return bounded[before], bounded[behind + 1]


@dataclass(frozen=True)
class Count:
    """Unit: the matches of all shards → for every n-gram, whether so few documents hold it that it is cut."""

    scans: tuple[Scan, ...]
    ngrams: Ngrams
    common: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("count", self.ngrams.key, [unit.key for unit in self.scans], self.common)


def count(unit: Count) -> Summary:
    """Run one unit, with 8 bytes an n-gram."""
    documents = np.zeros(pq.read_metadata(unit.ngrams.output).num_rows, np.int64)
    for part in unit.scans:
        with pq.ParquetFile(part.output) as file:
            for batch in file.iter_batches(columns=["ngram", "is_first"]):
                ngrams = batch["ngram"].to_numpy()[batch["is_first"].to_numpy(zero_copy_only=False)]
                documents += np.bincount(ngrams, minlength=len(documents))
    is_cut = documents < unit.common
    with replacing(unit.output) as file:
        np.save(file, is_cut)
    return {"found": int((documents > 0).sum()), "common": int((~is_cut).sum())}


def matches_to_cut(scan: Path, is_cut: NDArray[np.bool_]) -> Iterator[tuple[int, int, list[Match]]]:
    """Of every document with matches that are to be cut: row, length, and those matches in order."""
    row, length = -1, 0
    matches: list[Match] = []
    with pq.ParquetFile(scan) as file:
        for batch in file.iter_batches(columns=list(NUMBERS)):
            some = batch.filter(pa.array(is_cut[batch["ngram"].to_numpy()], pa.bool_()))
            for here, size, *match in zip(*(some[name].to_pylist() for name in NUMBERS), strict=True):
                if here != row and matches:
                    yield row, length, matches
                    matches = []
                row, length = here, size
                matches.append(Match(*match))
    if matches:
        yield row, length, matches
