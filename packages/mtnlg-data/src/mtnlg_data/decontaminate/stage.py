"""Decontamination: cuts the tasks' n-grams, with the text around them, out of the documents (paper.md 4.4).

    match   find the n-grams, and which of them are common (ngrams.py, matches.py)
    plan    cut the first match, ``window`` characters on each side and on to the next of . ! ?; repeat on the rest to
            the right. Drop pieces shorter than ``shortest`` characters, and documents of more than ``most_splits``
            pieces as a whole (cut_planning.py)
    ledger  list every cut, a file for each shard: where, which n-gram, of which row of which task
    cut     write the documents without what is cut

Offsets are into the original text, and a match ends where its last word ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.document import UnitOutput, number_shards, read_documents, read_rows, replace_columns, write_documents
from mtnlg_data.engine import CUTS, StageFolder, Unit
from mtnlg_data.files import atomic_path, sha256
from mtnlg_data.tally import EXCERPT_CHARACTERS, KEPT, order_sources, recorded_tallies, stage_summary

from .cut_planning import ShardCutPlans
from .matches import NGRAM_SCHEMA, NgramUnit, RareUnit, ScanUnit, choose_rare, run_counts, scan_shard, write_ngrams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.steps.decontaminate import DecontaminateSettings
    from mtnlg_data.tally import Tallies, Tally

    from .cut_planning import CutPlan

SAMPLES = 12
SAMPLE_CHARACTERS = 100  # on each side of a match
#: One row per cut and task text with its n-gram; offsets are characters of the document before cutting.
LEDGER_SCHEMA = pa.schema(
    [
        pa.field("document", pa.string(), nullable=False),  # its id
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("ngram", pa.large_string(), nullable=False),
        pa.field("cut_start", pa.int64(), nullable=False),
        pa.field("cut_end", pa.int64(), nullable=False),
        pa.field("fate", pa.string(), nullable=False),  # of the document: "cut", or the reason it was dropped
    ]
)


def decontaminate_documents(
    shards: Sequence[Path], out: Path, settings: DecontaminateSettings, texts: Path | None, engine: Engine
) -> Summary:
    """Write ``out/<shard name>`` without the tasks' n-grams, and the ledger of its cuts, ``out/cuts/<shard name>``.

    ``texts`` is the file that ``mtnlg-eval texts`` writes; without it every document passes. Returns the stage's
    summary with ``decontamination``.
    """
    stage = StageFolder(out, "decontaminate", engine)
    state = stage.state
    checksum = None if texts is None else sha256(texts)
    ngrams = NgramUnit(texts, checksum, settings.n, settings.minimum, state / "ngrams.parquet")
    scans = [
        ScanUnit(shard, ngrams, settings.window, state / f"{shard.path.stem}.matches.parquet")
        for shard in number_shards(shards)
    ]
    stage.run(write_ngrams, [ngrams], "decontaminate: n-grams")
    stage.run(scan_shard, scans, "decontaminate: scan")
    rare = RareUnit(run_counts(scans, stage), ngrams, settings.common, state / "cut.npy")
    counts = stage.run(choose_rare, [rare], "decontaminate: choose")[0]
    plans = [ShardCutPlans(scan, UnitOutput.of(rare), settings) for scan in scans]
    parts = [LedgerUnit(plan, out / CUTS / plan.scan.shard.path.name) for plan in plans]
    part_summaries = stage.run(write_ledger, parts, "decontaminate: ledger")
    cuts = [CutUnit(plan, out / plan.scan.shard.path.name) for plan in plans]
    summaries = stage.run(cut_shard, cuts, "decontaminate: cut")
    stage.finish(cut.output for cut in cuts)
    cuts_by_task: Counter[str] = Counter()
    for summary in part_summaries:
        cuts_by_task.update(summary["cuts_by_task"])
    samples = [sample for summary in summaries for sample in summary["samples"]]
    return {
        **stage_summary("decontaminate", summaries, order_sources(summaries, ()), settings.alarm_share),
        "decontamination": {
            "documents_cut": sum(summary["documents_cut"] for summary in part_summaries),
            "documents_dropped": sum(summary["documents_dropped"] for summary in part_summaries),
            "cuts_by_task": dict(sorted(cuts_by_task.items())),
            "ngrams_common": counts["common"],
            "samples": samples[:: -(-len(samples) // SAMPLES) or 1],
        },
    }


@dataclass(frozen=True)
class LedgerUnit(Unit):
    """Unit: the cut plans of one shard → the ledger of its cuts."""

    plans: ShardCutPlans
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("entries", self.plans.key)


def write_ledger(unit: LedgerUnit) -> Summary:
    """Write the ledger of one shard; the summary counts documents cut and dropped, and cuts by task."""
    plans = list(unit.plans)
    shard, ngrams = unit.plans.scan.shard, unit.plans.scan.ngrams.output
    names = [
        name
        for _, batch in read_rows(shard.path, np.array([row for row, _ in plans], np.int64), ["id", "key", "source"])
        for name in zip(*(column.to_pylist() for column in batch), strict=True)
    ]
    ngram_table = pq.read_table(ngrams) if plans else NGRAM_SCHEMA.empty_table()
    cuts_by_task: Counter[str] = Counter()
    rows: list[tuple[Any, ...]] = []
    for name, (_, plan) in zip(names, plans, strict=True):
        for (start, end, number, *_), *span in plan.cuts:
            ngram, tasks, ids = (ngram_table[column][number].as_py() for column in NGRAM_SCHEMA.names)
            cuts_by_task.update(set(tasks))
            fate = plan.reason or "cut"
            rows += [(*name, *task, start, end, ngram, *span, fate) for task in zip(tasks, ids, strict=True)]
    with atomic_path(unit.output) as partial:
        columns = zip(*rows, strict=True) if rows else [[] for _ in LEDGER_SCHEMA]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LEDGER_SCHEMA, strict=True)]
        pq.write_table(pa.table(arrays, LEDGER_SCHEMA), partial, compression="zstd")
    dropped = sum(plan.reason is not None for _, plan in plans)
    return {
        "documents_cut": len(plans) - dropped,
        "documents_dropped": dropped,
        "cuts_by_task": dict(sorted(cuts_by_task.items())),
    }


@dataclass(frozen=True)
class CutUnit(Unit):
    """Unit: one shard and its cut plans → its documents without what is cut."""

    plans: ShardCutPlans
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("cut", self.plans.key)


def cut_shard(unit: CutUnit) -> Summary:
    """Write one shard's documents; the summary has the tallies and sample cuts with the text around them."""
    samples: list[tuple[int, dict[str, Any]]] = []
    with recorded_tallies(unit.output) as tallies:
        write_documents(unit.output, _cut_documents(unit, tallies, samples))
    ngrams = pq.read_table(unit.plans.scan.ngrams.output) if samples else NGRAM_SCHEMA.empty_table()
    named_samples = [
        {**sample, "tasks": sorted(set(ngrams["tasks"][ngram].as_py())), "ngram": ngrams["ngram"][ngram].as_py()}
        for ngram, sample in samples
    ]
    return {**tallies.summary(), "samples": named_samples}


