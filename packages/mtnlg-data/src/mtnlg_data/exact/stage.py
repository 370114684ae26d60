"""Exact deduplication across all sources: keeps one copy of documents, lines and passages that recur.

    tokens.py   texts → hashes of documents, lines and windows of tokens
    repeats.py  hashes of all shards → what recurs in each
    cuts.py     what recurs → texts without it

All kinds are searched in the same texts, and what any of them finds is removed. No content is lost: of two equal things
the one in the earlier document stays, in the same order for every kind. A passage may be left in pieces, though: the
line that it begins with in one document, the rest of it in another.

Things are compared by 64-bit hashes. Among a billion different documents, the chance that two share a hash is 3 %.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mtnlg_data.document import replace_columns
from mtnlg_data.exchange import Numbering, count_ranges
from mtnlg_data.step import KEPT, Outcome
from mtnlg_data.tally import EXCERPT_CHARACTERS, key_ranks, lowest
from mtnlg_data.text.arrays import column_of, text_lengths, texts_of

from .cuts import cut_texts, merge_spans
from .repeats import places, write_anchors, write_recurring, write_repeats, write_things

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mtnlg_data.array_types import Int64s
    from mtnlg_data.document import Shard
    from mtnlg_data.exchange import Range, Rows
    from mtnlg_data.job import Job
    from mtnlg_data.step import Decide
    from mtnlg_data.steps.exact import ExactSettings, Kind
    from mtnlg_data.summary import Summary

REASONS = EQUAL, SHORT = "exact_document", "exact_remainder"
CUTS_SHOWN = 4  # of each kind
#: Name, source and effect of the rule of each kind.
RULES: dict[Kind, tuple[str, str, str]] = {
    "documents": (EQUAL, "Dolma", "documents dropped"),
    "lines": ("exact_line", "C4", "lines removed"),
    "substrings": ("exact_substring", "Lee et al. 2022", "passages removed"),
}


def find_repeats(job: Job, settings: ExactSettings) -> list[dict[Kind, Range]]:
    """The repeats of each shard, by kind; windows are searched around anchors that recur."""
    shards = job.shards
    numbering, numbered = Numbering(len(shards)), [(shard, number) for number, shard in enumerate(shards)]
    measures: dict[Kind, int] = {"lines": settings.shortest_line, "substrings": settings.substring_length}
    found: list[dict[Kind, Range]] = [{} for _ in shards]
    for kind in (kind for kind in RULES if kind in settings.kinds):
        anchors: list[Range] | list[None] = [None] * len(shards)
        if kind == "substrings":
            rows = job.rows("anchors", write_anchors, numbered, length=settings.substring_length)
            anchors = _compared(job, rows, write_recurring, numbering)
        items = [(*item, shard_anchors) for item, shard_anchors in zip(numbered, anchors, strict=True)]
        priority = list(job.step.sources)
        rows = job.rows(kind, write_things, items, kind=kind, measure=measures.get(kind, 0), priority=priority)
        for by_kind, repeats in zip(found, _compared(job, rows, write_repeats, numbering), strict=True):
            by_kind[kind] = repeats
    return found


def _compared(job: Job, rows: Rows, compare: Callable[..., Summary], numbering: Numbering) -> list[Range]:
    """Run ``compare`` on these rows, range by range; returns what it found, by shard."""
    ranges = rows.ranges(count_ranges(sum(done.summary["rows"] for done in rows.written)))
    repeats = job.rows(f"{rows.folder.name}-repeats", compare, ranges, shards=numbering)
    return repeats.ranges(numbering.total)[: numbering.total]


def cut_repeats(shard: Shard, found: Mapping[Kind, Range], shortest: int) -> Decide:
    """A function that cuts a shard's repeats, given by kind, batch by batch."""
    spans = {kind: _merged_spans(repeats) for kind, repeats in found.items()}
    equal = np.zeros(shard.rows, np.bool_)
    equal[spans.pop("documents", np.empty((0, 3), np.int64))[:, 0]] = True
    spans = {kind: some[~equal[some[:, 0]]] for kind, some in spans.items()}
    cuts = next(iter(spans.values()), np.empty((0, 3), np.int64))
    if len(spans) > 1:
        cuts = merge_spans(np.concatenate(list(spans.values())))
    first = 0

    def decide(batch: pa.RecordBatch) -> Outcome:
        nonlocal first
        rows = slice(first, first := first + batch.num_rows)
        in_batch = {RULES[kind][0]: _between(some, rows) for kind, some in spans.items()}
        samples = [sample for rule, some in in_batch.items() for sample in _samples(rule, batch, some)]
        remaining = batch
        if len(of_batch := _between(cuts, rows)):
            remaining = replace_columns(batch, {"text": column_of(cut_texts(texts_of(batch["text"]), of_batch))})
        before = text_lengths(batch["text"])
        after = before if remaining is batch else text_lengths(remaining["text"])
        is_short = ~equal[rows] & (after < np.minimum(before, shortest))
        decisions = np.where(equal[rows], REASONS.index(EQUAL), np.where(is_short, REASONS.index(SHORT), KEPT))
        if (decisions != KEPT).any():
            remaining = remaining.filter(pa.array(decisions == KEPT))
        counts = {rule: len(some) for rule, some in in_batch.items()}
        return Outcome(remaining, decisions, REASONS, np.where(is_short, after, np.nan), counts, samples)

    return decide


