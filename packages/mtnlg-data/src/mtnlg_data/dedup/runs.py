"""Sorted runs on disk, their exchange by key range, and a merge of constant memory.

A file of runs is an Arrow file, read through a memory map. Each record batch is a *run*: rows that ascend by the column
``sort``, of 64 bits. Steps of deduplication hand their rows on in folders of such files, one per writer; a reader takes
a range of keys out of all of them, by way of merged files (``exchange.py``) where there are more than it may open.

Rows come out by key, and rows of one key in the order of their files. No reader holds more than about ``RUN_BYTES`` of
them, not even where all rows have one key.
"""

from __future__ import annotations

import mmap
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mtnlg_data.engine import Unit
from mtnlg_data.exchange import KEYS, Exchange, KeyRange, SortedFile, stable_order
from mtnlg_data.files import atomic_path
from mtnlg_data.text.compiled import jit, wide_vectors
from mtnlg_data.text.hashing import CHARACTER_BASE, WORD_BASE, fmix64_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary

RUN_BYTES = 1 << 25  # of a run, and of the rows that a merge yields at a time
ROWS_PER_RANGE = 1 << 22  # of narrow rows: what a unit reads, more or less
LIBRARY_BYTES = 380_000_000  # memory of a worker that has extracted and cleaned before, with all that it has imported
MERGE_COPIES = 5  # in memory, of a run in a merge: as read, together, sorted, and waiting to be written
KEY_BITS = 64
DIGEST_WORDS = 1 << 16  # read at a time, into the processor's caches


