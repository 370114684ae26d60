"""Schemas and readers of a run folder: the JSON files that each package writes into it.

Files are the contract between the packages: nothing is imported from the package that wrote them, unused keys are
ignored, and a part that has not been run is None. study_files.py reads the studies.

    data/summary.json, data/tokens/blend.json      mtnlg-data run (and data/report.html, which is only linked to)
    train/metrics.jsonl, train/summary.json        mtnlg-parallel train
    eval/summary.json, eval/results.json           mtnlg-eval run
    eval/step-N/summary.json                       mtnlg-eval run --each
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from mtnlg_model.console import Failure

from .study_files import Schema, Studies, T, parse_json, read_studies

if TYPE_CHECKING:
    from pathlib import Path

CURATION_PAGE = "data/report.html"
PARTS = ("data", "train", "eval")


class SourceCounts(Schema):
    """One source in one stage: documents and characters in and out, and documents dropped by reason."""

    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    dropped: dict[str, int] = Field(default_factory=dict)


class Stage(Schema):
    """One stage of the curation; ``sources`` is keyed by name."""

    name: str
    seconds: float
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    sources: dict[str, SourceCounts]


class Quality(Schema):
    """Accuracy and AUC of the quality classifier on held-out documents."""

    accuracy: float | None = None
    auc: float | None = None


class Duplicates(Schema):
    """Near duplicates; ``components`` is the number of clusters."""

    components: int = 0


class Decontamination(Schema):
    """Decontamination: documents cut apart, documents dropped, cuts by task."""

    documents_cut: int = 0
    documents_dropped: int = 0
    cuts_by_task: dict[str, int] = Field(default_factory=dict)


class Curation(Schema):
    """Schema of data/summary.json."""

    seconds: float
    stages: list[Stage]
    quality: Quality | None = None
    duplicates: Duplicates | None = None
    decontamination: Decontamination | None = None
    vocabulary: int | None = None
    unigram_entropy_nats: float | None = None


class BlendSource(Schema):
    """One source of the blend; ``weight`` is its share of the training samples, up to a common factor."""

    name: str
    weight: float
    documents: int
    tokens: int


class Blend(Schema):
    """Schema of data/tokens/blend.json; ``validation`` is the share of documents held out."""

    vocabulary: int
    validation: float
    sources: list[BlendSource]


class Step(Schema):
    """Schema of a line of train/metrics.jsonl. A loss or norm that is not finite may be null."""

    step: int
    samples: int
    tokens: int
    loss: float | None
    lr: float
    grad_norm: float | None
    batch_size: int
    seconds: float
    tokens_per_second: float
    validation_loss: float | None = None


class Layout(Schema):
    """Degrees of tensor, pipeline and data parallelism."""

    tp: int
    pp: int
    dp: int


class Rank(Schema):
    """A rank and its coordinates in the layout."""

    rank: int
    tp: int
    pp: int
    dp: int


class PipelineStage(Schema):
    """Layers and parameters of one pipeline stage."""

    stage: int
    layers: list[str]
    parameters: int


class Training(Schema):
    """Schema of train/summary.json."""

    layout: Layout
    ranks: list[Rank]
    stages: list[PipelineStage]
    parameters: int
    model: dict[str, float | int | str | bool | None] = Field(default_factory=dict)
    recompute: bool | str | None = None
    precision: str | None = None
    steps: int
    samples: int
    tokens: int
    loss: float | None
    validation_loss: float | None = None
    seconds: float
    tokens_per_second: float
    versions: dict[str, str | None] = Field(default_factory=dict)
    stream: str | None = None


class Score(Schema):
    """A task's score in [0, 1] at one number of shots, with the rows scored and the mean number of shots used."""

    metric: str
    value: float
    documents: int = Field(ge=1)
    shots_used: float


class NotRun(Schema):
    """A requested task that could not be scored."""

    task: str
    why: str


class Evaluation(Schema):
    """Schema of eval/summary.json; ``tasks`` is keyed by name, then by the requested shots ("few" or a number)."""

    checkpoint: str
    digest: str
    tokens: int
    tasks: dict[str, dict[str, Score]]
    not_run: list[NotRun] = Field(default_factory=list)
    seconds: float
    rows_from: str


class Harness(Schema):
    """Schema of eval/results.json: only the version of lm-eval is used."""

    lm_eval_version: str | None = None


@dataclass(frozen=True)
class Run:
    """The content of a run folder; None for what has not been run. ``history`` is sorted by tokens."""

    name: str
    curation: Curation | None
    has_curation_page: bool
    blend: Blend | None
    steps: tuple[Step, ...]
    training: Training | None
    evaluation: Evaluation | None
    history: tuple[Evaluation, ...]
    harness: Harness | None
    studies: Studies


def read_run(folder: Path) -> Run:
    """Read a run folder. ``Failure`` if it is missing, one part of a run, or a file but a study's is malformed."""
    if not folder.is_dir():
        raise Failure(f"{folder}: no such run folder; nox -s quickstart makes runs/quickstart")
    of_part = next((name for name in ("metrics.jsonl", "summary.json") if (folder / name).exists()), None)
    if of_part and not any((folder / part).is_dir() for part in PARTS):
        raise Failure(f"{folder}: one part of a run, with {of_part}; give the folder that holds {', '.join(PARTS)}")
    history = _read_history(folder / "eval")
    evaluation = _read(folder / "eval" / "summary.json", Evaluation) or (history[-1] if history else None)
    return Run(
        name=folder.resolve().name,
        curation=_read(folder / "data" / "summary.json", Curation),
        has_curation_page=(folder / CURATION_PAGE).is_file(),
        blend=_read(folder / "data" / "tokens" / "blend.json", Blend),
        steps=_read_steps(folder / "train" / "metrics.jsonl"),
        training=_read(folder / "train" / "summary.json", Training),
        evaluation=evaluation,
        history=history,
        harness=_read(folder / "eval" / "results.json", Harness),
        studies=read_studies(folder, evaluation.digest if evaluation else None),
    )


def _read(path: Path, schema: type[T]) -> T | None:
    try:
        return parse_json(path.read_bytes(), schema, str(path))
    except FileNotFoundError:
        return None


def _read_history(folder: Path) -> tuple[Evaluation, ...]:
    """The evaluations of ``run --each``, in the order of their checkpoints' tokens."""
    summaries = [parse_json(path.read_bytes(), Evaluation, str(path)) for path in folder.glob("step-*/summary.json")]
    return tuple(sorted(summaries, key=lambda summary: summary.tokens))


def _read_steps(path: Path) -> tuple[Step, ...]:
    """The steps in order, without a last line that is still being written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    lines = enumerate(content.split(b"\n")[:-1], start=1)
    return tuple(parse_json(line, Step, f"{path}:{number}") for number, line in lines if line.strip())
