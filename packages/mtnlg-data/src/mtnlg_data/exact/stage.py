"""Exact deduplication across all sources: documents, lines and passages that occur twice stay once.

    tokens.py   texts → hashes of documents, lines and windows of tokens
    scan.py     documents, one shard per unit → what it holds of a kind, by hash (a run per shard)
    runs.py     runs → what recurs
    cuts.py     what recurs → texts without it

All kinds are searched in the same texts, and what any of them finds is removed. That loses nothing: of two equal things
the one in the earlier document stays, in the same order for every kind. A passage may be left in pieces, though: a line
that it begins with in one document, the rest of it in another.

Hashes of 64 bits stand for what is compared. Of a billion different documents, two share one with a chance of 3 %.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.dedup.runs import Exchanged
from mtnlg_data.document import number_shards, read_documents, replace_columns, write_documents
from mtnlg_data.engine import StageFolder, Unit
from mtnlg_data.filters.lists import is_in
from mtnlg_data.tally import (
    EXCERPT_CHARACTERS,
    Fates,
    key_ranks,
    lowest,
    order_sources,
    recorded_tallies,
    stage_summary,
)
from mtnlg_data.text.arrays import column_of, text_lengths, texts_of

from .cuts import cut_texts, merge_spans
from .runs import Repeats, Run, find_repeats
from .scan import RunUnit, scan_shard
from .settings import ExactSettings, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
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
    numbered = number_shards(shards)
    stage = StageFolder(out, "exact", engine)
    search = _Search(numbered, stage, settings, tuple(priority))
    found: dict[Kind, list[_Found]] = {}
    for kind in (kind for kind in get_args(Kind) if kind in settings.kinds):
        if kind == "substrings":
            found[kind] = search.run("windows", [repeats for _, repeats in search.run("anchors")])
        else:
            found[kind] = search.run(kind)
    units = [
        CutUnit(
            shard,
            {kind: by_shard[number] for kind, by_shard in found.items()},
            settings.shortest,
            out / shard.path.name,
        )
        for number, shard in enumerate(numbered)
    ]
    summaries = stage.run(cut_shard, units, "exact: cut")
    stage.finish(unit.output for unit in units)
    summary = stage_summary("exact", summaries, order_sources(summaries, priority), settings.alarm_share)
    return {**summary, "exact": _effects(summary, summaries, settings)}


class _Found(NamedTuple):
    """A shard's run of a kind, and which of its hashes are repeats."""

    run: Run
    repeats: Repeats


class _Search(NamedTuple):
    """Where repeats are searched, and by which settings."""

    shards: list[Shard]
    stage: StageFolder
    settings: ExactSettings
    priority: tuple[str, ...]

    def run(self, kind: str, anchors: Sequence[Repeats] = ()) -> list[_Found]:
        """Find the repeats of one kind; windows by their recurring anchors."""
        by_shard: Sequence[Repeats | None] = anchors or [None] * len(self.shards)
        units = [
            RunUnit(kind, shard, number, self.settings, self.priority, by_shard[number],
                    Exchanged(self.stage.state / kind, len(self.shards), 1, "").path(number))
            for number, shard in enumerate(self.shards)
        ]  # fmt: skip
        summaries = self.stage.run(scan_shard, units, f"exact: {kind}")
        repeats = find_repeats(kind, list(zip(units, summaries, strict=True)), self.stage)
        return [_Found(Run(unit.output), own) for unit, own in zip(units, repeats, strict=True)]


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


@dataclass(frozen=True)
class CutUnit(Unit):
    """Unit: one shard and what recurs of it → its documents without the repeats."""

    shard: Shard
    found: Mapping[Kind, _Found]
    shortest: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        repeats = {kind: (found.run.path.name, found.repeats.rows.digest) for kind, found in self.found.items()}
        return ("cut", self.shard.checksum, self.shard.path.name, repeats, self.shortest)

    def spans(self, kind: Kind) -> NDArray[np.int64]:
        """What repeats of this kind cover, merged."""
        run, repeats = self.found[kind]
        spans, keys = run.spans, run.keys
        repeated = np.ones(len(spans), np.bool_)
        repeated[: len(keys)] = is_in(keys, repeats.read())
        return merge_spans(spans[repeated])


def cut_shard(unit: CutUnit) -> Summary:
    """Write one shard; the summary has its tallies, the number of cuts by rule, and sample cuts."""
    spans = {kind: unit.spans(kind) for kind in unit.found}
    equal = np.zeros(unit.shard.rows, np.bool_)
    equal[spans.pop("documents", np.empty((0, 3), np.int64))[:, 0]] = True
    spans = {kind: some[~equal[some[:, 0]]] for kind, some in spans.items()}
    cuts = next(iter(spans.values()), np.empty((0, 3), np.int64))
    if len(spans) > 1:
        cuts = merge_spans(np.concatenate(list(spans.values())))
    samples: list[tuple[str, int, str, str, str]] = []

    def remaining(tallies: Tallies) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in read_documents(unit.shard.path):
            own = slice(first, first + batch.num_rows)
            for kind, some in spans.items():
                samples.extend(_samples(RULES[kind][0], batch, _between(some, own)))
            left = batch
            if len(in_batch := _between(cuts, own)):
                left = replace_columns(batch, {"text": column_of(cut_texts(texts_of(batch["text"]), in_batch))})
            kept = _count(tallies, batch, left, equal[own], unit.shortest)
            yield left if kept.all() else left.filter(pa.array(kept))
            first += batch.num_rows

    with recorded_tallies(unit.output) as tallies:
        write_documents(unit.output, remaining(tallies))
    counts = {RULES[kind][0]: len(some) for kind, some in spans.items()}
    shown = [sample for rule in counts for sample in sorted(s for s in samples if s[0] == rule)[:CUTS_SHOWN]]
    return {**tallies.summary(), "cuts": counts, "samples": shown}


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