class Corpus(NamedTuple):
    """What all units of a search share."""

    folder: Path
    documents: int
    digest: str  # of all that the units' outputs depend on

    @property
    def shift(self) -> int:
        """Left shift that makes a key of a document's number, so that the corpus spans the keys."""
        return KEY_BITS - max(1, (self.documents - 1).bit_length())

    def keys(self, documents: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The keys of these documents."""
        return documents.astype(np.uint64) << np.uint64(self.shift)

    def numbers(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The documents of these keys."""
        return (keys >> np.uint64(self.shift)).astype(np.int64)

    def bounds(self, number: int, ranges: int) -> tuple[int, int]:
        """First and last number of the documents in one of so many ranges of keys; there may be fewer documents."""
        return number * KEYS // ranges >> self.shift, (number + 1) * KEYS // ranges - 1 >> self.shift

    def exchanged(self, name: str, files: int, ranges: int) -> Exchanged:
        """The rows that so many units hand on under this name, for at least this many ranges."""
        return Exchanged(self.folder / name, files, 1 << max(0, ranges - 1).bit_length(), self.digest)


def count_ranges(rows: int) -> int:
    """Number of ranges for so many rows, of which a unit takes one."""
    return -(-rows // ROWS_PER_RANGE) or 1


class Exchanged(NamedTuple):
    """A folder of files of runs, written by ``files`` units and read by key range."""

    folder: Path
    files: int
    ranges: int  # a power of two
    digest: str

    def path(self, number: int) -> Path:
        """The file that unit ``number`` writes."""
        return self._path(SortedFile(0, number, 0))

    def _path(self, file: SortedFile) -> Path:
        return self.folder / f"{file.stem}.arrow"

    def merges(self) -> Iterator[list[MergeUnit]]:
        """Level by level, the units that merge files until no range is in more than ``FAN_OUT`` of them."""
        for level in Exchange(self.files, self.ranges).merges():
            yield [MergeUnit(self, file, keys, self._path(file)) for file, keys in level]

    def read(self, number: int) -> Iterator[pa.Table]:
        """The rows of a range, from 0 to ``ranges`` - 1."""
        return self.read_keys(Exchange(self.files, self.ranges).range(number))

    def read_keys(self, keys: KeyRange) -> Iterator[pa.Table]:
        """The rows of these keys, from these files."""
        return merge_runs([self._path(file) for file in keys.files], keys.first, keys.last)

    def read_documents(self, corpus: Corpus, first: int, count: int) -> Iterator[pa.Table]:
        """The rows of ``count`` documents from ``first`` on, which need be no range, where keys are documents."""
        exchange = Exchange(self.files, self.ranges)
        low, high, parts = self._parts(corpus, first, count)
        files = dict.fromkeys(file for part in parts for file in exchange.range(part).files)
        return merge_runs([self._path(file) for file in files], low, high)

    def read_parts(self, corpus: Corpus, first: int, count: int) -> Iterator[pa.Table]:
        """The same where unit n has written range n, and no other rows."""
        low, high, parts = self._parts(corpus, first, count)
        return merge_runs([self.path(part) for part in parts], low, high)

    def _parts(self, corpus: Corpus, first: int, count: int) -> tuple[int, int, range]:
        """Lowest and highest key of these documents, and the ranges that they are in."""
        low, high = first << corpus.shift, (first + count << corpus.shift) - 1
        return low, high, range(low * self.ranges // KEYS, high * self.ranges // KEYS + 1) if count else range(0)


class RunUnit(Unit):
    """Unit whose files are for other units: a disk may damage them, but nobody forges them."""

    def file_digest(self, path: Path) -> str:
        """``run_digest``, several times as fast as SHA-256."""
        return run_digest(path)


@dataclass(frozen=True)
class CorpusUnit(RunUnit):
    """Unit of a search: ``number`` is that of the shard, or of the range of keys, that it reads."""

    corpus: Corpus
    number: int

    def _key_parts(self) -> tuple[object, ...]:
        return (type(self).__name__, self.corpus.digest, self.number)


def run_digest(path: Path) -> str:
    """Two sums of mixes of each word of a file and its place, 128 bits in hex, and the number of bytes."""
    words, sums, size = np.empty(DIGEST_WORDS, np.uint64), np.zeros(2, np.uint64), 0
    with path.open("rb") as file:
        while read := file.readinto(words.data):
            part = words[: -(-read // 8)]
            part.view(np.uint8)[read:] = 0
            sums += mix_words(part, size // 8)
            size += read
    return f"{sums[0]:016x}{sums[1]:016x}-{size}"


@jit
def mix_words(words: NDArray[np.uint64], first: int) -> NDArray[np.uint64]:
    """Two sums [2] over words in their places, of which the first is ``first``."""
    wide_vectors()
    sums = np.zeros(2, np.uint64)
    low, high = np.uint64(0), np.uint64(0)
    for word in range(len(words)):
        place = np.uint64(first + word)
        low += fmix64_scalar(words[word] ^ place * CHARACTER_BASE)
        high += fmix64_scalar(words[word] + place * WORD_BASE)
    sums[0], sums[1] = low, high
    return sums


@dataclass(frozen=True)
class MergeUnit(RunUnit):
    """Unit: files of runs → one of a range of their keys."""

    rows: Exchanged
    file: SortedFile
    keys: KeyRange
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("merge", self.rows.folder.name, self.rows.files, self.rows.ranges, self.file, self.rows.digest)


def merge_files(unit: MergeUnit) -> Summary:
    """Write the rows of all files, in order."""
    with write_runs(unit.output) as runs:
        for table in unit.rows.read_keys(unit.keys):
            runs.write(table)
    return {}


class RunWriter:
    """Writes rows as runs of about ``RUN_BYTES``, each sorted by ``sort``; rows of one key stay in order."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self.rows = 0

    def add(self, sort: NDArray[np.uint64], columns: Mapping[str, Any]) -> None:
        """Add rows in any order."""
        table = pa.table({"sort": sort, **columns})
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes >= RUN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows added so far as a run."""
        if self._tables:
            self.write(_sorted(pa.concat_tables(self._tables)))
            self._tables, self._bytes = [], 0

    def write(self, table: pa.Table) -> None:
        """Write sorted rows as a run."""
        if self._writer is None:
            self._writer = self._stack.enter_context(pa.ipc.new_file(str(self._path), table.schema))
        if table.num_rows:
            self._writer.write_batch(table.combine_chunks().to_batches()[0])
            self.rows += table.num_rows


@contextmanager
def write_runs(output: Path) -> Iterator[RunWriter]:
    """A writer of the runs of this file; without rows the file is empty."""
    with atomic_path(output) as partial, ExitStack() as stack:
        writer = RunWriter(partial, stack)
        yield writer
        writer.flush()


def _sorted(table: pa.Table) -> pa.Table:
    keys = table["sort"].combine_chunks().to_numpy() if table.num_rows else np.empty(0, np.uint64)
    if len(keys) < 2 or (keys[1:] >= keys[:-1]).all():
        return table
    return table.combine_chunks().take(pa.array(stable_order(keys)))


class _Run:
    """What is left of a run."""

    def __init__(self, batch: pa.RecordBatch, first: int, last: int) -> None:
        self.batch = batch
        self.keys: NDArray[np.uint64] = batch["sort"].to_numpy()
        self.begin = int(np.searchsorted(self.keys, np.uint64(first)))
        self.end = int(np.searchsorted(self.keys, np.uint64(last), side="right"))

    def below(self, cut: np.uint64, window: int) -> int:
        """Where the keys below ``cut`` end, which is at most ``window`` rows from here."""
        return self.begin + int(np.searchsorted(self.keys[self.begin : min(self.begin + window, self.end)], cut))

    def through(self, cut: np.uint64) -> int:
        """Where the keys up to ``cut`` end."""
        return self.begin + int(np.searchsorted(self.keys[self.begin : self.end], cut, side="right"))

    def take(self, end: int) -> pa.RecordBatch:
        """The rows up to ``end``, which are not left any more."""
        rows = self.batch.slice(self.begin, end - self.begin)
        self.begin = end
        return rows


def merge_runs(paths: Iterable[Path], first: int, last: int) -> Iterator[pa.Table]:
    """The rows of these files with keys ``first`` to ``last``, by key, about ``RUN_BYTES`` at a time.

    All rows of a key come in one table, unless they alone are more than one holds.
    """
    runs: list[_Run] = []
    mappings: list[mmap.mmap] = []
    for path in paths:
        if path.stat().st_size:  # a file without rows has no schema
            with path.open("rb") as file:
                mappings.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            reader = pa.ipc.open_file(pa.py_buffer(mappings[-1]))
            runs += (_Run(reader.get_batch(number), first, last) for number in range(reader.num_record_batches))
            _forget(mappings[-1:])  # which has been searched for the keys
    runs = [run for run in runs if run.begin < run.end]
    size = sum(run.batch.nbytes / run.batch.num_rows for run in runs) / len(runs) if runs else 1
    limit = max(1, int(RUN_BYTES / max(1, size)))
    while runs:
        window = max(1, limit // len(runs))
        cuts = [run.keys[run.begin + window] for run in runs if run.begin + window < run.end]
        ends = [run.below(min(cuts), window) if cuts else run.end for run in runs]
        taken = [run.take(end) for run, end in zip(runs, ends, strict=True) if end > run.begin]
        if taken:
            yield _sorted(pa.Table.from_batches(taken))
            _forget(mappings)
        else:  # more rows of one key than fit a window
            for run in runs:
                end = run.through(min(cuts))
                while run.begin < end:
                    yield pa.Table.from_batches([run.take(min(run.begin + limit, end))])
                    _forget(mappings)
        runs = [run for run in runs if run.begin < run.end]


def _forget(mappings: Iterable[mmap.mmap]) -> None:
    """Take back what was read of mapped files, which would count as memory; it is read again where it is needed."""
    for mapping in mappings:
        mapping.madvise(mmap.MADV_DONTNEED)
