"""summary.json: what a curation kept and dropped, by stage and source; written by its run, read by its report.

    a task's counts (``tally``)  →  ``stage_summary``  →  ``merge_summaries``  →  summary.json  →  ``read_summary``

A stage has the fields of ``Stage``. Further results of our own steps are at the top level of the file, as
``RunSummary`` describes; those of a user's step are its ``details``.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .console import Failure, say
from .files import read_small

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

LEAST_VALUE = 2.0**-10  # smallest value of a rule that a distribution resolves
COUNTS = ("documents_in", "documents_out", "characters_in", "characters_out")
NOTHING = dict.fromkeys(COUNTS, 0)
ERRORS_SHOWN = 20
SHOWN_PER_FATE = 2  # example documents of each fate, by source
KEPT = "kept"  # the fate of a document that is not dropped; else the reason
SMALL_SOURCE = 100  # documents; if a source has fewer, losing most of them is no sign of a mistake
Summary = dict[str, Any]  # any of the objects here, as JSON


class Part(BaseModel):
    """Base of the models here: immutable, strict, unknown keys ignored. None stands for a key that is left out."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class Counts(Part):
    """Documents and characters of one source before and after a stage, and the number dropped for each reason."""

    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    failed: int = 0  # of those dropped, the ones that could not be read
    dropped: dict[str, int] = {}
    lengths: dict[int, int] = {}  # documents out, by the shortest length of their octave
    metadata_lost: dict[str, int] | None = None  # documents kept without their metadata, by reason

    @field_validator("dropped", "lengths", "metadata_lost")
    @classmethod
    def _sort(cls, table: dict[Any, int] | None) -> dict[Any, int] | None:
        return table and dict(sorted(table.items()))


class ReadError(Part):
    """A record or file that could not be read: its place in the input, and the error."""

    source: str = ""
    where: str
    what: str


class Alarm(Part):
    """A source of which a stage dropped more than its setting expects, or kept too little."""

    source: str
    message: str


class Example(Part):
    """The beginning of a document and its fate."""

    source: str
    fate: str
    id: str
    key: str = ""
    text: str
    score: float | None = None


class Stage(Part):
    """One stage: counts over all sources and for each, alarms, unreadable records, and sample documents."""

    name: str
    seconds: float
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    sources: dict[str, Counts]
    alarms: list[Alarm] = []
    errors: list[ReadError] = []
    files_lost: int = 0
    lost: list[ReadError] = []
    shown: list[Example] = []
    failure: str | None = None  # what could not be read of the files, if that is more than the settings allow
    details: dict[str, Any] | None = None  # what a user's step says of its work
    shards: list[str] | None = Field(None, exclude=True)  # for the next stage alone

    @property
    def total(self) -> Counts:
        """Counts of all sources."""
        parts = [counts.model_dump(exclude_none=True) for counts in self.sources.values()]
        return Counts.model_validate(add_up([NOTHING, *parts]))


class Quality(Part):
    """The classifier's accuracy on held-out documents, and histograms of scores: counts between ``edges``."""

    accuracy: float | None = None
    auc: float | None = None
    trained_on: int | None = None
    held_out: int | None = None
    edges: list[float] = []
    candidates: list[float] = []
    kept: list[float] = []
    positives: list[float] = []


class FilterRule(Part):
    """A rule of filter or exact: where it was published, its threshold, and how many documents or lines it affected."""

    rule: str
    published: str
    threshold: float | None = None
    effect: str
    count: int
    values: dict[int, int] = {}  # documents by floor(4 log2 of the rule's value), if values are kept


class DuplicatePair(Part):
    """A document dropped as a near duplicate, and the one kept in its place."""

    kept: str
    dropped: str
    jaccard: float
    text_kept: str
    text_dropped: str


class Duplicates(Part):
    """Clusters of near duplicates by size, the share removed from each source, and sample pairs."""

    components: int = 0
    cluster_sizes: dict[int, int] = {}
    removed_share: dict[str, float] = {}
    samples: list[DuplicatePair] = []


class ExactCut(Part):
    """A line or passage that was removed since it occurs elsewhere, and the document that it was in."""

    rule: str
    document: str
    text: str


class Exact(Part):
    """The effect of each rule of exact deduplication, and sample cuts."""

    rules: list[FilterRule] = []
    cuts: list[ExactCut] = []


