"""Drop and edit documents by the rules of Gopher, C4 and FineWeb, by URL lists, and replace personal data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import field_validator

from mtnlg_data.console import Failure, Failures, IoFailure
from mtnlg_data.document import replace_columns, shard_source
from mtnlg_data.filters.lists import ListFiles, check_list, check_url_lists, list_paths
from mtnlg_data.filters.rules import RULES, Effect, expand_rules
from mtnlg_data.filters.settings import FilterSettings
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import KEPT, Cost, Outcome, Role, Step

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide
    from mtnlg_data.tally import Summary


class FilterKeys(Settings):
    """What filter reads of a source."""

    filters: list[str] = setting(
        [],
        "Families of rules of filter (url, gopher_repetition, gopher_quality, c4, fineweb, pii), or rules of theirs.",
        option="--rules",
    )

    @field_validator("filters")
    @classmethod
    def _check_filters(cls, filters: list[str]) -> list[str]:
        expand_rules(filters)
        return filters


class Filter(Step[FilterSettings, FilterKeys]):
    """The rules that each source names; sources without rules pass unread."""

    number, version = 3, 1
    nothing = "give --rules"
    batch_bytes = 1 << 20

    def check(self) -> None:
        """Compare the rules of URLs with the lists, and read the first lines of each list."""
        check_url_lists(self.settings, [self.rules(source) for source in self.sources])
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

    def rules(self, source: str) -> tuple[str, ...]:
        """The rules of a source, in the order in which they apply."""
        return expand_rules(self.sources[source].filters)

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Decide on small batches, whose words fit the caches."""
        from mtnlg_data.filters.decisions import REASONS, DocumentFilter  # noqa: PLC0415  (numba)

        del item, shared
        rules = self.rules(shard_source(shard.path))
        document_filter = DocumentFilter(rules, self.settings, ListFiles.of(self.settings))

        def decide(batch: pa.RecordBatch) -> Outcome:
            decided = document_filter.decide(batch["text"], batch["url"].to_pylist())
            kept = replace_columns(batch.filter(pa.array(decided.reasons == KEPT)), {"text": decided.texts})
            return Outcome(kept, decided.reasons, REASONS, decided.scores, decided.edits)

        return decide

    def run(self, job: Job) -> list[Done]:
        """Filter every shard, and add up the effect of each rule."""
        done = job.write()
        asked = {rule for source in self.sources for rule in self.rules(source)}
        job.details["filters"] = _effects([one.summary for one in done], self.settings, asked)
        return done


def _effects(summaries: Sequence[Summary], settings: FilterSettings, asked: Collection[str]) -> list[dict[str, Any]]:
    """Source, threshold and effect of every rule that was asked for."""
    edits: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for summary in summaries:
        edits.update(summary["counts"])
        for counts in summary["sources"].values():
            dropped.update(counts["dropped"])
    return [
        {
            "rule": rule.name,
            "published": rule.source,
            "threshold": limit if isinstance(limit := getattr(settings, rule.name, None), (int, float)) else None,
            "effect": rule.effect.value,
            "count": dropped[rule.name] if rule.effect is Effect.DROP else edits[rule.name],
        }
        for rule in RULES
        if rule.name in asked
    ]
