"""Keep one copy of what [bold]--kinds[/bold] names: equal documents, equal lines, passages that occur twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from mtnlg_data.document import replace_columns
from mtnlg_data.exact.cuts import cut_texts, merge_spans
from mtnlg_data.exact.repeats import places, write_anchors, write_recurring, write_repeats, write_things
from mtnlg_data.exchange import Numbering, count_ranges
from mtnlg_data.quantities import alarm_share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import KEPT, Cost, Outcome, Role, Step
from mtnlg_data.summary import add_up
from mtnlg_data.tally import EXCERPT_CHARACTERS, key_ranks, lowest
from mtnlg_data.text.arrays import column_of, text_lengths, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mtnlg_data.array_types import Int64s
    from mtnlg_data.document import Shard
    from mtnlg_data.exchange import Range, Rows
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide
    from mtnlg_data.summary import Summary

#: documents   texts that are equal but for white space (Dolma: Soldaini et al. 2024, arXiv 2402.00159)
#: lines       lines that are equal but for case and surrounding white space (C4: Raffel et al. 2020, JMLR 21/140, by
#:             the code that made it: tensorflow/datasets, c4_utils.remove_duplicate_text)
#: substrings  passages of 50 words and marks or more that occur twice (Lee et al. 2022, arXiv 2107.06499)
Kind = Literal["documents", "lines", "substrings"]

REASONS = EQUAL, SHORT = "exact_document", "exact_remainder"
CUTS_SHOWN = 4  # of each kind
#: Name, source and effect of the rule of each kind.
RULES: dict[Kind, tuple[str, str, str]] = {
    "documents": (EQUAL, "Dolma", "documents dropped"),
    "lines": ("exact_line", "C4", "lines removed"),
    "substrings": ("exact_substring", "Lee et al. 2022", "passages removed"),
}


class ExactSettings(Settings):
    """Which repeats are removed; the copy in the best source stays, on ties the one whose key has the lowest hash."""

    kinds: tuple[Kind, ...] = setting(
        (), "What is kept once: documents (equal except white space), lines (except case), substrings."
    )
    shortest_line: int = setting(
        30, "Shorter lines may repeat (C4 has none of under five words at that point).", unit="characters", ge=1
    )
    substring_length: int = setting(
        50, "A passage of this many words and marks or more may not repeat (Lee et al.: 50 tokens).", ge=2
    )
    shortest: int = setting(
        200, "Documents that have lost lines or substrings, and are shorter now, are dropped.", unit="characters", ge=1
    )
    alarm_share: float = alarm_share(0.5, "Warn where a source loses a larger share of its documents.")

    @property
    def measures(self) -> dict[Kind, int]:
        """The shortest line, or passage, that counts."""
        return {"lines": self.shortest_line, "substrings": self.substring_length}


class Exact(Step[ExactSettings, Settings]):
    """Exact deduplication across all sources."""

    number, version = 4, 3
    nothing = "give --kinds, some of documents,lines,substrings"

    def role(self, source: str) -> Role:
        """All sources pass by if no kinds are given."""
        del source
        return "through" if self.settings.kinds else "past"

    def cost(self, corpus: CorpusSize) -> Cost:
        """Each kind has its core-seconds per million characters and things per character, of 36 bytes on disk each."""
        things = {"documents": 1 / max(1, corpus.characters), "lines": 1 / 200, "substrings": 0.08}
        seconds = {"documents": 0.0022, "lines": 0.0030, "substrings": 0.0504}
        kinds = self.settings.kinds
        most = max((things[kind] for kind in kinds), default=0.0)
        memory = round(
            max(72 * most * min(corpus.text, corpus.shard_characters), 120 * min(most * corpus.text, 1 << 22))
        )
        state = round(36 * sum(things[kind] for kind in kinds) * corpus.text)
        core_seconds = (0.0074 + sum(seconds[kind] for kind in kinds)) * corpus.text / 1e6
        return Cost(core_seconds, 390_000_000 + corpus.group + memory, corpus.disk + state)

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Cut the repeats of the shard, which ``item`` has by kind."""
        del shared
        spans = {kind: _merged_spans(repeats) for kind, repeats in item.items()}
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
            is_short = ~equal[rows] & (after < np.minimum(before, self.settings.shortest))
            decisions = np.where(equal[rows], REASONS.index(EQUAL), np.where(is_short, REASONS.index(SHORT), KEPT))
            if (decisions != KEPT).any():
                remaining = remaining.filter(pa.array(decisions == KEPT))
            counts = {rule: len(some) for rule, some in in_batch.items()}
            return Outcome(remaining, decisions, REASONS, np.where(is_short, after, np.nan), counts, samples)

        return decide

    def run(self, job: Job) -> list[Done]:
        """Find what recurs, and cut it."""
        done = job.write(_find_repeats(job, self.settings), name="cut")
        job.details["exact"] = _effects([one.summary for one in done], self.settings)
        return done


def _find_repeats(job: Job, settings: ExactSettings) -> list[dict[Kind, Range]]:
    """The repeats of each shard, by kind; windows are searched around anchors that recur."""
    shards = job.shards
    numbering, numbered = Numbering(len(shards)), [(shard, number) for number, shard in enumerate(shards)]
    found: list[dict[Kind, Range]] = [{} for _ in shards]
    for kind in (kind for kind in RULES if kind in settings.kinds):
        anchors: list[Range] | list[None] = [None] * len(shards)
        if kind == "substrings":
            rows = job.rows("anchors", write_anchors, numbered, length=settings.substring_length)
            anchors = _compared(job, rows, write_recurring, numbering)
        items = [(*item, shard_anchors) for item, shard_anchors in zip(numbered, anchors, strict=True)]
        priority = list(job.step.sources)
        rows = job.rows(kind, write_things, items, kind=kind, measure=settings.measures.get(kind, 0), priority=priority)
        for by_kind, repeats in zip(found, _compared(job, rows, write_repeats, numbering), strict=True):
            by_kind[kind] = repeats
    return found


def _compared(job: Job, rows: Rows, compare: Callable[..., Summary], numbering: Numbering) -> list[Range]:
    """Run ``compare`` on these rows, range by range; returns what it found, by shard."""
    ranges = rows.ranges(count_ranges(sum(done.summary["rows"] for done in rows.written)))
    repeats = job.rows(f"{rows.folder.name}-repeats", compare, ranges, shards=numbering)
    return repeats.ranges(numbering.total)[: numbering.total]


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


def _effects(summaries: Sequence[Summary], settings: ExactSettings) -> dict[str, Any]:
    """Source, threshold and effect of every rule, and the sample cuts with the lowest hashes."""
    dropped = [counts["dropped"] for unit in summaries for counts in unit["sources"].values()]
    counts = Counter(add_up([{}, *(unit["counts"] for unit in summaries), *dropped]))
    rules = [(*RULES[kind], settings.measures.get(kind)) for kind in RULES if kind in settings.kinds]
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