class Cut(Part):
    """An n-gram of task texts found in a document, with the text around it."""

    document: str
    tasks: list[str]
    ngram: str
    text: str


class Decontamination(Part):
    """Documents cut and dropped for holding task texts, cuts by task, and sample cuts."""

    documents_cut: int = 0
    documents_dropped: int = 0
    cuts_by_task: dict[str, int] = {}
    ngrams_common: int = 0
    samples: list[Cut] = []


class SourceTokens(Part):
    """Size and weight of a source in the blend."""

    documents: int
    tokens: int
    weight: float


class RunSummary(Part):
    """The content of summary.json."""

    seconds: float
    stages: list[Stage] = Field(min_length=1)
    languages: dict[str, int] = {}  # records read, by language
    languages_kept: dict[str, int] = {}  # documents extracted from them
    quality: Quality | None = None
    filters: list[FilterRule] = []
    duplicates: Duplicates | None = None
    exact: Exact | None = None
    decontamination: Decontamination | None = None
    tokens: dict[str, SourceTokens] = {}
    vocabulary: int | None = None
    unigram_entropy_nats: float | None = None

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of their first occurrence in the stages."""
        return list(dict.fromkeys(source for stage in self.stages for source in stage.sources))


def add_up(values: Sequence[Any]) -> Any:  # noqa: ANN401  (any JSON)
    """The sum of JSON values of one shape: numbers are added, lists joined, objects added up key by key."""
    if isinstance(values[0], dict):
        by_name: dict[str, list[Any]] = {}
        for value in values:
            for name, inner in value.items():
                by_name.setdefault(name, []).append(inner)
        return {name: add_up(inner) for name, inner in by_name.items()}
    return [*chain.from_iterable(values)] if isinstance(values[0], list) else sum(values)


def stage_summary(name: str, summaries: Iterable[Summary], order: Sequence[str], alarm_share: float = 1.0) -> Summary:
    """Add up the summaries of a stage's tasks; ``seconds`` is left for the caller to set.

    Sources are in this order, then all others by name. ``alarms`` has a ``loss_alarm`` for each source that loses more
    than ``alarm_share`` of its documents.
    """
    empty: Summary = {"sources": dict.fromkeys(order, NOTHING), "errors": [], "lost": [], "shown": []}
    total = add_up([empty, *({key: task[key] for key in empty if key in task} for task in summaries)])
    order = [*order, *sorted({*total["sources"]}.difference(order))]
    sources = {source: total["sources"][source] for source in order}
    losses = (
        loss_alarm(name, source, counts["documents_in"], counts.get("dropped", {}), alarm_share)
        for source, counts in sources.items()
    )
    stage = {
        "name": name,
        "seconds": 0.0,
        **{count: sum(counts[count] for counts in sources.values()) for count in COUNTS},
        "sources": sources,
        "alarms": [alarm for alarm in losses if alarm is not None],
        "errors": total["errors"][:ERRORS_SHOWN],
        "files_lost": len(total["lost"]),
        "lost": total["lost"][:ERRORS_SHOWN],
        "shown": _choose_examples(total["shown"], order),
    }
    return Stage.model_validate(stage, strict=False).model_dump(mode="json", exclude_none=True)


def loss_alarm(
    stage: str, source: str, documents: int, dropped: Mapping[str, int], alarm_share: float
) -> dict[str, str] | None:
    """Source and message of a stage that drops more than this share of the source's documents; None where it does not.

    ``dropped`` counts by reason. The message names the share, the most common reason and the setting.
    """
    lost = sum(dropped.values())
    if lost <= alarm_share * documents:
        return None
    reason, most = max(dropped.items(), key=lambda item: (item[1], item[0]))
    mostly = reason if most == lost else f"{most:,} of them as {reason}"
    message = (
        f"{stage} drops {lost / documents:.1%} of {source}: {lost:,} of {documents:,} documents, {mostly}; "
        f"more than {stage}.alarm_share = {alarm_share:g}"
    )
    return {"source": source, "message": message}


def _choose_examples(shown: Iterable[Summary], order: Sequence[str]) -> list[Summary]:
    """The examples of lowest CRC-32 of each source and fate: sources in this order, fates by name."""
    chosen: dict[tuple[int, str], list[Summary]] = {}
    for example in sorted(shown, key=lambda example: (crc32(example["key"].encode()), example["key"])):
        chosen.setdefault((order.index(example["source"]), example["fate"]), []).append(example)
    return [example for _, group in sorted(chosen.items()) for example in group[:SHOWN_PER_FATE]]


def read_failure(stage: Summary, max_failed: float) -> str | None:
    """Why a stage that read source files must count as failed, in one line; None if it need not.

    Causes are a file that ended early or held nothing, or more than this share of a source's records unreadable.
    """
    unreadable = []
    for source, counts in stage["sources"].items():
        failed, total = counts["failed"], counts["documents_in"]
        if failed > max_failed * total:
            share = f"({failed / total:.1%}), more than max_failed = {max_failed:.1%}"
            unreadable.append(f"{source}: {failed:,} of {total:,} records could not be read {share}")
    named = stage["lost"] or (stage["errors"] if unreadable else [])
    more = f" (and {stage['files_lost'] - 1} more)" if stage["files_lost"] > 1 else ""
    return "; ".join([f"{one['where']}: {one['what']}{more}" for one in named[:1]] + unreadable) or None


def passthrough_summary(source: str, before: Summary) -> Summary:
    """The summary of a source that skips a stage; ``before`` has its counts after the previous stage."""
    counts = {count: before[count.replace("_in", "_out")] for count in COUNTS}
    return {"sources": {source: {**counts, "lengths": before.get("lengths", {})}}}


def merge_summaries(summaries: Sequence[Summary]) -> Summary:
    """The summaries of all stages, in their order, as the object of ``summary.json``."""
    fields = Stage.model_fields
    stages = [{k: v for k, v in stage.items() if k in fields and not fields[k].exclude} for stage in summaries]
    top = {key: value for stage in summaries for key, value in stage.items() if key not in fields}
    return {"version": 1, "seconds": round(sum(stage["seconds"] for stage in stages), 3), "stages": stages, **top}


def say_summary(summary: Summary, note: str) -> None:
    """Print a stage's line, with this note, and its alarms."""
    say(f"{summary_line(summary)} ({note})")
    for alarm in summary["alarms"]:
        say(f"WARNING: {alarm['message']}")


