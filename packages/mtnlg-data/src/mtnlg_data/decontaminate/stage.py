"""Decontaminate: the tasks' n-grams, and what stands around them, out of the documents (paper.md 4.4).

    find     where the n-grams stand, and which are common (matches.py)
    decide   the first match left in a text, ``window`` characters on each side of it, and on to the next of . ! ? is
             taken out; what is right of it is treated alike. Pieces under ``shortest`` characters go; a document in
             more than ``most_splits`` pieces goes as a whole (decisions.py)
    enter    every cut into the ledger: where, which n-gram, of which row of which task
    cut      the documents, written without it

Offsets are those of the text itself, and a match ends where its last word ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.document import SCHEMA, Made, Tallies, in_order, numbered, read_documents, rows_of, write_documents
from mtnlg_data.engine import key_of, run_units
from mtnlg_data.files import aside, sha256
from mtnlg_data.tally import EXCERPT, KEPT, stage

from .cut_planning import Decisions, DecontaminateSettings
from .matches import NGRAMS, Count, Ngrams, Scan, count, list_ngrams, scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary

    from .cut_planning import Decision

SAMPLES = 12
SAMPLE_CHARACTERS = 100  # on each side of a match
#: A row for every cut and every task text that has its n-gram; places are characters of the document as it came.
LEDGER = pa.schema(
    [
        pa.field("document", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("ngram", pa.large_string(), nullable=False),
        pa.field("cut_start", pa.int64(), nullable=False),
        pa.field("cut_end", pa.int64(), nullable=False),
        pa.field("fate", pa.string(), nullable=False),  # of the document: "cut", or the reason for which it is dropped
    ]
)


@dataclass(frozen=True)
class Entries:
    """Unit: the decisions on one shard → its part of the ledger."""

    decisions: Decisions
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("entries", self.decisions.key)


def enter(unit: Entries) -> Summary:
    """Run one unit; the summary has documents cut and dropped, and cuts by task."""
    decided = list(unit.decisions)
    shard, ngrams = unit.decisions.scan.shard, unit.decisions.scan.ngrams.output
    names = [
        name
        for _, table in rows_of(shard.path, np.array([row for row, _ in decided], np.int64), ["id", "source"])
        for name in zip(table["id"].to_pylist(), table["source"].to_pylist(), strict=True)
    ]
    known = pq.read_table(ngrams) if decided else NGRAMS.empty_table()
    by_task: Counter[str] = Counter()
    rows: list[tuple[Any, ...]] = []
    for name, (_, decision) in zip(names, decided, strict=True):
        for (start, end, number, *_), *span in decision.cuts:
            ngram, tasks, ids = (known[column][number].as_py() for column in NGRAMS.names)
            by_task.update(set(tasks))
            rows += [
                (*name, *of, start, end, ngram, *span, decision.reason or "cut") for of in zip(tasks, ids, strict=True)
            ]
    with aside(unit.output) as partial:
        columns = zip(*rows, strict=True) if rows else [[] for _ in LEDGER]
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, LEDGER, strict=True)], LEDGER)
        pq.write_table(table, partial, compression="zstd")
    dropped = sum(decision.reason is not None for _, decision in decided)
    return {
        "documents_cut": len(decided) - dropped,
        "documents_dropped": dropped,
        "cuts_by_task": dict(sorted(by_task.items())),
    }


@dataclass(frozen=True)
class Ledger:
    """Unit: the parts of all shards → one table, in the order of the shards."""

    parts: Sequence[Made]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("cuts", [part.key for part in self.parts])


def join(unit: Ledger) -> Summary:
    """Run one unit."""
    count = 0
    with aside(unit.output) as partial, pq.ParquetWriter(partial, LEDGER, compression="zstd") as writer:
        for part in unit.parts:
            table = pq.read_table(part.path)
            if table.num_rows:
                writer.write(table)
            count += table.num_rows
    return {"rows": count}


@dataclass(frozen=True)
class Cut:
    """Unit: one shard and the decisions on it → its documents without what is cut."""

    decisions: Decisions
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("cut", self.decisions.key)


def cut(unit: Cut) -> Summary:
    """Run one unit; beside the tallies the summary has some of the cuts, with what stands around them."""
    tallies = Tallies()
    samples: list[tuple[int, dict[str, Any]]] = []
    write_documents(unit.output, _cut_documents(unit, tallies, samples))
    known = pq.read_table(unit.decisions.scan.ngrams.output) if samples else NGRAMS.empty_table()
    told = [
        {**sample, "tasks": sorted(set(known["tasks"][ngram].as_py())), "ngram": known["ngram"][ngram].as_py()}
        for ngram, sample in samples
    ]
    return {**tallies.summary(), "samples": told}


def _cut_documents(unit: Cut, tallies: Tallies, samples: list[tuple[int, dict[str, Any]]]) -> Iterator[pa.Table]:
    decided = iter(unit.decisions)
    row, decision = next(decided, (-1, None))
    first = 0
    for batch in read_documents(unit.decisions.scan.shard.path):
        lengths, sources = pc.utf8_length(batch["text"]).to_pylist(), batch["source"].to_pylist()
        names, beginnings = batch["id"].to_pylist(), pc.utf8_slice_codeunits(batch["text"], 0, EXCERPT).to_pylist()
        parts, after = [], 0
        for place, (source, length) in enumerate(zip(sources, lengths, strict=True)):
            if first + place != row or decision is None:
                tallies[source].keep(length)
                tallies[source].show(KEPT, names[place], beginnings[place])
                continue
            document = batch.slice(place, 1).to_pylist()[0]
            left = _left_of(document, decision, tallies)
            samples += _shown(document, decision)[: SAMPLES - len(samples)]
            parts += [batch.slice(after, place - after), pa.RecordBatch.from_pylist(left, SCHEMA)]
            after = place + 1
            row, decision = next(decided, (-1, None))
        yield pa.Table.from_batches([*parts, batch.slice(after)], SCHEMA).combine_chunks()
        first += batch.num_rows


def _left_of(document: dict[str, Any], decision: Decision, tallies: Tallies) -> list[dict[str, Any]]:
    """The documents that a document with matches leaves: none, itself shortened, or ``<id>#0``, ``<id>#1``, ..."""
    text, tally = document["text"], tallies[document["source"]]
    if decision.reason:
        tally.drop(len(text), decision.reason)
        return []
    kept = [text[start:end] for start, end in decision.kept]
    tally.keep(len(text), sum(map(len, kept)))
    tally.counts["documents_out"] += len(kept) - 1
    if len(kept) == 1:
        return [{**document, "text": kept[0]}]
    return [{**document, "id": f"{document['id']}#{number}", "text": piece} for number, piece in enumerate(kept)]


