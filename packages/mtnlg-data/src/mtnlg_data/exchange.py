"""Exchange by key range: sorted rows of many writers → one reader per range, with a linear number of file opens.

A step that sorts a corpus has F files of rows, each written by one task, and R ranges of their 64-bit keys, and both
grow with the corpus. Opening every file for every range would be F x R opens. Here no task opens more than ``FAN_OUT``
files: groups of files are merged level by level, until a level has no more:

    level 0   the files as they were written, each with keys from the whole range
    level l   one file per group of ``FAN_OUT`` files of level l - 1
    range     read from all files of the last level, ``FAN_OUT`` or fewer

Up to ``FAN_OUT`` files need no merging. Beyond it each level opens every file once, and rewrites every byte once: one
level is enough for 16,384 files, two for two million. The files of a level are named by numbers, so a task carries the
same few bytes however large the corpus is.

    rows = job.rows("bands", write_band_rows, items)      each task: ``with write_rows(output) as rows: rows.add(…)``
    for tables in map(Range.tables, rows.ranges(8)): …    on workers

A file is an Arrow file, read through a memory map. Each record batch is a *run*: rows that ascend by the column
``sort``. Rows come out by key, and rows of one key in the order of their files. No reader holds more than about
``RUN_BYTES`` of them, not even where all rows have one key.
"""

from __future__ import annotations

import mmap
import zlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from .engine.tasks import ROWS_SUFFIX
from .files import atomic_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.array_types import Bools, Int64s, Integers, UInt64s
FAN_OUT = 128  # a power of two
KEY_BITS = 64
KEYS = 1 << KEY_BITS
RUN_BYTES = 1 << 25  # bytes of a run, and of the rows that a reader yields at a time
MERGE_COPIES = 5  # copies of a run in memory during a merge: as read, concatenated, sorted, waiting to be written
ROWS_PER_RANGE = 1 << 22  # approximate number of (narrow) rows that a task reads


def stable_order(keys: UInt64s) -> Int64s:
    """``np.argsort(keys, kind="stable")``, but faster.

    NumPy sorts numbers with vector instructions, but computes an argsort by comparisons. So this function sorts numbers
    that hold as many upper bits of each key as fit above the key's index. Keys that differ only in the remaining bits
    are ordered by a second sort, whose input is nearly sorted.
    """
    if len(keys) < 2:
        return np.arange(len(keys))
    low, high = int(keys.min()), int(keys.max())
    spread = np.uint64(64 - max(1, (high - low).bit_length()))
    bits = np.uint64((len(keys) - 1).bit_length())
    packed = (keys - np.uint64(low)) << spread >> bits << bits | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & (np.uint64(1) << bits) - np.uint64(1)).astype(np.int64)
    ordered = keys[order]
    return order[np.argsort(ordered, kind="stable")] if (ordered[1:] < ordered[:-1]).any() else order


def begins(keys: NDArray[np.generic]) -> Bools:
    """For each of these ascending keys, whether it differs from the one before; True for the first."""
    differs = np.ones(len(keys), np.bool_)
    differs[1:] = keys[1:] != keys[:-1]
    return differs


def repeated(keys: NDArray[np.generic]) -> Bools:
    """For each of these ascending keys, whether it occurs more than once."""
    first = begins(keys)
    return np.asarray(~(first & np.append(first[1:], True)))


class Numbering(NamedTuple):
    """Maps the numbers from 0 to ``total`` - 1 to ascending keys, spread over all keys."""

    total: int

    @property
    def shift(self) -> int:
        """Left shift that turns a number into its key."""
        return KEY_BITS - max(1, (self.total - 1).bit_length())

    def keys(self, numbers: Integers) -> UInt64s:
        """The keys of these numbers."""
        return numbers.astype(np.uint64) << np.uint64(self.shift)

    def numbers(self, keys: UInt64s) -> Int64s:
        """The numbers of these keys."""
        return (keys >> np.uint64(self.shift)).astype(np.int64)

    def span(self, first: int, count: int) -> tuple[int, int]:
        """First and last key of ``count`` numbers from ``first`` on."""
        return first << self.shift, (first + count << self.shift) - 1


# --- which files hold which keys -------------------------------------------------------------------------------------


class Range(NamedTuple):
    """The rows with keys from ``first`` to ``last``, inclusive, in some files of one level."""

    folder: Path
    level: int
    files: range  # their numbers
    first: int
    last: int
    digest: str  # of all rows of the exchange

    def fingerprint(self) -> object:
        """The digest of all rows and the keys of the range, which identify its rows."""
        return [self.digest, self.first, self.last]

    def tables(self) -> Iterator[pa.Table]:
        """The rows by key, about ``RUN_BYTES`` at a time.

        All rows of a key are in one table, unless they alone exceed this size.
        """
        paths = [Rows.path(self.folder, number, self.level) for number in self.files]
        return read_rows(paths, self.first, self.last)

    def column(self, name: str, dtype: Any) -> NDArray[Any]:  # noqa: ANN401
        """A column of all rows, which must fit into memory."""
        return np.concatenate([np.empty(0, dtype), *(table[name].to_numpy() for table in self.tables())])


