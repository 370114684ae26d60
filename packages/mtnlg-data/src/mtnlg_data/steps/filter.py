"""Drop and edit documents by the rules of Gopher, C4 and FineWeb, by URL lists, and replace personal data."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import field_validator

from mtnlg_data.console import Failure, Failures, IoFailure
from mtnlg_data.document import replace_columns, shard_source
from mtnlg_data.files import regular
from mtnlg_data.filters.decisions import DocumentFilter
from mtnlg_data.filters.lists import check_list
from mtnlg_data.filters.rules import OWN, Effect, choose
from mtnlg_data.filters.settings import FilterSettings, check_rules, list_paths, with_rules
from mtnlg_data.registry import recipe_folder
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import KEPT, Cost, Outcome, Role, Step
from mtnlg_data.summary import LEAST_VALUE, add_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mtnlg_data.array_types import Float64s
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
        folder = recipe_folder() or Path()
        rooted = [str((folder / name).absolute()) if ".py:" in name else name for name in filters]
        choose(rooted)
        return rooted


class Filter(Step[FilterSettings, FilterKeys]):
    """The rules that each source names; sources without rules pass unread."""

    number, version, varies = 3, 3, True
    nothing = "give --rules"
    batch_bytes = 1 << 20

    def validate(self) -> None:
        """Check the rules against their settings."""
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
        """The cost as measured with all rules."""
        return Cost(0.0608 * corpus.text / 1e6, 380_000_000 + corpus.group, corpus.disk)

    def role(self, source: str) -> Role:
        """A source without rules is not read."""
        return "through" if self.sources[source].filters else "past"

    def fingerprint(self, source: str) -> object:
        """Thresholds, lists by their content, the rules, and the code of users' rules."""
        return [self.settings_for(source), self._rules(source)]

    def _rules(self, source: str) -> list[object]:
        chosen = choose(self.sources[source].filters)
        return [[one.family.name, sorted(one.asked), one.family.code()] for one in chosen]

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Decide on small batches, whose words fit the caches, from the rules' values if ``item`` has these.

        With ``annotate`` only measure the values.
        """
        document_filter = DocumentFilter(self.sources[shard_source(shard.path)].filters, self.settings)
        names = document_filter.reasons[:-1]
        if item:
            values = pq.read_table(regular(item.output), columns=["id", *names])
            rows = {name: row for row, name in enumerate(values["id"].to_pylist())}
            numbers = np.stack([values[name].to_numpy() for name in names])

        def decide(batch: pa.RecordBatch) -> Outcome:
            about = batch["text"], batch["url"].to_pylist(), batch["language"].to_pylist()
            if shared.get("annotate"):
                notes = dict(zip(names, document_filter.measure(*about), strict=True))
                return Outcome(batch, np.full(len(batch), KEPT), counts=_bins(notes), notes=notes)
            measured = numbers[:, [rows[name] for name in batch["id"].to_pylist()]] if item else None
            decided = document_filter.decide(*about, measured)
            kept = replace_columns(batch.filter(pa.array(decided.reasons == KEPT)), {"text": decided.texts})
            return Outcome(kept, decided.reasons, document_filter.reasons, decided.scores, decided.edits)

        return decide

    def run(self, job: Job) -> list[Done]:
        """Filter every shard, and add up the effect of each rule."""
        values = job.annotate(self._measured, annotate=True) if self.settings.annotate else []
        done = job.write(values or None)
        names = dict.fromkeys(name for keys in self.sources.values() for name in keys.filters)
        bins = add_up([{}, *(one.summary["counts"] for one in values)])
        job.details["filters"] = _effects([one.summary for one in done], self.settings, names, bins)
        return done

    def _measured(self, source: str) -> object:
        """What the rules' values depend on: all settings but thresholds, the rules, and the code of users' rules."""
        chosen = choose(self.sources[source].filters)
        thresholds = {rule.name for one in chosen for rule in one.family.rules if rule.has_score}
        settings = {code: _without(thresholds, own) for code, own in self.by_language(source).items()}
        return [settings, self._rules(source)]


def _without(thresholds: Collection[str], settings: FilterSettings) -> FilterSettings:
    """The settings with these thresholds reset to their defaults."""
    own = {name: value for name, value in settings.own.items() if name not in thresholds}
    defaults = {name: field.default for name, field in type(settings).model_fields.items() if name in thresholds}
    return settings.model_copy(update={"own": own, **defaults})


def _bins(notes: Mapping[str, Float64s]) -> Counter[str]:
    """Count documents by rule and quarter octave of the value: ``rule/floor(4 log2 value)``; 0 is in the lowest."""
    counts: Counter[str] = Counter()
    for name, values in notes.items():
        quarters = np.floor(4 * np.log2(values[~np.isnan(values)].clip(LEAST_VALUE)))
        counts.update(f"{name}/{quarter:.0f}" for quarter in quarters.tolist())
    return counts


def _effects(
    summaries: Sequence[Summary], settings: FilterSettings, names: Collection[str], bins: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Source, threshold and effect of every chosen rule, and the distribution of its values if they are kept."""
    edits = Counter(add_up([{}, *(summary["counts"] for summary in summaries)]))
    sources = [counts for summary in summaries for counts in summary["sources"].values()]
    dropped = Counter(add_up([{}, *(counts["dropped"] for counts in sources)]))
    values: dict[str, dict[int, int]] = defaultdict(dict)
    for key, count in sorted(bins.items()):
        name, _, quarter = key.rpartition("/")
        values[name][int(quarter)] = count
    chosen = choose(names)
    limits = with_rules(settings, chosen)
    return [
        {
            "rule": rule.name,
            "published": rule.source or family.source,
            "threshold": limit if isinstance(limit := getattr(limits, rule.name, None), (int, float)) else None,
            "effect": rule.effect.value,
            "count": dropped[rule.name] if rule.effect is Effect.DROP else edits[rule.name],
            "values": values[rule.name] if rule.has_score else {},
        }
        for family, asked in chosen
        for rule in family.rules
        if rule.name in asked
    ]
