"""Counts of a stage by source: documents and characters in and out, drops by reason, lengths, and example documents.

A unit keeps a ``Tally`` per source and returns its summary; what it drops it also records, document by document, in
``dropped/`` beside its output (``recorded_tallies``). ``stage_summary`` adds the summaries up to the stage's object in
``summary.json``, with an alarm for each source that loses more than a share of its documents. Lengths of the documents
that leave the stage are counted in octaves. The few example documents of each fate (kept, or dropped for a reason) are
those whose keys have the lowest CRC-32, so neither the order of the documents nor the cut into shards decides which.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .console import say
from .engine import DROPPED
from .files import atomic_path
from .step import Outcome, text_lengths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

COUNTS = ("documents_in", "documents_out", "characters_in", "characters_out")
ERRORS_SHOWN = 20
SHOWN_PER_FATE = 2  # example documents of each fate, by source
EXCERPT_CHARACTERS = 400  # of each example
KEPT = "kept"
SMALL_SOURCE = 100  # documents; where fewer are mostly dropped, that is no sign of a mistake
Summary = dict[str, Any]
#: One row per dropped document; ``score`` is the number that decided, where there is one.
DROPPED_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("id", "key", "source", "reason")]
    + [pa.field("score", pa.float32())]
)
DROPS_PER_GROUP = 16_384  # rows of a row group, which is what a unit holds in memory
#: Keys of a stage's summary that stand once at the top of ``summary.json``, not in the list of stages.
TOP_LEVEL = (
    *("quality", "languages", "languages_kept", "filters", "duplicates", "exact", "decontamination"),
    *("tokens", "vocabulary", "unigram_entropy_nats"),
)
#: Keys for the next stage only, left out of ``summary.json``.
INTERNAL = ("shards",)


class Fates(NamedTuple):
    """What a stage decides on the documents of a batch."""

    numbers: NDArray[np.int64]  # of each document: index of the reason in ``reasons``, negative where it is kept
    reasons: Sequence[str]
    scores: NDArray[np.float64]  # of each document: the number that decided, NaN where there is none
    lengths: NDArray[np.integer[Any]]  # of each document: characters
    lengths_out: NDArray[np.integer[Any]]  # of those that are kept: characters after the stage
    origin: NDArray[np.int64] | None = None  # row of each of those, where one document becomes several

    @classmethod
    def of(cls, batch: pa.RecordBatch, outcome: Outcome) -> Fates:
        """What a step decided on a batch."""
        scores = np.full(batch.num_rows, np.nan) if outcome.scores is None else outcome.scores
        before, after = text_lengths(batch["text"]), text_lengths(outcome.documents["text"])
        return cls(outcome.decisions, outcome.reasons, scores, before, after, outcome.origin)


def key_ranks(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """CRC-32 of each document's key."""
    keys = batch["key"].cast(pa.binary()).to_pylist()
    return np.fromiter(map(crc32, keys), np.int64, len(keys))


