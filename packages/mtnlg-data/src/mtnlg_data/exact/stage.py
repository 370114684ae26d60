"""Exact deduplication across all sources: documents, lines and passages that occur twice stay once.

    tokens.py   texts → hashes of documents, lines and windows of tokens
    repeats.py  hashes of all shards → what recurs in each
    cuts.py     what recurs → texts without it

All kinds are searched in the same texts, and what any of them finds is removed. That loses nothing: of two equal things
the one in the earlier document stays, in the same order for every kind. A passage may be left in pieces, though: a line
that it begins with in one document, the rest of it in another.

Hashes of 64 bits stand for what is compared. Of a billion different documents, two share one with a chance of 3 %.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.document import read_documents, replace_columns, write_documents
from mtnlg_data.exchange import Numbering, Range, Rows, count_ranges
from mtnlg_data.filters.texts import column_of, text_lengths, texts_of
from mtnlg_data.job import Job
from mtnlg_data.tally import (
    EXCERPT_CHARACTERS,
    Fates,
    key_ranks,
    lowest,
    order_sources,
    recorded_tallies,
    stage_summary,
)

from .cuts import cut_texts, merge_spans
from .repeats import places, write_anchors, write_recurring, write_repeats, write_things
from .settings import ExactSettings, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.tally import Tallies

REASONS = EQUAL, SHORT = "exact_document", "exact_remainder"
CUTS_SHOWN = 4  # of each kind
#: Name, source and effect of the rule of each kind.
RULES = {
    "documents": (EQUAL, "Dolma", "documents dropped"),
    "lines": ("exact_line", "C4", "lines removed"),
    "substrings": ("exact_substring", "Lee et al. 2022", "passages removed"),
}


def remove_repeats(
    shards: Sequence[Path], out: Path, settings: ExactSettings, priority: Sequence[str], engine: Engine
) -> Summary:
    """Write what is left of every shard to ``out/<shard name>``.

    ``priority`` names the sources, best first: of equal things the one in the best source stays, there that of the
    document with the lowest hash of its key. Returns the stage's summary; its ``exact`` has the effect of each rule and
    sample cuts. Raises ``Failure`` where there is nothing to do.
    """
    if not shards or not settings.kinds:
        raise Failure(f"exact: nothing to do; give shards and kinds, of {', '.join(get_args(Kind))}")
    job = Job("exact", shards, out, engine)
    found = {
        kind: _find_repeats(job, kind, settings, tuple(priority)) for kind in get_args(Kind) if kind in settings.kinds
    }
    items = [
        ((shard, {kind: own[number] for kind, own in found.items()}), out / shard.path.name)
        for number, shard in enumerate(job.shards)
    ]
    done = job.map("cut", cut_shard, items, shortest=settings.shortest)
    job.folder.finish(one.output for one in done)
    summaries = [one.summary for one in done]
    summary = stage_summary("exact", summaries, order_sources(summaries, priority), settings.alarm_share)
    return {**summary, "exact": _effects(summary, summaries, settings)}


def _find_repeats(job: Job, kind: Kind, settings: ExactSettings, priority: tuple[str, ...]) -> list[Range]:
    """The repeats of one kind in each shard; windows by their recurring anchors."""
    shards, numbered = Numbering(len(job.shards)), [(shard, number) for number, shard in enumerate(job.shards)]
    measure: tuple[object, ...] = (settings.shortest_line,) if kind == "lines" else ()
    anchors: Sequence[Range | None] = [None] * shards.count
    if kind == "substrings":
        measure = (settings.substring_unit, settings.substring_length)
        found = job.rows("anchors", write_anchors, numbered, measure=measure)
        anchors = _returned(job, found, write_recurring, shards)
    items = [(*item, own) for item, own in zip(numbered, anchors, strict=False)]
    return _returned(
        job, job.rows(kind, write_things, items, kind=kind, measure=measure, priority=priority), write_repeats, shards
    )


def _returned(job: Job, rows: Rows, compare: Callable[..., Summary], shards: Numbering) -> list[Range]:
    """What ``compare`` finds in these rows, range by range, and writes by shard."""
    ranges = rows.ranges(count_ranges(sum(done.summary["rows"] for done in rows.written)))
    return job.rows(f"{rows.folder.name}-repeats", compare, ranges, shards=shards).ranges(shards.count)[: shards.count]


def _effects(summary: Summary, summaries: Sequence[Summary], settings: ExactSettings) -> dict[str, Any]:
    """Source, threshold and effect of every rule, and the sample cuts with the lowest hashes."""
    counts: Counter[str] = Counter()
    for unit in summaries:
        counts.update(unit["cuts"])
    for source in summary["sources"].values():
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


def cut_shard(item: tuple[Shard, Mapping[Kind, Range]], output: Path, *, shortest: int) -> Summary:
    """Write one shard; the summary has its tallies, the number of cuts by rule, and sample cuts."""
    shard, found = item
    spans = {kind: _merged_spans(repeats) for kind, repeats in found.items()}
    equal = np.zeros(shard.rows, np.bool_)
    equal[spans.pop("documents", np.empty((0, 3), np.int64))[:, 0]] = True
    spans = {kind: some[~equal[some[:, 0]]] for kind, some in spans.items()}
    cuts = next(iter(spans.values()), np.empty((0, 3), np.int64))
    if len(spans) > 1:
        cuts = merge_spans(np.concatenate(list(spans.values())))
    samples: list[tuple[str, int, str, str, str]] = []

    def remaining(tallies: Tallies) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in read_documents(shard.path):
            own = slice(first, first + batch.num_rows)
            for kind, some in spans.items():
                samples.extend(_samples(RULES[kind][0], batch, _between(some, own)))
            left = batch
            if len(in_batch := _between(cuts, own)):
                left = replace_columns(batch, {"text": column_of(cut_texts(texts_of(batch["text"]), in_batch))})
            kept = _count(tallies, batch, left, equal[own], shortest)
            yield left if kept.all() else left.filter(pa.array(kept))
            first += batch.num_rows

    with recorded_tallies(output) as tallies:
        write_documents(output, remaining(tallies))
    counts = {RULES[kind][0]: len(some) for kind, some in spans.items()}
    shown = [sample for rule in counts for sample in sorted(s for s in samples if s[0] == rule)[:CUTS_SHOWN]]
    return {**tallies.summary(), "cuts": counts, "samples": shown}


def _merged_spans(repeats: Range) -> NDArray[np.int64]:
    """What repeats cover."""
    parts = [merge_spans(places(table)[:, 1:]) for table in repeats.tables()]
    return merge_spans(np.concatenate([np.empty((0, 3), np.int64), *parts]))


def _between(spans: NDArray[np.int64], rows: slice) -> NDArray[np.int64]:
    """The spans of these rows, counted from the first."""
    begin, end = np.searchsorted(spans[:, 0], [rows.start, rows.stop])
    return np.asarray(spans[begin:end] - np.array([rows.start, 0, 0]))


def _count(
    tallies: Tallies, batch: pa.RecordBatch, left: pa.RecordBatch, equal: NDArray[np.bool_], shortest: int
) -> NDArray[np.bool_]:
    """Count and record the fate of each document; returns which stay."""
    before = text_lengths(batch["text"])
    after = before if left is batch else text_lengths(left["text"])
    is_short = ~equal & (after < np.minimum(before, shortest))
    numbers = np.where(equal, REASONS.index(EQUAL), np.where(is_short, REASONS.index(SHORT), -1))
    kept = numbers < 0
    tallies.count(batch, Fates(numbers, REASONS, np.where(is_short, after, np.nan), before, after[kept]))
    return kept


def _samples(rule: str, batch: pa.RecordBatch, spans: NDArray[np.int64]) -> list[tuple[str, int, str, str, str]]:
    """Rule, hash, key, id and text of the first cut of the documents with the lowest hashes."""
    rows, first = np.unique(spans[:, 0], return_index=True)
    ranks = key_ranks(batch)[rows]
    samples = []
    for place in lowest(ranks, CUTS_SHOWN).tolist():
        row = int(rows[place])
        name, key = (batch[column][row].as_py() for column in ("id", "key"))
        text = _text(batch, row, *spans[first[place], 1:].tolist())
        samples.append((rule, int(ranks[place]), key, name, text))
    return sorted(samples)[:CUTS_SHOWN]


def _text(batch: pa.RecordBatch, row: int, begin: int, end: int) -> str:
    return str(batch["text"][row].as_py().encode()[begin:end].decode()[:EXCERPT_CHARACTERS])
