"""Decontaminate: the tasks' n-grams, and what stands around them, out of the documents (paper.md 4.4).

    scan    where any n-gram stands, every shard once
    count   in how many documents each stands, over all shards: those in ``common`` or more are left alone
    cut     the first n-gram left in a text, ``window`` characters on each side of it, and on to the next of . ! ? is
            taken out; what is right of it is treated alike. Pieces under ``shortest`` characters go; a document in
            more than ``most_splits`` pieces goes as a whole

Offsets are those of the text itself, and a match ends where its last word ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from .document import SCHEMA, read_documents, write_documents
from .engine import key_of, run_units
from .files import aside, replacing, sha256
from .funnel import EXCERPT, KEPT, stage
from .ngrams import Match, NgramSet, read_task_texts, task_ngrams
from .settings import Settings
from .shards import Made, Tallies, in_order, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .engine import Engine, Summary
    from .shards import Shard

ENDS = ".!?"
SAMPLES = 12
MATCHES = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("row", "start", "end", "ngram")],
)
NGRAMS = pa.schema([pa.field("ngram", pa.large_string()), pa.field("tasks", pa.list_(pa.string()))])


class DecontaminateSettings(Settings):
    """Which overlap is contamination, and what is cut; the defaults are the paper's (4.4)."""

    n: PositiveInt = Field(13, description="words of an n-gram")
    minimum: PositiveInt = Field(8, description="words of the shortest task text that counts as one n-gram")
    common: PositiveInt = Field(10, description="n-grams in so many documents are left alone")
    window: NonNegativeInt = Field(200, description="characters cut on each side of a match")
    shortest: NonNegativeInt = Field(200, description="characters of the shortest piece that is kept")
    most_splits: PositiveInt = Field(10, description="pieces of a document that is kept")

    @model_validator(mode="after")
    def _are_in_order(self) -> Self:
        if self.minimum > self.n:
            raise ValueError(f"minimum = {self.minimum} is more than n = {self.n}")
        return self


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
    with aside(unit.output) as partial:
        table = pa.table([pa.array(ngrams, pa.large_string()), pa.array(ngrams.values(), NGRAMS.types[1])], NGRAMS)
        pq.write_table(table, partial, compression="zstd")
    return {"ngrams": len(ngrams)}


@dataclass(frozen=True)
class Scan:
    """Unit: one shard → where which n-grams stand in it, as ``MATCHES``."""

    shard: Shard
    ngrams: Ngrams
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("scan", self.shard.checksum, self.ngrams.key)


def scan(unit: Scan) -> Summary:
    """Run one unit."""
    ngrams = _ngram_set(Made.by(unit.ngrams), unit.ngrams.minimum)
    found: list[tuple[int, int, int, int]] = []
    first = 0
    for batch in read_documents(unit.shard.path, ["text"]) if len(ngrams.ngrams) else ():
        texts = batch["text"].to_pylist()
        found += [(first + row, *match) for row, matches in enumerate(ngrams.search(texts)) for match in matches]
        first += len(texts)
    columns = zip(*found, strict=True) if found else ([] for _ in MATCHES)
    with aside(unit.output) as partial:
        pq.write_table(pa.table([pa.array(c, pa.int64()) for c in columns], MATCHES), partial, compression="zstd")
    return {"matches": len(found)}