def summary_line(summary: Summary) -> str:
    """One line for a person: what a stage kept, what it dropped and why."""
    stage = Stage.model_validate(summary, strict=False)
    kept, total = stage.documents_out, stage.documents_in
    # Decontamination may write more documents than it reads: a cut makes two of one.
    documents = f"kept {kept:,} of {total:,} documents" if kept <= total else f"made {kept:,} of {total:,} documents"
    share = f" ({kept / total:.1%})" if 0 < kept <= total else ""
    counts = stage.total
    why, lost = (
        ", ".join(f"{name} {n:,}" for name, n in Counter(table).most_common())
        for table in (counts.dropped, counts.metadata_lost)
    )
    characters = (f"{n / 1e6:.1f} M" if n >= 1e6 else f"{n:,}" for n in (stage.characters_in, stage.characters_out))
    dropped = f"; dropped: {why}" if why else ""
    without = f"; kept without their metadata: {lost}" if lost else ""
    return f"{stage.name}: {documents}{share}, {' → '.join(characters)} characters{dropped}{without}"


def read_summary(path: Path) -> RunSummary:
    """Read a summary. Raises ``Failure`` where it is missing, or not what a curation writes."""
    try:
        content = read_small(path)
    except FileNotFoundError:
        raise Failure(f"{path}: no such file; mtnlg-data run, or a single stage, writes it") from None
    return parse_summary(content, path)


def parse_summary(content: bytes, place: object) -> RunSummary:
    """The summary in a file's bytes. Raises ``Failure`` naming the place and the first key that is wrong."""
    try:
        return RunSummary.model_validate_json(content)
    except ValidationError as error:
        detail: Any = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        what = f"{key}: {detail['msg']}" if key else detail["msg"]
        raise Failure(f"{place}: no summary of a curation: {what}; run the curation again, which writes it") from None


def parse_stages(content: bytes, place: object) -> list[Summary]:
    """The stages of such a summary with all their keys. Raises ``Failure`` as `parse_summary`."""
    parse_summary(content, place)
    stages: list[Summary] = json.loads(content)["stages"]
    return stages
