"""Counts of a task by source: documents and characters in and out, drops by reason, lengths, and example documents.

A task keeps a ``Tally`` per source and returns its summary; every dropped document is also recorded in ``dropped/``
beside the task's output (``recorded_tallies``). Lengths of the documents that are kept are counted in octaves. The few
example documents of each fate (kept, or dropped for a reason) are those whose keys have the lowest CRC-32, so the
choice does not depend on the order of the documents or on the shards.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .engine import DROPPED
from .files import atomic_path
from .schema import required
from .summary import COUNTS, ERRORS_SHOWN, KEPT, SHOWN_PER_FATE, add_up
from .text.arrays import text_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mtnlg_data.array_types import Bools, Int64s, Integers

    from .step import Outcome
    from .summary import Summary

EXCERPT_CHARACTERS = 400  # of each example
#: One row per dropped document; ``score`` is the number that decided, if there is one.
DROPPED_SCHEMA = pa.schema([*required(pa.string(), "id", "key", "source", "reason"), ("score", pa.float32())])
DROPS_PER_GROUP = 16_384  # rows of a row group, which is what a task holds in memory


def key_ranks(batch: pa.RecordBatch) -> Int64s:
    """CRC-32 of each document's key."""
    keys = batch["key"].cast(pa.binary()).to_pylist()
    return np.fromiter(map(crc32, keys), np.int64, len(keys))


def lowest(ranks: Int64s, count: int) -> Int64s:
    """Indices of the ``count`` lowest ranks, and of ranks equal to the last of these."""
    if len(ranks) <= count:
        return np.arange(len(ranks))
    return np.flatnonzero(ranks <= np.partition(ranks, count - 1)[count - 1])


class Tally:
    """Counts the documents of one source in one task, and records those that it drops in ``drops``.

    Without ``drops``, ``count`` chooses no examples either.
    """

    def __init__(self, source: str, drops: DropFile | None = None) -> None:
        self.source = source
        self._drops = drops
        self.counts = dict.fromkeys(COUNTS, 0)
        self.reasons: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.errors: list[dict[str, str]] = []
        self.metadata_lost: Counter[str] = Counter()
        self.failed = 0  # documents that could not be read
        self.lost: list[dict[str, str]] = []  # files that could not be read, in part or at all
        self._examples: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}

    def keep(self, characters: int, characters_out: int | None = None) -> None:
        """Count a document as kept; ``characters_out`` is its length after the stage, if the stage changed it."""
        length = characters if characters_out is None else characters_out
        self._add(1, 1, characters, length)
        self.lengths[length.bit_length()] += 1

    def _add(self, *sizes: int) -> None:
        for count, size in zip(COUNTS, sizes, strict=True):
            self.counts[count] += size

    def drop(
        self, characters: int, reason: str, name: str | None = None, score: float | None = None, key: str | None = None
    ) -> None:
        """Count a document as dropped for this reason; record it if its id ``name`` is given (the default key)."""
        self._add(1, 0, characters, 0)
        self.reasons[reason] += 1
        if self._drops is not None and name is not None:
            self._drops.add((name, name if key is None else key, self.source, reason, score))

    def fail(self, reason: str, where: str, what: str) -> None:
        """Count a document that could not be read, and keep its place and error among the first ``ERRORS_SHOWN``."""
        self.drop(0, reason, where, key=f"{self.source}/{where}")
        self.failed += 1
        if len(self.errors) < ERRORS_SHOWN:
            self.errors.append({"source": self.source, "where": where, "what": what})

    def lose(self, where: str, what: str) -> None:
        """Note that the file at this place ends early, or holds nothing that could be read."""
        self.lost.append({"source": self.source, "where": where, "what": what})

    def lose_metadata(self, reason: str) -> None:
        """Count a document that is kept without its metadata."""
        self.metadata_lost[reason] += 1

    def show(self, fate: str, name: str, text: str, score: float | None = None, key: str | None = None) -> None:
        """Offer a document as an example of its fate: ``KEPT``, or the reason it was dropped for; see ``drop``."""
        key = name if key is None else key
        rank = crc32(key.encode())
        examples = self._examples.setdefault(fate, [])
        if len(examples) < SHOWN_PER_FATE or (rank, key) < examples[-1][:2]:
            excerpt = text[:EXCERPT_CHARACTERS]
            example: dict[str, Any] = {"source": self.source, "fate": fate, "id": name, "key": key, "text": excerpt}
            if score is not None:
                example["score"] = round(score, 4)
            insort(examples, (rank, key, example), key=lambda entry: entry[:2])
            del examples[SHOWN_PER_FATE:]

    def count(self, batch: pa.RecordBatch, outcome: Outcome, own: Bools, ranks: Int64s) -> None:
        """Count, record and show what a step decided on the documents of this source: the ``own`` rows of a batch."""
        scores = np.full(batch.num_rows, np.nan) if outcome.scores is None else outcome.scores
        for number in np.unique(outcome.decisions[own]).tolist():
            rows, fate = np.flatnonzero(own & (outcome.decisions == number)), KEPT
            if number >= 0:
                fate = outcome.reasons[number]
                self.reasons[fate] += len(rows)
            for row in rows[lowest(ranks[rows], SHOWN_PER_FATE)].tolist() if self._drops is not None else ():
                name, key, text = (batch[column][row].as_py() for column in ("id", "key", "text"))
                self.show(fate, name, text, None if np.isnan(scores[row]) else float(scores[row]), key)
        if self._drops is not None and (dropped := own & (outcome.decisions >= 0)).any():
            names = batch.select(["id", "key", "source"]).filter(pa.array(dropped))
            reasons = pa.array(outcome.reasons, pa.string()).take(pa.array(outcome.decisions[dropped]))
            numbers = pa.array(scores[dropped].astype(np.float32), from_pandas=True)  # NaN as null
            self._drops.add_batch(pa.record_batch([*names.columns, reasons, numbers], DROPPED_SCHEMA))

    def measure(self, lengths: Integers, lengths_out: Integers) -> None:
        """Count documents by their lengths before the stage, and the kept ones by their lengths after it."""
        self._add(len(lengths), len(lengths_out), int(lengths.sum()), int(lengths_out.sum()))
        bits, counts = np.unique(np.frexp(lengths_out)[1], return_counts=True)
        self.lengths.update(dict(zip(bits.tolist(), counts.tolist(), strict=True)))

    def summary(self) -> Summary:
        """The tally as JSON; an octave's key is its shortest length."""
        lengths = {str(1 << bits >> 1): self.lengths[bits] for bits in sorted(self.lengths)}
        counts = {
            **self.counts,
            "failed": self.failed,
            "dropped": dict(sorted(self.reasons.items())),
            "lengths": lengths,
        }
        if self.metadata_lost:
            counts["metadata_lost"] = dict(sorted(self.metadata_lost.items()))
        shown = [example for fate in sorted(self._examples) for *_, example in self._examples[fate]]
        return {"sources": {self.source: counts}, "errors": self.errors, "lost": self.lost, "shown": shown}


