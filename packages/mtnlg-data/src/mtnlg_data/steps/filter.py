"""Drop and edit documents by the rules of Gopher, C4 and FineWeb, by URL lists, and replace personal data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import field_validator

from mtnlg_data.console import Failure, Failures, IoFailure
from mtnlg_data.document import replace_columns, shard_source
from mtnlg_data.filters.decisions import DocumentFilter
from mtnlg_data.filters.lists import check_list
from mtnlg_data.filters.rules import OWN, Effect, choose
from mtnlg_data.filters.settings import FilterSettings, check_rules, list_paths, with_rules
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import KEPT, Cost, Outcome, Role, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide
    from mtnlg_data.summary import Summary


class FilterKeys(Settings):
    """What filter reads of a source."""

    filters: list[str] = setting(
        [],
        f"Families of rules of filter ({', '.join(OWN)}), rules of theirs, or references to families of one's own.",
        option="--rules",
    )

    @field_validator("filters")
    @classmethod
    def _check_filters(cls, filters: list[str]) -> list[str]:
        rooted = [str(Path(name).absolute()) if ".py:" in name else name for name in filters]
        choose(rooted)
        return rooted


class Filter(Step[FilterSettings, FilterKeys]):
    """The rules that each source names; sources without rules pass unread."""

    number, version, varies = 3, 2, True
    nothing = "give --rules"
    batch_bytes = 1 << 20

    def validate(self) -> None:
        """Compare the rules with their settings."""
        check_rules(self.settings, [keys.filters for keys in self.sources.values()])

    def check(self) -> None:
        """Read the first lines of the lists."""
        mistakes = []
        for path in list_paths(self.settings):
            try:
                check_list(path)
            except IoFailure:
                raise
            except Failure as error:
                mistakes.append(str(error))
        if mistakes:
            raise Failures("\n".join(mistakes))

    def cost(self, corpus: CorpusSize) -> Cost:
        """As measured with all rules."""
        return Cost(0.0608 * corpus.text / 1e6, 380_000_000 + corpus.group, corpus.disk)

    def role(self, source: str) -> Role:
        """A source without rules is not read."""
        return "through" if self.sources[source].filters else "past"

    def fingerprint(self, source: str) -> object:
        """Thresholds, lists by their content, the rules, and the code of those of others."""
        chosen = choose(self.sources[source].filters)
        rules = [[one.family.name, sorted(one.asked), one.family.code()] for one in chosen]
        return [self.settings_for(source), rules]

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Decide on small batches, whose words fit the caches."""
        del item, shared
        document_filter = DocumentFilter(self.sources[shard_source(shard.path)].filters, self.settings)

        def decide(batch: pa.RecordBatch) -> Outcome:
            urls, languages = batch["url"].to_pylist(), batch["language"].to_pylist()
            decided = document_filter.decide(batch["text"], urls, languages)
            kept = replace_columns(batch.filter(pa.array(decided.reasons == KEPT)), {"text": decided.texts})
            return Outcome(kept, decided.reasons, document_filter.reasons, decided.scores, decided.edits)

        return decide

    def run(self, job: Job) -> list[Done]:
        """Filter every shard, and add up the effect of each rule."""
        done = job.write()
        names = dict.fromkeys(name for keys in self.sources.values() for name in keys.filters)
        job.details["filters"] = _effects([one.summary for one in done], self.settings, names)
        return done


def _effects(summaries: Sequence[Summary], settings: FilterSettings, names: Collection[str]) -> list[dict[str, Any]]:
    """Source, threshold and effect of every rule that was asked for."""
    edits: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for summary in summaries:
        edits.update(summary["counts"])
        for counts in summary["sources"].values():
            dropped.update(counts["dropped"])
    chosen = choose(names)
    limits = with_rules(settings, chosen)
    return [
        {
            "rule": rule.name,
            "published": rule.source or family.source,
            "threshold": limit if isinstance(limit := getattr(limits, rule.name, None), (int, float)) else None,
            "effect": rule.effect.value,
            "count": dropped[rule.name] if rule.effect is Effect.DROP else edits[rule.name],
        }
        for family, asked in chosen
        for rule in family.rules
        if rule.name in asked
    ]
