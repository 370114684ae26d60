"""Cut the n-grams of the evaluation tasks, and the text around them, out of the documents."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PositiveInt, model_validator

from mtnlg_data.console import Failure, say
from mtnlg_data.decontaminate.matches import NGRAM_SCHEMA, choose_rare, plan_shard, scan_shard, write_ngrams
from mtnlg_data.decontaminate.ngrams import check_task_texts
from mtnlg_data.document import read_rows, replace_columns, shard_source
from mtnlg_data.engine import CUTS
from mtnlg_data.files import atomic_path, file_lines
from mtnlg_data.fingerprint import File
from mtnlg_data.quantities import alarm_share, characters
from mtnlg_data.schema import required
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import KEPT, Cost, Outcome, Role, Step
from mtnlg_data.summary import add_up
from mtnlg_data.transfer.urls import FilePath  # noqa: TC001  (pydantic reads the annotation)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.decontaminate.matches import Cut, CutPlan
    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide
    from mtnlg_data.summary import Summary

REASONS = "contaminated", "split"
SAMPLES = 12
SAMPLE_CHARACTERS = 100  # on each side of a match
#: One row per cut and task text with its n-gram; offsets are characters of the document before cutting.
LEDGER_SCHEMA = pa.schema(
    [
        *required(pa.string(), "document", "key", "source", "task", "task_id"),  # document: its id
        *required(pa.int64(), "start", "end"),
        *required(pa.large_string(), "ngram"),
        *required(pa.int64(), "cut_start", "cut_end"),
        *required(pa.string(), "fate"),  # of the document: "cut", or the reason it was dropped
    ]
)


class DecontaminateSettings(Settings):
    """What counts as contamination, and how much around it is cut; the defaults are the paper's (4.4)."""

    texts: FilePath | None = setting(
        None, "Texts of the evaluation tasks, to be cut from the documents (mtnlg-eval texts)."
    )
    n: PositiveInt = setting(13, "Length of an n-gram.", unit="words", paper="13 in Megatron's tool")
    minimum: PositiveInt = setting(
        8, "Shortest task text that counts as one n-gram.", unit="words", paper="8 in Megatron's tool"
    )
    common: PositiveInt = setting(
        10,
        "n-grams that occur in this many documents or more are not cut.",
        unit="documents",
        paper="10 in Megatron's tool",
    )
    window: int = characters(200, "Text cut on each side of a match.", paper="200")
    shortest: int = characters(200, "Minimum length of a piece that is kept.", paper="200")
    most_splits: PositiveInt = setting(10, "Maximum pieces of a document that is kept.", paper="10")
    alarm_share: float = alarm_share(0.1, "Warn where a source loses a larger share of whole documents.")

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.minimum > self.n:
            raise ValueError(f"minimum = {self.minimum} is more than n = {self.n}")
        return self


class Decontaminate(Step[DecontaminateSettings, Settings]):
    """Paper.md 4.4."""

    number, version = 5, 2
    varies = ("window",)
    top_level = ("texts",)
    nothing = "give --texts"

    def check(self) -> None:
        """Read the texts."""
        if (texts := self.settings.texts) is None:
            say("decontaminate: no texts of tasks are given, so nothing is cut; mtnlg-eval texts writes them")
        elif not texts.is_file():
            raise Failure(f"{texts}: no such file of task texts; mtnlg-eval texts --out {texts} writes it")
        else:
            check_task_texts(texts)

    def role(self, source: str) -> Role:
        """All sources pass by if no texts are given."""
        del source
        return "past" if self.settings.texts is None else "through"

    def cost(self, corpus: CorpusSize) -> Cost:
        """The n-grams of all task texts are in the memory of each worker; one process builds them."""
        texts = 70_000  # of the paper's tasks
        if self.settings.texts is not None and self.settings.texts.is_file():
            texts = sum(1 for _ in file_lines(self.settings.texts, follow=True))
        memory = 365_000_000 + corpus.group + 2200 * texts
        return Cost(0.024 * corpus.text / 1e6, memory, corpus.disk, seconds_alone=0.0004 * texts)

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Cut the matches of the shard, which are ``item``; the samples are cuts with the text around them."""
        del shard
        found: Found = shared["found"]
        plans = plan_shard(item.output, found.rare.output, self.settings.shortest, self.settings.most_splits)
        row, plan = next(plans, (-1, None))
        ngrams = pq.read_table(found.ngrams.output) if plan else NGRAM_SCHEMA.empty_table()
        first = sampled = 0

        def decide(batch: pa.RecordBatch) -> Outcome:
            nonlocal row, plan, first, sampled
            parts: list[pa.RecordBatch] = []
            origin, begin = [], 0  # ``parts`` has the batch's rows before ``begin``, cut
            decisions, scores = np.full(batch.num_rows, KEPT), np.full(batch.num_rows, np.nan)
            samples: list[Any] = []
            while plan is not None and row < first + batch.num_rows:
                index = row - first
                document = batch.slice(index, 1)
                pieces = document.slice(1) if plan.reason else _cut_document(document, plan)
                if plan.reason:
                    decisions[index], scores[index] = REASONS.index(plan.reason), len(plan.kept)
                samples += _sample_cuts(document, plan.cuts[: SAMPLES - sampled - len(samples)], ngrams)
                parts += [batch.slice(begin, index - begin), pieces]
                origin += [*range(begin, index), *[index] * pieces.num_rows]
                begin = index + 1
                row, plan = next(plans, (-1, None))
            first += batch.num_rows
            sampled += len(samples)
            origin += range(begin, batch.num_rows)
            documents = pa.Table.from_batches([*parts, batch.slice(begin)]).combine_chunks().to_batches()
            (cut,) = documents or [batch.slice(0, 0)]
            return Outcome(cut, decisions, REASONS, scores, samples=samples, origin=np.array(origin, np.int64))

        return decide

    def run(self, job: Job) -> list[Done]:
        """Match, plan, cut."""
        matches, found = _find_matches(job, self.settings)
        ledger = job.map(
            "ledger",
            write_ledger,
            [(item, job.out / CUTS / item[0].path.name) for item in zip(job.shards, matches, strict=True)],
            found=found,
            shortest=self.settings.shortest,
            most_splits=self.settings.most_splits,
        )
        done = job.write(matches, name="cut", found=found)
        counted, written = ([one.summary for one in parts] for parts in (ledger, done))
        if common := found.rare.summary["common"]:
            say(f"decontaminate: {common:,} n-grams stay: each is in {self.settings.common} documents or more")
        job.details["decontamination"] = _effects(counted, written, common)
        return done


def _find_matches(job: Job, settings: DecontaminateSettings) -> tuple[list[Done], Found]:
    """Scan the shards in order, and count; returns the matches per shard, and the n-grams with those that are cut."""
    texts = None if settings.texts is None else File(settings.texts)
    (ngrams,) = job.map(
        "n-grams",
        write_ngrams,
        [(texts, job.state / "ngrams.parquet")],
        n=settings.n,
        minimum=settings.minimum,
    )
    shards = []
    for shard in job.shards:
        windows = {code: own.window for code, own in job.step.by_language(shard_source(shard.path)).items()}
        shards.append(((shard, windows), job.state / f"{shard.path.stem}.matches.parquet"))
    matches = job.map("scan", scan_shard, shards, ngrams=ngrams, minimum=settings.minimum)
    (rare,) = job.map("count", choose_rare, [(matches, job.state / "cut.npy")], ngrams=ngrams, common=settings.common)
    return matches, Found(ngrams, rare)


class Found(NamedTuple):
    """The tasks' n-grams, and which of them are rare enough to be cut."""

    ngrams: Done
    rare: Done