@lru_cache(maxsize=1)
def _ngram_set(made: Made, minimum: int) -> NgramSet:
    """Read once a worker."""
    return NgramSet(pq.read_table(made.path)["ngram"].to_pylist(), minimum)


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
    """Run one unit."""
    documents = np.zeros(pq.read_metadata(unit.ngrams.output).num_rows, np.int64)
    for part in unit.scans:
        table = pq.read_table(part.output, columns=["ngram", "row"])
        pairs = np.unique(table["ngram"].to_numpy() * part.shard.rows + table["row"].to_numpy())
        documents += np.bincount(pairs // max(1, part.shard.rows), minlength=len(documents))
    is_cut = documents < unit.common
    with replacing(unit.output) as file:
        np.save(file, is_cut)
    return {"found": int((documents > 0).sum()), "common": int((~is_cut).sum())}


@dataclass(frozen=True)
class Cut:
    """Unit: one shard, what was found in it, and what is to be cut → its documents without that."""

    scan: Scan
    count: Made
    settings: DecontaminateSettings
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("cut", self.scan.shard.checksum, self.count.key, self.settings.model_dump())


def cut(unit: Cut) -> Summary:
    """Run one unit; beside the tallies the summary has cuts by task and some of the cuts."""
    found = pq.read_table(unit.scan.output)
    is_cut = np.load(unit.count.path)
    found = found.filter(pa.array(is_cut[found["ngram"].to_numpy()], pa.bool_()))
    matches: dict[int, list[Match]] = {}
    for row, *match in zip(*(column.to_pylist() for column in found.columns), strict=True):
        matches.setdefault(row, []).append(Match(*match))
    report = _Report(unit.scan.ngrams.output if matches else None)
    write_documents(unit.output, _cut_documents(unit, matches, report))
    return report.summary()


class _Report:
    """What a unit tells of its cuts."""

    def __init__(self, ngrams: Path | None) -> None:
        table = pq.read_table(ngrams) if ngrams else pa.table({"ngram": [], "tasks": []})
        self._ngrams, self._tasks = table["ngram"], table["tasks"]
        self.tallies = Tallies()
        self._counts = {"documents_cut": 0, "documents_dropped": 0}
        self._by_task: Counter[str] = Counter()
        self._samples: list[dict[str, Any]] = []

    def add(self, document: dict[str, Any], cuts: Sequence[Match], *, is_dropped: bool) -> None:
        self._counts["documents_dropped" if is_dropped else "documents_cut"] += 1
        for match in cuts:
            tasks = self._tasks[match.ngram].as_py()
            self._by_task.update(tasks)
            if len(self._samples) < SAMPLES:
                around = document["text"][max(0, match.start - 100) : match.end + 100]
                ngram = self._ngrams[match.ngram].as_py()
                self._samples.append({"document": document["id"], "tasks": tasks, "ngram": ngram, "text": around})

    def summary(self) -> Summary:
        by_task = dict(sorted(self._by_task.items()))
        return {**self.tallies.summary(), **self._counts, "cuts_by_task": by_task, "samples": self._samples}


def _cut_documents(unit: Cut, matches: dict[int, list[Match]], report: _Report) -> Iterator[pa.Table]:
    first = 0
    for batch in read_documents(unit.scan.shard.path):
        lengths, sources = pc.utf8_length(batch["text"]).to_pylist(), batch["source"].to_pylist()
        names, beginnings = batch["id"].to_pylist(), pc.utf8_slice_codeunits(batch["text"], 0, EXCERPT).to_pylist()
        parts, after = [], 0
        for row in range(batch.num_rows):
            if first + row in matches:
                document = batch.slice(row, 1).to_pylist()[0]
                left = _left_of(document, matches[first + row], unit.settings, report)
                parts += [batch.slice(after, row - after), pa.RecordBatch.from_pylist(left, SCHEMA)]
                after = row + 1
            else:
                tally = report.tallies[sources[row]]
                tally.keep(lengths[row])
                tally.show(KEPT, names[row], beginnings[row])
        yield pa.Table.from_batches([*parts, batch.slice(after)], SCHEMA).combine_chunks()
        first += batch.num_rows


def _left_of(
    document: dict[str, Any], matches: Sequence[Match], settings: DecontaminateSettings, report: _Report
) -> list[dict[str, Any]]:
    """The documents that a document with matches leaves: none, itself shortened, or ``<id>#0``, ``<id>#1``, ..."""
    text, tally = document["text"], report.tallies[document["source"]]
    kept, cuts = pieces(text, matches, settings.window, settings.shortest)
    is_dropped = not 0 < len(kept) <= settings.most_splits
    report.add(document, cuts, is_dropped=is_dropped)
    if is_dropped:
        tally.drop(len(text), "split" if kept else "contaminated")
        return []
    tally.keep(len(text), sum(map(len, kept)))
    tally.counts["documents_out"] += len(kept) - 1
    if len(kept) == 1:
        return [{**document, "text": kept[0]}]
    return [{**document, "id": f"{document['id']}#{number}", "text": piece} for number, piece in enumerate(kept)]


def pieces(text: str, matches: Sequence[Match], window: int, shortest: int) -> tuple[list[str], list[Match]]:
    """What is left of a text, piece by piece, and the matches (in order of start) that were cut for it."""
    begin, kept, cuts = 0, [], []
    for match in matches:
        if match.start < begin:
            continue
        if begin and len(text) - begin < shortest:
            break
        cuts.append(match)
        last = max(text.rfind(end, begin + 1, max(begin + 1, match.start - window + 1)) for end in ENDS)
        if last > 0:
            kept.append(text[begin : last + 1])
        following = [place for end in ENDS if (place := text.find(end, match.end + window)) >= 0]
        begin = min(following, default=len(text)) + 1
    kept.append(text[begin:])
    return [piece for piece in kept if len(piece) >= max(1, shortest)], cuts


def decontaminate(
    shards: Sequence[Path], out: Path, settings: DecontaminateSettings, texts: Path | None, engine: Engine
) -> Summary:
    """Write ``out/<shard name>`` without the tasks' n-grams; returns the stage's account with ``decontamination``.

    ``texts`` is what ``mtnlg-eval texts`` writes; without it everything passes.
    """
    checksum = None if texts is None else sha256(texts)
    ngrams = Ngrams(texts, checksum, settings.n, settings.minimum, out / "state" / "ngrams.parquet")
    scans = tuple(Scan(s, ngrams, out / "state" / f"{s.path.stem}.matches.parquet") for s in numbered(shards))
    counted = Count(scans, ngrams, settings.common, out / "state" / "cut.npy")
    units = [Cut(part, Made.by(counted), settings, out / part.shard.path.name) for part in scans]
    run_units(engine, list_ngrams, [ngrams], "decontaminate: n-grams")
    run_units(engine, scan, scans, "decontaminate: scan")
    found = run_units(engine, count, [counted], "decontaminate: count")[0]
    summaries = run_units(engine, cut, units, "decontaminate: cut")
    by_task: Counter[str] = Counter()
    for summary in summaries:
        by_task.update(summary["cuts_by_task"])
    samples = [sample for summary in summaries for sample in summary["samples"]]
    return {
        **stage("decontaminate", summaries, in_order(summaries, ())),
        "decontamination": {
            "documents_cut": sum(summary["documents_cut"] for summary in summaries),
            "documents_dropped": sum(summary["documents_dropped"] for summary in summaries),
            "cuts_by_task": dict(sorted(by_task.items())),
            "ngrams_common": found["common"],
            "samples": samples[:: -(-len(samples) // SAMPLES) or 1],
        },
    }