def _merged_spans(repeats: Range) -> Int64s:
    """The spans that repeats cover, merged."""
    parts = [merge_spans(places(table)[:, 1:]) for table in repeats.tables()]
    return merge_spans(np.concatenate([np.empty((0, 3), np.int64), *parts]))


def _between(spans: Int64s, rows: slice) -> Int64s:
    """The spans of these rows, with rows counted from the first."""
    begin, end = np.searchsorted(spans[:, 0], [rows.start, rows.stop])
    return np.asarray(spans[begin:end] - np.array([rows.start, 0, 0]))


def _samples(rule: str, batch: pa.RecordBatch, spans: Int64s) -> list[tuple[str, int, str, str, str]]:
    """Rule, hash, key, id and text of the first cut of the documents with the lowest hashes."""
    rows, first = np.unique(spans[:, 0], return_index=True)
    ranks = key_ranks(batch)[rows]
    samples = []
    for place in lowest(ranks, CUTS_SHOWN).tolist():
        row = int(rows[place])
        name, key = (batch[column][row].as_py() for column in ("id", "key"))
        raw = batch["text"][row].as_py().encode()[slice(*spans[first[place], 1:].tolist())]
        samples.append((rule, int(ranks[place]), key, name, raw.decode()[:EXCERPT_CHARACTERS]))
    return sorted(samples)[:CUTS_SHOWN]


def effects(summaries: Sequence[Summary], settings: ExactSettings) -> dict[str, Any]:
    """Source, threshold and effect of every rule, and the sample cuts with the lowest hashes."""
    counts: Counter[str] = Counter()
    for unit in summaries:
        counts.update(unit["counts"])
        for source in unit["sources"].values():
            counts.update(source["dropped"])
    thresholds = {"lines": settings.shortest_line, "substrings": settings.substring_length}
    rules = [(*RULES[kind], thresholds.get(kind)) for kind in RULES if kind in settings.kinds]
    if rules[-1][0] != EQUAL:
        rules.append((SHORT, "", "documents dropped", settings.shortest))
    samples = sorted(tuple(sample) for unit in summaries for sample in unit["samples"])
    return {
        "rules": [
            {"rule": rule, "published": source, "threshold": threshold, "effect": effect, "count": counts[rule]}
            for rule, source, effect, threshold in rules
        ],
        "cuts": [
            {"rule": rule, "document": name, "text": text}
            for rule, *_ in rules
            for _, _, name, text in [sample[1:] for sample in samples if sample[0] == rule][:CUTS_SHOWN]
        ],
    }