class Rows(NamedTuple):
    """The rows that several tasks have written, to be read by range of keys."""

    folder: Path
    written: Sequence[Any]  # by task, as ``merge`` returns them
    digest: str
    merge: Callable[[list[tuple[Range, Path]]], object]  # runs ``merge`` for each range and output

    @staticmethod
    def path(folder: Path, number: int, level: int = 0) -> Path:
        """File ``number`` of a level; task ``number`` writes that of level 0."""
        return folder / f"{level}-{number:07d}{ROWS_SUFFIX}"

    def ranges(self, count: int, spans: Sequence[tuple[int, int]] | None = None) -> list[Range]:
        """Merge, and return ``count`` ranges, rounded up to a power of two, or the ``spans`` (first and last keys)."""
        level, files = 0, range(len(self.written))
        while len(files) > FAN_OUT:
            groups = [files[first : first + FAN_OUT] for first in files[::FAN_OUT]]
            merged = [Range(self.folder, level, group, 0, KEYS - 1, self.digest) for group in groups]
            level, files = level + 1, range(len(groups))
            self.merge([(group, self.path(self.folder, number, level)) for number, group in enumerate(merged)])
        if spans is None:
            width = KEYS >> max(0, count - 1).bit_length()
            spans = [(first, first + width - 1) for first in range(0, KEYS, width)]
        return [Range(self.folder, level, files, first, last, self.digest) for first, last in spans]


def count_ranges(rows: int) -> int:
    """Number of ranges for this many rows; a task reads one range."""
    return -(-rows // ROWS_PER_RANGE) or 1


# --- files of runs ---------------------------------------------------------------------------------------------------


class RunWriter:
    """Writes rows as runs of about ``RUN_BYTES``, each sorted by ``sort``; rows of one key stay in order."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self.rows = 0

    def add(self, sort: UInt64s, columns: Mapping[str, Any]) -> None:
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
def write_rows(output: Path) -> Iterator[RunWriter]:
    """A writer of runs to the file ``output``, which is empty if no rows are added."""
    with atomic_path(output) as partial, ExitStack() as stack:
        writer = RunWriter(partial, stack)
        yield writer
        writer.flush()


def merge(rows: Range, output: Path) -> dict[str, Any]:
    """Write the rows of a range into one file, in order."""
    with write_rows(output) as runs:
        for table in rows.tables():
            runs.write(table)
    return {}


def _sorted(table: pa.Table) -> pa.Table:
    keys = table["sort"].combine_chunks().to_numpy() if table.num_rows else np.empty(0, np.uint64)
    if (keys[1:] >= keys[:-1]).all():
        return table
    return table.combine_chunks().take(pa.array(stable_order(keys)))


class _Run:
    """A run, and which of its rows are still to be read."""

    def __init__(self, batch: pa.RecordBatch, first: int, last: int) -> None:
        self.batch = batch
        self.keys: UInt64s = batch["sort"].to_numpy()
        self.begin = int(np.searchsorted(self.keys, np.uint64(first)))
        self.end = int(np.searchsorted(self.keys, np.uint64(last), side="right"))

    def below(self, cut: np.uint64, window: int) -> int:
        """End of the rows with keys below ``cut``, at most ``window`` rows after ``begin``."""
        return self.begin + int(np.searchsorted(self.keys[self.begin : min(self.begin + window, self.end)], cut))

    def through(self, cut: np.uint64) -> int:
        """End of the rows with keys up to ``cut``, inclusive."""
        return self.begin + int(np.searchsorted(self.keys[self.begin : self.end], cut, side="right"))

    def take(self, end: int) -> pa.RecordBatch:
        """Return the rows up to ``end``, and mark them as read."""
        rows = self.batch.slice(self.begin, end - self.begin)
        self.begin = end
        return rows


def read_rows(paths: Iterable[Path], first: int, last: int) -> Iterator[pa.Table]:
    """Yield the rows of these files with keys ``first`` to ``last``, as ``Range.tables`` does."""
    runs: list[_Run] = []
    mappings: list[mmap.mmap] = []
    for path in paths:
        if path.stat().st_size:  # a file without rows has no schema
            with path.open("rb") as file:
                mappings.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            reader = pa.ipc.open_file(pa.py_buffer(mappings[-1]))
            runs += (_Run(reader.get_batch(number), first, last) for number in range(reader.num_record_batches))
            _forget(mappings[-1:])  # the search for the keys has read it
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
    """Drop the pages read from mapped files, which would count as used memory; they are read again when needed."""
    for mapping in mappings:
        mapping.madvise(mmap.MADV_DONTNEED)


def run_digest(path: Path) -> str:
    """CRC-32 and size of a file: detects damage by a disk, not forgery, and is four times as fast as SHA-256."""
    crc = size = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            crc, size = zlib.crc32(part, crc), size + len(part)
    return f"{crc:08x}-{size}"
