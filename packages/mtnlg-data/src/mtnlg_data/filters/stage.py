"""Filter: drop and edit documents by the rules that their source names (``rules.py``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mtnlg_data.document import read_documents, replace_columns, shard_source, write_documents
from mtnlg_data.engine import StageFolder, Unit, checksum
from mtnlg_data.tally import Fates, Tally, passthrough_summary, recorded_tallies, stage_summary
from mtnlg_data.text.arrays import small_batches, text_lengths

from .decisions import KEPT, DocumentFilter
from .rules import Effect, choose
from .settings import LIST_FIELDS, ListFiles, check_rules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary

    from .settings import FilterSettings


def apply_filters(
    shards: Sequence[Path],
    out: Path,
    settings: FilterSettings,
    rules: Mapping[str, Sequence[str]],
    *,
    before: Mapping[str, Summary],
    engine: Engine,
) -> Summary:
    """Write what the rules leave of every shard of a source in ``rules`` to ``out/<shard>``.

    ``rules`` are those of each source that has some, as ``expand_rules`` gives them. ``before`` maps every source, in
    order, to its counts after the previous stage; sources without rules pass through unread. Returns the stage's
    summary with ``filters``, the effect of each rule. Raises ``Failure`` where a list is missing.
    """
    lists = ListFiles.of(settings)
    check_rules(settings, rules.values())
    units = [
        Filtering(shard, checksum(shard), settings, lists, tuple(rules[source]), out / shard.name)
        for shard in shards
        if (source := shard_source(shard)) in rules
    ]
    stage = StageFolder(out, "filter", engine)
    summaries = stage.run(filter_shard, units, "filter")
    stage.finish(unit.output for unit in units)
    passing = [passthrough_summary(source, counts) for source, counts in before.items() if source not in rules]
    summary = stage_summary("filter", [*summaries, *passing], list(before), settings.alarm_share)
    return {**summary, "filters": _effects(summary, summaries, settings, {*chain.from_iterable(rules.values())})}


def _effects(
    summary: Summary, summaries: Sequence[Summary], settings: FilterSettings, asked: Collection[str]
) -> list[dict[str, Any]]:
    """Source, threshold and effect of every rule that was asked for."""
    edits: Counter[str] = Counter()
    for unit in summaries:
        edits.update(unit["edits"])
    dropped: Counter[str] = Counter()
    for counts in summary["sources"].values():
        dropped.update(counts["dropped"])
    return [
        {
            "rule": rule.name,
            "published": rule.source or family.source,
            "threshold": limit if isinstance(limit := getattr(settings, rule.name, None), (int, float)) else None,
            "effect": rule.effect.value,
            "count": dropped[rule.name] if rule.effect is Effect.DROP else edits[rule.name],
        }
        for family, names in choose(sorted(asked))
        for rule in family.rules
        if rule.name in names
    ]


@dataclass(frozen=True)
class Filtering(Unit):
    """Unit: one shard → the documents that its rules leave."""

    shard: Path
    checksum: str
    settings: FilterSettings
    lists: ListFiles
    rules: tuple[str, ...]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        thresholds = self.settings.model_dump(exclude={"alarm_share", *LIST_FIELDS})
        return ("filter", self.shard.name, self.checksum, thresholds, self.lists.digests(), self.rules)


def filter_shard(unit: Filtering) -> Summary:
    """Filter one shard; the summary has its tally and the edits by rule."""
    document_filter = DocumentFilter(unit.rules, unit.settings)
    edits: Counter[str] = Counter()

    def survivors(tally: Tally) -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            for part in small_batches(batch):
                decided = document_filter.decide(part["text"], part["url"].to_pylist())
                edits.update(decided.edits)
                lengths = [text_lengths(texts) for texts in (part["text"], decided.texts)]
                tally.count(part, Fates(decided.reasons, document_filter.reasons, decided.scores, *lengths))
                kept = part.filter(pa.array(decided.reasons == KEPT))
                yield replace_columns(kept, {"text": decided.texts})

    with recorded_tallies(unit.output) as tallies:
        write_documents(unit.output, survivors(tallies[shard_source(unit.shard)]))
    return {**tallies.summary(), "edits": dict(edits)}