def write_ledger(item: tuple[Shard, Done], output: Path, *, found: Found, shortest: int, most_splits: int) -> Summary:
    """Write the ledger of one shard's cuts; ``item`` has the shard and its matches.

    The summary counts documents cut and dropped, and cuts by task.
    """
    shard, matches = item
    plans = list(plan_shard(matches.output, found.rare.output, shortest, most_splits))
    names = [
        name
        for batch in read_rows(shard.path, np.array([row for row, _ in plans], np.int64), ["id", "key", "source"])
        for name in zip(*(column.to_pylist() for column in batch), strict=True)
    ]
    ngram_table = pq.read_table(found.ngrams.output) if plans else NGRAM_SCHEMA.empty_table()
    cuts_by_task: Counter[str] = Counter()
    rows: list[tuple[Any, ...]] = []
    for name, (_, plan) in zip(names, plans, strict=True):
        for (start, end, number, *_), *span in plan.cuts:
            ngram, tasks, ids = (ngram_table[column][number].as_py() for column in NGRAM_SCHEMA.names)
            cuts_by_task.update(set(tasks))
            fate = plan.reason or "cut"
            rows += [(*name, *task, start, end, ngram, *span, fate) for task in zip(tasks, ids, strict=True)]
    with atomic_path(output) as partial:
        columns = zip(*rows, strict=True) if rows else [[] for _ in LEDGER_SCHEMA]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LEDGER_SCHEMA, strict=True)]
        pq.write_table(pa.table(arrays, LEDGER_SCHEMA), partial, compression="zstd")
    dropped = sum(plan.reason is not None for _, plan in plans)
    return {"documents_cut": len(plans) - dropped, "documents_dropped": dropped, "cuts_by_task": dict(cuts_by_task)}


def _cut_document(document: pa.RecordBatch, plan: CutPlan) -> pa.RecordBatch:
    """The pieces of a document with matches: the shortened document, or ``<id>#0``, ``<id>#1``, ..."""
    text, name, key = (document[column][0].as_py() for column in ("text", "id", "key"))
    pieces = [text[start:end] for start, end in plan.kept]
    if len(pieces) == 1:
        return replace_columns(document, {"text": pieces})
    names = {column: [f"{whole}#{n}" for n in range(len(pieces))] for column, whole in (("id", name), ("key", key))}
    repeated = document.take(pa.array([0] * len(pieces)))
    return replace_columns(repeated, {**names, "text": pieces})


def _sample_cuts(document: pa.RecordBatch, cuts: Sequence[Cut], ngrams: pa.Table) -> list[dict[str, Any]]:
    """N-gram and surrounding text of each cut."""
    text, name, size = document["text"][0].as_py(), document["id"][0].as_py(), SAMPLE_CHARACTERS
    return [
        {
            "document": name,
            "text": text[max(0, match.start - size) : match.end + size],
            "tasks": sorted(set(ngrams["tasks"][match.ngram].as_py())),
            "ngram": ngrams["ngram"][match.ngram].as_py(),
        }
        for match, *_ in cuts
    ]


def _effects(ledger: Sequence[Summary], done: Sequence[Summary], common: int) -> dict[str, Any]:
    """The part of the step's summary about cuts: counts, and some samples to read."""
    counts = add_up([{"documents_cut": 0, "documents_dropped": 0, "cuts_by_task": {}}, *ledger])
    samples = [sample for part in done for sample in part["samples"]]
    return {
        **counts,
        "cuts_by_task": dict(sorted(counts["cuts_by_task"].items())),
        "ngrams_common": common,
        "samples": samples[:: -(-len(samples) // SAMPLES) or 1],
    }