def lowest(ranks: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Places of the ``count`` lowest ranks, and of those equal to the last of them."""
    if len(ranks) <= count:
        return np.arange(len(ranks))
    return np.flatnonzero(ranks <= np.partition(ranks, count - 1)[count - 1])


class Tally:
    """Counts the documents of one source in one unit, and records those that it drops in ``drops``."""

    def __init__(self, source: str, drops: DropFile | None = None) -> None:
        self.source = source
        self._drops = drops
        self.counts = dict.fromkeys(COUNTS, 0)
        self.reasons: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.errors: list[dict[str, str]] = []
        self.metadata_lost: Counter[str] = Counter()
        self.failed = 0  # documents that could not be read
        self.lost: list[dict[str, str]] = []  # files of which a part, or all, could not be read
        self._examples: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}

    def keep(self, characters: int, characters_out: int | None = None) -> None:
        """Count a document as kept; ``characters_out`` is its length after the stage, if the stage changed it."""
        length = characters if characters_out is None else characters_out
        for count, size in zip(COUNTS, (1, 1, characters, length), strict=True):
            self.counts[count] += size
        self.lengths[length.bit_length()] += 1

    def drop(
        self, characters: int, reason: str, name: str | None = None, score: float | None = None, key: str | None = None
    ) -> None:
        """Count a document as dropped for this reason; record it, if its id ``name`` is given, which is its key too."""
        self.counts["documents_in"] += 1
        self.counts["characters_in"] += characters
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

    def count(self, batch: pa.RecordBatch, fates: Fates) -> None:
        """Count, record and show the documents of a batch, which are all of this source."""
        kept = fates.numbers < 0
        self.measure(fates.lengths, fates.lengths_out)
        ranks = key_ranks(batch)
        for number in np.unique(fates.numbers).tolist():
            rows, fate = np.flatnonzero(fates.numbers == number), KEPT
            if number >= 0:
                fate = fates.reasons[number]
                self.reasons[fate] += len(rows)
            for row in rows[lowest(ranks[rows], SHOWN_PER_FATE)].tolist():
                name, key, text = (batch[column][row].as_py() for column in ("id", "key", "text"))
                self.show(fate, name, text, None if np.isnan(fates.scores[row]) else float(fates.scores[row]), key)
        if self._drops is not None:
            dropped = batch.select(["id", "key", "source"]).filter(pa.array(~kept))
            reasons = pa.array(fates.reasons, pa.string()).take(pa.array(fates.numbers[~kept]))
            scores = pa.array(fates.scores[~kept].astype(np.float32), from_pandas=True)  # NaN as null
            self._drops.add_batch(pa.record_batch([*dropped.columns, reasons, scores], DROPPED_SCHEMA))

    def measure(self, lengths: NDArray[np.integer[Any]], lengths_out: NDArray[np.integer[Any]]) -> None:
        """Count documents of these lengths, and those that are kept, of these lengths after the stage."""
        for count, size in zip(COUNTS, (len(lengths), len(lengths_out), lengths.sum(), lengths_out.sum()), strict=True):
            self.counts[count] += int(size)
        bits, counts = np.unique(np.frexp(lengths_out)[1], return_counts=True)
        self.lengths.update(dict(zip(bits.tolist(), counts.tolist(), strict=True)))

    def summary(self) -> Summary:
        """The tally as JSON, for a unit's manifest; an octave's key is its shortest length."""
        lengths = {str(1 << bits >> 1): self.lengths[bits] for bits in sorted(self.lengths)}
        dropped = dict(sorted(self.reasons.items()))
        counts = {**self.counts, "failed": self.failed, "dropped": dropped, "lengths": lengths}
        if self.metadata_lost:
            counts["metadata_lost"] = dict(sorted(self.metadata_lost.items()))
        shown = [example for fate in sorted(self._examples) for *_, example in self._examples[fate]]
        return {"sources": {self.source: counts}, "errors": self.errors, "lost": self.lost, "shown": shown}


class DropFile:
    """Writes the dropped documents of a unit to a Parquet file; there is no file where none is dropped."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.files: list[str] = []  # its name below the folder of the unit's output, once it has rows
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
        self._batch_rows()
        self._batches += [batch] if batch.num_rows else []
        if sum(batch.num_rows for batch in self._batches) >= DROPS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held as a row group."""
        self._batch_rows()
        table, self._batches = pa.Table.from_batches(self._batches, DROPPED_SCHEMA), []
        if not table.num_rows:
            return
        if self._writer is None:
            partial = self._stack.enter_context(atomic_path(self.path))
            self._writer = self._stack.enter_context(pq.ParquetWriter(partial, DROPPED_SCHEMA, compression="zstd"))
            self.files.append(f"{DROPPED}/{self.path.name}")
        self._writer.write_table(table)

    def _batch_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            arrays = map(pa.array, zip(*rows, strict=True), DROPPED_SCHEMA.types)
            self._batches.append(pa.record_batch([*arrays], DROPPED_SCHEMA))


@contextmanager
def recorded_tallies(output: Path) -> Iterator[Tallies]:
    """The tallies of a unit, which record what they drop in ``dropped/<name>`` beside its output, when the block ends.

    That is one file per unit: written as the unit goes, in the order of its documents (of those that are counted by
    the batch, source by source), and the same on any engine.
    """
    with ExitStack() as stack:
        drops = DropFile(output.parent / DROPPED / output.name, stack)
        yield Tallies(drops)
        drops.flush()


class Tallies:
    """One ``Tally`` per source, for units whose shard may hold several sources."""

    def __init__(self, drops: DropFile | None = None) -> None:
        self._by_source: dict[str, Tally] = {}
        self._drops = drops

    def __getitem__(self, source: str) -> Tally:
        """The tally of this source, created at its first use."""
        if source not in self._by_source:
            self._by_source[source] = Tally(source, self._drops)
        return self._by_source[source]

    def count(self, batch: pa.RecordBatch, fates: Fates) -> None:
        """Count, record and show the documents of a batch by source; see ``Tally.count``."""
        sources = batch["source"].dictionary_encode()
        numbers, kept = sources.indices.to_numpy(), fates.numbers < 0
        for number, source in enumerate(sources.dictionary.to_pylist()):
            own = numbers == number
            part = Fates(fates.numbers[own], fates.reasons, fates.scores[own], fates.lengths[own],
                         fates.lengths_out[own[kept] if fates.origin is None else own[fates.origin]])  # fmt: skip
            self[source].count(batch if own.all() else batch.filter(pa.array(own)), part)

    @property
    def files(self) -> list[str]:
        """The record of what was dropped, from the folder of the unit's output, where something was."""
        return [] if self._drops is None else self._drops.files

    def summary(self) -> Summary:
        """All tallies as JSON, sources by name, for a unit's manifest, with ``files``."""
        parts = [self._by_source[source].summary() for source in sorted(self._by_source)]
        return {
            "files": self.files,
            "sources": {source: counts for part in parts for source, counts in part["sources"].items()},
            "errors": [error for part in parts for error in part["errors"]],
            "lost": [file for part in parts for file in part["lost"]],
            "shown": [example for part in parts for example in part["shown"]],
        }


def order_sources(summaries: Iterable[Summary], order: Sequence[str]) -> list[str]:
    """The sources in ``order``, then all others of these units' summaries by name."""
    sources = {source for summary in summaries for source in summary["sources"]}
    return [*order, *sorted(sources.difference(order))]


def stage_summary(name: str, summaries: Iterable[Summary], order: Sequence[str], alarm_share: float = 1.0) -> Summary:
    """Add up the summaries of a stage's units, sources in this order; ``seconds`` is left for the caller to set.

    ``alarms`` has a ``loss_alarm`` for each source that loses more than ``alarm_share`` of its documents.
    """
    sources: dict[str, Any] = {
        source: {**dict.fromkeys(COUNTS, 0), "failed": 0, "dropped": Counter(), "lengths": Counter()}
        for source in order
    }
    errors: list[dict[str, str]] = []
    lost: list[dict[str, str]] = []
    shown: list[dict[str, Any]] = []
    for summary in summaries:
        errors += summary.get("errors", [])
        lost += summary.get("lost", [])
        shown += summary.get("shown", [])
        for source, tally in summary["sources"].items():
            for count in COUNTS:
                sources[source][count] += tally[count]
            sources[source]["failed"] += tally.get("failed", 0)
            sources[source]["dropped"].update(tally["dropped"])
            if lost_metadata := tally.get("metadata_lost"):
                sources[source].setdefault("metadata_lost", Counter()).update(lost_metadata)
            sources[source]["lengths"].update(tally["lengths"])
    for total in sources.values():
        total["dropped"] = dict(sorted(total["dropped"].items()))
        total["lengths"] = dict(sorted(total["lengths"].items(), key=lambda item: int(item[0])))
    totals: dict[str, Any] = {count: sum(total[count] for total in sources.values()) for count in COUNTS}
    head = {"name": name, "seconds": 0.0, **totals, "sources": sources}
    alarms = [
        alarm
        for source, total in sources.items()
        if (alarm := loss_alarm(name, source, total["documents_in"], total["dropped"], alarm_share)) is not None
    ]
    read = {"errors": errors[:ERRORS_SHOWN], "files_lost": len(lost), "lost": lost[:ERRORS_SHOWN]}
    return {**head, "alarms": alarms, **read, "shown": _choose_examples(shown, order)}


def loss_alarm(
    stage: str, source: str, documents: int, dropped: Mapping[str, int], alarm_share: float
) -> dict[str, str] | None:
    """Source and message of a stage that drops more than this share of the source's documents; None where it does not.

    ``dropped`` counts by reason. The message names the share, the foremost reason and the setting.
    """
    lost = sum(dropped.values())
    if lost <= alarm_share * documents:
        return None
    reason, most = max(dropped.items(), key=lambda item: (item[1], item[0]))
    mostly = reason if most == lost else f"{most:,} of them as {reason}"
    message = (
        f"{stage} drops {lost / documents:.1%} of {source}: {lost:,} of {documents:,} documents, {mostly}; "
        f"more than {stage}.alarm_share = {alarm_share:g}"
    )
    return {"source": source, "message": message}


def _choose_examples(shown: list[dict[str, Any]], order: Sequence[str]) -> list[dict[str, Any]]:
    """The examples of lowest CRC-32 of each source and fate: sources in this order, fates by name."""
    positions = {source: position for position, source in enumerate(order)}
    taken: Counter[tuple[str, str]] = Counter()
    examples = []
    for example in sorted(shown, key=lambda example: (crc32(example["key"].encode()), example["key"])):
        group = (example["source"], example["fate"])
        taken[group] += 1
        if taken[group] <= SHOWN_PER_FATE:
            examples.append(example)
    return sorted(examples, key=lambda example: (positions[example["source"]], example["fate"]))


def read_failure(stage: Summary, max_failed: float) -> str | None:
    """Why a stage that read source files must not pass for a success, in one line; None where nothing was lost.

    That is a file that ended early or held nothing, or more than this share of a source's records unreadable.
    """
    unreadable = []
    for source, counts in stage["sources"].items():
        failed, total = counts["failed"], counts["documents_in"]
        if failed > max_failed * total:
            share = f"({failed / total:.1%}), more than max_failed = {max_failed:.1%}"
            unreadable.append(f"{source}: {failed:,} of {total:,} records could not be read {share}")
    named = stage["lost"] or (stage["errors"] if unreadable else [])
    more = f" (and {stage['files_lost'] - 1} more)" if stage["files_lost"] > 1 else ""
    return "; ".join([f"{one['where']}: {one['what']}{more}" for one in named[:1]] + unreadable) or None


def passthrough_summary(source: str, before: Summary) -> Summary:
    """The summary of a source that skips a stage; ``before`` are its counts after the stage before."""
    counts = {count: before[count.replace("_in", "_out")] for count in COUNTS}
    return {"sources": {source: {**counts, "dropped": {}, "lengths": before.get("lengths", {})}}}


def merge_summaries(summaries: Sequence[Summary]) -> Summary:
    """The summaries of all stages, in their order, as the object of ``summary.json``."""
    seconds = round(sum(summary["seconds"] for summary in summaries), 3)
    apart = {*TOP_LEVEL, *INTERNAL}
    stages = [{key: value for key, value in summary.items() if key not in apart} for summary in summaries]
    top_level = {key: summary[key] for summary in summaries for key in TOP_LEVEL if key in summary}
    return {"version": 1, "seconds": seconds, "stages": stages, **top_level}


def say_summary(summary: Summary, note: str) -> None:
    """Print a stage's line, with this note, and its alarms."""
    say(f"{summary_line(summary)} ({note})")
    for alarm in summary["alarms"]:
        say(f"WARNING: {alarm['message']}")


def summary_line(summary: Summary) -> str:
    """One line for a person: what a stage kept, what it dropped and why."""
    kept, total = summary["documents_out"], summary["documents_in"]
    # Decontamination may write more documents than it reads: a cut makes two of one.
    documents = f"kept {kept:,} of {total:,} documents" if kept <= total else f"made {kept:,} of {total:,} documents"
    share = f" ({kept / total:.1%})" if 0 < kept <= total else ""
    reasons: Counter[str] = Counter()
    metadata_lost: Counter[str] = Counter()
    for source in summary["sources"].values():
        reasons.update(source.get("dropped", {}))
        metadata_lost.update(source.get("metadata_lost", {}))
    why, lost = (", ".join(f"{name} {n:,}" for name, n in counts.most_common()) for counts in (reasons, metadata_lost))
    millions = f"{summary['characters_in'] / 1e6:.1f} → {summary['characters_out'] / 1e6:.1f} M characters"
    dropped = f"; dropped: {why}" if why else ""
    without = f"; kept without their metadata: {lost}" if lost else ""
    return f"{summary['name']}: {documents}{share}, {millions}{dropped}{without}"
