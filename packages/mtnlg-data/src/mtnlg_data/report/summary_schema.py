"""The schema of ``summary.json``: what the report reads of a curation's summary. Other keys are ignored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtnlg_data.console import Failure
from mtnlg_data.files import read_small

if TYPE_CHECKING:
    from pathlib import Path


class SummaryPart(BaseModel):
    """Base of the models here: immutable, strict, unknown keys ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


class SourceCounts(SummaryPart):
    """Documents and characters of one source before and after a stage, and the number dropped for each reason."""

    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    failed: int = 0  # of those dropped, the ones that could not be read
    dropped: dict[str, int] = Field(default_factory=dict)
    metadata_lost: dict[str, int] = Field(default_factory=dict)  # documents kept without their metadata, by reason
    lengths: dict[int, int] = Field(default_factory=dict)  # documents out, by the shortest length of their octave


class ReadError(SummaryPart):
    """A record that could not be read: its place in the input, and the error."""

    where: str
    what: str


class Alarm(SummaryPart):
    """A source of which a stage dropped more than its setting expects, or left too little."""

    source: str
    message: str


class SampleDocument(SummaryPart):
    """The beginning of a document and its fate: "kept", or the reason why it was dropped."""

    source: str
    fate: str
    id: str
    text: str
    score: float | None = None


class Stage(SummaryPart):
    """One stage: counts over all sources and for each, alarms, unreadable records, and sample documents."""

    name: str
    seconds: float
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    sources: dict[str, SourceCounts]
    alarms: list[Alarm] = Field(default_factory=list)
    errors: list[ReadError] = Field(default_factory=list)
    lost: list[ReadError] = Field(default_factory=list)  # files read in part or not at all
    shown: list[SampleDocument] = Field(default_factory=list)


class Quality(SummaryPart):
    """The classifier's accuracy on held-out documents, and histograms of scores: counts between ``edges``."""

    accuracy: float | None = None
    auc: float | None = None
    trained_on: int | None = None
    held_out: int | None = None
    edges: list[float] = Field(default_factory=list)
    candidates: list[float] = Field(default_factory=list)
    kept: list[float] = Field(default_factory=list)
    positives: list[float] = Field(default_factory=list)


class FilterRule(SummaryPart):
    """A rule of filter or exact: where it was published, its threshold, and how many documents or lines it took."""

    rule: str
    published: str
    threshold: float | None = None
    effect: str
    count: int


class DuplicatePair(SummaryPart):
    """A document dropped as a near duplicate, and the one kept in its place."""

    kept: str
    dropped: str
    jaccard: float
    text_kept: str
    text_dropped: str


class Duplicates(SummaryPart):
    """Clusters of near duplicates by size, the share removed from each source, and sample pairs."""

    components: int = 0
    cluster_sizes: dict[int, int] = Field(default_factory=dict)
    removed_share: dict[str, float] = Field(default_factory=dict)
    samples: list[DuplicatePair] = Field(default_factory=list)


class ExactCut(SummaryPart):
    """A line or passage that was removed since it occurs elsewhere, and the document that it was in."""

    rule: str
    document: str
    text: str


class Exact(SummaryPart):
    """The effect of each rule of exact deduplication, and sample cuts."""

    rules: list[FilterRule] = Field(default_factory=list)
    cuts: list[ExactCut] = Field(default_factory=list)


class Cut(SummaryPart):
    """An n-gram of task texts found in a document, with the text around it."""

    document: str
    tasks: list[str]
    ngram: str
    text: str


class Decontamination(SummaryPart):
    """Documents cut and dropped for holding task texts, cuts by task, and sample cuts."""

    documents_cut: int = 0
    documents_dropped: int = 0
    cuts_by_task: dict[str, int] = Field(default_factory=dict)
    ngrams_common: int = 0
    samples: list[Cut] = Field(default_factory=list)


class SourceTokens(SummaryPart):
    """Size and weight of a source in the blend."""

    documents: int
    tokens: int
    weight: float


class Summary(SummaryPart):
    """summary.json."""

    seconds: float
    stages: list[Stage] = Field(min_length=1)
    languages: dict[str, int] = Field(default_factory=dict)  # records read, by language
    languages_kept: dict[str, int] = Field(default_factory=dict)  # documents extracted from them
    quality: Quality | None = None
    filters: list[FilterRule] = Field(default_factory=list)
    duplicates: Duplicates | None = None
    exact: Exact | None = None
    decontamination: Decontamination | None = None
    tokens: dict[str, SourceTokens] = Field(default_factory=dict)
    vocabulary: int | None = None
    unigram_entropy_nats: float | None = None

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order of their first occurrence in the stages."""
        return list(dict.fromkeys(source for stage in self.stages for source in stage.sources))


def read_summary(path: Path) -> Summary:
    """Read a summary. Raises ``Failure`` where it is missing, or not what a curation writes."""
    try:
        content = read_small(path)
    except FileNotFoundError:
        raise Failure(f"{path}: no such file; mtnlg-data run, or a single stage, writes it") from None
    return parse_summary(content, path)


def parse_summary(content: bytes, place: object) -> Summary:
    """The summary in a file's bytes. Raises ``Failure`` naming the place and the first key that is wrong."""
    try:
        return Summary.model_validate_json(content)
    except ValidationError as error:
        detail: Any = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        what = f"{key}: {detail['msg']}" if key else detail["msg"]
        raise Failure(f"{place}: no summary of a curation: {what}; run the curation again, which writes it") from None


def parse_stages(content: bytes, place: object) -> list[dict[str, Any]]:
    """The stages of such a summary with all their keys. Raises ``Failure`` as `parse_summary`."""
    parse_summary(content, place)
    stages: list[dict[str, Any]] = json.loads(content)["stages"]
    return stages