class DropFile:
    """Writes the dropped documents of a task to a Parquet file; without any, no file is written."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.files: list[str] = []  # its name below the folder of the task's output, once it has rows
        self._stack = stack
        self._rows: list[tuple[str, str, str, str, float | None]] = []
        self._batches: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, row: tuple[str, str, str, str, float | None]) -> None:
        """Record a document: a row of ``DROPPED_SCHEMA``."""
        self._rows.append(row)
        if len(self._rows) == DROPS_PER_GROUP:
            self.flush()

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Record documents: rows of ``DROPPED_SCHEMA``."""
        self._batches.append(batch)
        if sum(batch.num_rows for batch in self._batches) >= DROPS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows as a row group."""
        rows, batches, self._rows, self._batches = self._rows, self._batches, [], []
        if rows:
            arrays = map(pa.array, zip(*rows, strict=True), DROPPED_SCHEMA.types)
            batches.append(pa.record_batch([*arrays], DROPPED_SCHEMA))
        if not batches:
            return
        if self._writer is None:
            partial = self._stack.enter_context(atomic_path(self.path))
            self._writer = self._stack.enter_context(pq.ParquetWriter(partial, DROPPED_SCHEMA, compression="zstd"))
            self.files.append(f"{DROPPED}/{self.path.name}")
        self._writer.write_table(pa.Table.from_batches(batches))


@contextmanager
def recorded_tallies(output: Path) -> Iterator[Tallies]:
    """The tallies of a task, which record the dropped documents in ``dropped/<name>`` beside its output.

    There is one file per task, complete when the block ends, in the order of the task's documents (source by source
    for documents counted in batches), and the same on any engine.
    """
    with ExitStack() as stack:
        drops = DropFile(output.parent / DROPPED / output.name, stack)
        yield Tallies(drops)
        drops.flush()


class Tallies(dict[str, Tally]):
    """One ``Tally`` per source, created at its first use, for tasks whose shard may hold several sources."""

    def __init__(self, drops: DropFile | None = None) -> None:
        self._drops = drops

    def __missing__(self, source: str) -> Tally:
        """The tally of a source, from its first use."""
        return self.setdefault(source, Tally(source, self._drops))

    def count(self, batch: pa.RecordBatch, outcome: Outcome) -> None:
        """Count, record and show what a step decided on a batch, source by source."""
        sources, ranks = batch["source"].dictionary_encode(), key_ranks(batch)
        before, after = text_lengths(batch["text"]), text_lengths(outcome.documents["text"])
        for number, source in enumerate(sources.dictionary.to_pylist()):
            own = sources.indices.to_numpy() == number
            self[source].measure(before[own], after[own[outcome.rows]])
            self[source].count(batch, outcome, own, ranks)

    @property
    def files(self) -> list[str]:
        """The record of dropped documents, if any, relative to the folder of the task's output."""
        return [] if self._drops is None else self._drops.files

    def summary(self) -> Summary:
        """All tallies as JSON, sources by name, for a task's manifest, with ``files``."""
        return {"files": self.files, **add_up([self[source].summary() for source in sorted(self)])}