def _shown(document: dict[str, Any], decision: Decision) -> list[tuple[int, dict[str, Any]]]:
    around = SAMPLE_CHARACTERS
    return [
        (
            match.ngram,
            {"document": document["id"], "text": document["text"][max(0, match.start - around) : match.end + around]},
        )
        for match, *_ in decision.cuts
    ]


def decontaminate_documents(
    shards: Sequence[Path], out: Path, settings: DecontaminateSettings, texts: Path | None, engine: Engine
) -> Summary:
    """Write ``out/<shard name>`` without the tasks' n-grams, and ``out/cuts.parquet``, the ledger of what was cut.

    ``texts`` is what ``mtnlg-eval texts`` writes; without it everything passes. Returns the stage's account with
    ``decontamination``.
    """
    state = out / "state"
    checksum = None if texts is None else sha256(texts)
    ngrams = Ngrams(texts, checksum, settings.n, settings.minimum, state / "ngrams.parquet")
    scans = tuple(Scan(s, ngrams, settings.window, state / f"{s.path.stem}.matches.parquet") for s in numbered(shards))
    counted = Count(scans, ngrams, settings.common, state / "cut.npy")
    decisions = [Decisions(part, Made.by(counted), settings) for part in scans]
    entries = [Entries(of, state / f"{of.scan.shard.path.stem}.cuts.parquet") for of in decisions]
    ledger = Ledger([Made.by(unit) for unit in entries], out / "cuts.parquet")
    cuts = [Cut(of, out / of.scan.shard.path.name) for of in decisions]
    run_units(engine, list_ngrams, [ngrams], "decontaminate: n-grams")
    run_units(engine, scan, scans, "decontaminate: scan")
    found = run_units(engine, count, [counted], "decontaminate: count")[0]
    entered = run_units(engine, enter, entries, "decontaminate: ledger")
    run_units(engine, join, [ledger], "decontaminate: join")
    summaries = run_units(engine, cut, cuts, "decontaminate: cut")
    by_task: Counter[str] = Counter()
    for summary in entered:
        by_task.update(summary["cuts_by_task"])
    samples = [sample for summary in summaries for sample in summary["samples"]]
    return {
        **stage("decontaminate", summaries, in_order(summaries, ())),
        "decontamination": {
            "documents_cut": sum(summary["documents_cut"] for summary in entered),
            "documents_dropped": sum(summary["documents_dropped"] for summary in entered),
            "cuts_by_task": dict(sorted(by_task.items())),
            "ngrams_common": found["common"],
            "samples": samples[:: -(-len(samples) // SAMPLES) or 1],
        },
    }
