"""What ``summary.json`` says of a curation, read into typed parts; keys that the page does not use are passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtnlg_data.console import Failure

if TYPE_CHECKING:
    from pathlib import Path


class Part(BaseModel):
    """Base of everything read here: immutable, and open to keys that the page has no use for."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Flow(Part):
    """Documents and characters that went into a stage and came out of it, and why the others did not."""

    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    dropped: dict[str, int] = Field(default_factory=dict)
    lengths: dict[int, int] = Field(default_factory=dict)  # documents out, by the shortest length of their octave


class Loss(Part):
    """One document that could not be read: where it lies and what is wrong with it."""

    where: str
    what: str


class Shown(Part):
    """The beginning of a document, and what became of it: "kept", or the reason for which it was dropped."""

    source: str
    fate: str
    id: str
    text: str
    score: float | None = None


class Stage(Part):
    """One stage."""

    name: str
    seconds: float
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    sources: dict[str, Flow]
    errors: list[Loss] = Field(default_factory=list)
    shown: list[Shown] = Field(default_factory=list)


class Quality(Part):
    """The classifier on held-out documents, and histograms of its scores: counts between ``edges``."""

    accuracy: float | None = None
    auc: float | None = None
    trained_on: int | None = None
    held_out: int | None = None
    edges: list[float] = Field(default_factory=list)
    candidates: list[float] = Field(default_factory=list)
    kept: list[float] = Field(default_factory=list)
    positives: list[float] = Field(default_factory=list)


class Pair(Part):
    """A document that was dropped as a near duplicate, and the one that was kept in its place."""

    kept: str
    dropped: str
    jaccard: float
    text_kept: str
    text_dropped: str


class Duplicates(Part):
    """Clusters of near duplicates: how many there are of each size, and what each source lost."""

    components: int = 0
    cluster_sizes: dict[int, int] = Field(default_factory=dict)
    removed_share: dict[str, float] = Field(default_factory=dict)
    alarms: list[str] = Field(default_factory=list)
    samples: list[Pair] = Field(default_factory=list)


class Cut(Part):
    """An n-gram of the tasks that was found in a document, with what stood around it."""

    document: str
    tasks: list[str]
    ngram: str
    text: str


class Decontamination(Part):
    """What the task texts cost: documents cut apart, documents given up, matches by task."""

    documents_cut: int = 0
    documents_dropped: int = 0
    cuts_by_task: dict[str, int] = Field(default_factory=dict)
    ngrams_common: int = 0
    samples: list[Cut] = Field(default_factory=list)


class Tokens(Part):
    """What a source holds in the blend."""

    documents: int
    tokens: int
    weight: float


class Told(Part):
    """summary.json."""

    seconds: float
    stages: list[Stage]
    languages: dict[str, int] = Field(default_factory=dict)
    quality: Quality | None = None
    duplicates: Duplicates | None = None
    decontamination: Decontamination | None = None
    tokens: dict[str, Tokens] = Field(default_factory=dict)
    vocabulary: int | None = None
    unigram_entropy_nats: float | None = None

    @property
    def sources(self) -> list[str]:
        """Names of the sources in the order in which the stages name them."""
        return list(dict.fromkeys(source for stage in self.stages for source in stage.sources))


def read(path: Path) -> Told:
    """Read a summary. Raises ``Failure`` where it is missing or not what a curation writes."""
    try:
        return Told.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise Failure(f"{path}: no such file; mtnlg-data run and the stages by themselves write it") from None
    except ValidationError as error:
        detail: Any = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        raise Failure(f"{path}: {key}: {detail['msg']}; run the curation again, which writes it") from None