def _cut_documents(unit: CutUnit, tallies: Tallies, samples: list[tuple[int, dict[str, Any]]]) -> Iterator[pa.Table]:
    plans = iter(unit.plans)
    row, plan = next(plans, (-1, None))
    first = 0
    for batch in read_documents(unit.plans.scan.shard.path):
        lengths = pc.utf8_length(batch["text"]).to_pylist()
        sources, ids, keys = (batch[name].to_pylist() for name in ("source", "id", "key"))
        excerpts = pc.utf8_slice_codeunits(batch["text"], 0, EXCERPT_CHARACTERS).to_pylist()
        parts, begin = [], 0  # ``parts`` holds the batch's rows before ``begin``, cut
        for index, (source, length) in enumerate(zip(sources, lengths, strict=True)):
            if first + index != row or plan is None:
                tallies[source].keep(length)
                tallies[source].show(KEPT, ids[index], excerpts[index], key=keys[index])
                continue
            document = batch.slice(index, 1)
            samples += _sample_cuts(document, plan)[: SAMPLES - len(samples)]
            parts += [batch.slice(begin, index - begin), _cut_document(document, plan, tallies[source])]
            begin = index + 1
            row, plan = next(plans, (-1, None))
        yield pa.Table.from_batches([*parts, batch.slice(begin)]).combine_chunks()
        first += batch.num_rows


def _cut_document(document: pa.RecordBatch, plan: CutPlan, tally: Tally) -> pa.RecordBatch:
    """The pieces of a document with matches: none, the shortened document, or ``<id>#0``, ``<id>#1``, ..."""
    text, name, key = (document[column][0].as_py() for column in ("text", "id", "key"))
    if plan.reason:
        tally.drop(len(text), plan.reason, name, len(plan.kept), key)
        return document.slice(1)
    pieces = [text[start:end] for start, end in plan.kept]
    tally.keep(len(text), sum(map(len, pieces)))
    tally.counts["documents_out"] += len(pieces) - 1
    if len(pieces) == 1:
        return replace_columns(document, {"text": pieces})
    names = {column: [f"{whole}#{n}" for n in range(len(pieces))] for column, whole in (("id", name), ("key", key))}
    repeated = document.take(pa.array([0] * len(pieces)))
    return replace_columns(repeated, {**names, "text": pieces})


def _sample_cuts(document: pa.RecordBatch, plan: CutPlan) -> list[tuple[int, dict[str, Any]]]:
    """N-gram and surrounding text of each cut."""
    text, name, size = document["text"][0].as_py(), document["id"][0].as_py(), SAMPLE_CHARACTERS
    return [
        (match.ngram, {"document": name, "text": text[max(0, match.start - size) : match.end + size]})
        for match, *_ in plan.cuts
    ]
