"""Schemas and readers of a run folder: the JSON files that each package writes into it.

Files are the contract between the packages: nothing is imported from another package that wrote them, unused keys are
ignored, and a part that has not been run is None. results/folder.py reads the scores, study_files.py the studies.

    data/summary.json, data/tokens/blend.json      mtnlg-data run (and data/report.html, which is only linked to)
    train/metrics.jsonl, train/summary.json        mtnlg-parallel train
    eval/results/*.json, eval/not_run/*.json       mtnlg-eval run, for any number of checkpoints and styles
    eval/samples/*.jsonl                           its rows (samples.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from mtnlg_eval.results.compare import group_runs
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_model.console import Failure
from mtnlg_model.files import read_small

from .samples import sample_files
from .study_files import Schema, Studies, T, parse_json, read_studies

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mtnlg_eval.results.compare import Run as ScoredRun
    from mtnlg_eval.results.result import Result

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


class NotRun(Schema):
    """A requested task that could not be scored on a checkpoint."""

    task: str
    why: str
    checkpoint: str


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run folder, best run first: the page's table shows that one, and compares the others with it.

    ``folder`` is where they lie, and ``samples`` are the files with the answers of each result.
    """

    folder: Path

    runs: tuple[ScoredRun, ...]
    not_run: tuple[NotRun, ...]
    samples: Mapping[str, Path]

    @property
    def main(self) -> ScoredRun:
        """The run of the page's table."""
        return self.runs[0]

    @property
    def results(self) -> list[Result]:
        """Results of every run."""
        return [result for run in self.runs for result in run.results]

    @property
    def seconds(self) -> float:
        """Seconds that all results took."""
        return sum(result.provenance.seconds for result in self.results)

    @property
    def history(self) -> list[ScoredRun]:
        """Runs that differ from the main one in the checkpoint alone, and the main one, by tokens."""
        modes = [(run.style, run.results[0].shots.source, run.results[0].shots.labels) for run in self.runs]
        alike = [run for run, mode in zip(self.runs, modes, strict=True) if mode == modes[0]]
        return sorted(alike, key=lambda run: run.model.tokens)


@dataclass(frozen=True)
class Run:
    """The content of a run folder; None for what has not been run."""

    name: str
    curation: Curation | None
    has_curation_page: bool
    blend: Blend | None
    steps: tuple[Step, ...]
    training: Training | None
    evaluation: Evaluation | None
    studies: Studies


def epochs_read(run: Run) -> dict[str, float]:
    """Epochs by source: its share of the tokens trained, over its tokens outside the validation set."""
    if run.blend is None or run.training is None:
        return {}
    trained, train_share = run.training.tokens, 1 - run.blend.validation
    weights = sum(source.weight for source in run.blend.sources) or 1.0
    return {
        source.name: trained * source.weight / weights / (source.tokens * train_share)
        for source in run.blend.sources
        if source.tokens * train_share > 0
    }


def read_run(folder: Path) -> Run:
    """Read the folder of a run, a training or an evaluation. ``Failure`` if it is neither, or a file is malformed."""
    if not folder.is_dir():
        raise Failure(f"{folder}: no such run folder; nox -s quickstart makes runs/quickstart")
    scored = folder if (folder / "results").is_dir() or (folder / "not_run").is_dir() else folder / "eval"
    train = folder if (folder / "metrics.jsonl").exists() else folder / "train"
    if train != folder and (folder / "summary.json").exists() and not any((folder / part).is_dir() for part in PARTS):
        raise Failure(f"{folder}: one part of a run, with summary.json; give the folder that holds {', '.join(PARTS)}")
    evaluation = _read_evaluation(scored)
    run = Run(
        name=folder.resolve().name,
        curation=_read(folder / "data" / "summary.json", Curation),
        has_curation_page=(folder / CURATION_PAGE).is_file(),
        blend=_read(folder / "data" / "tokens" / "blend.json", Blend),
        steps=_read_steps(train / "metrics.jsonl"),
        training=_read(train / "summary.json", Training),
        evaluation=evaluation,
        studies=read_studies(scored),
    )
    parts = (run.curation, run.blend, run.steps, run.training, run.evaluation, run.studies.shown, run.studies.errors)
    if not any(parts) and not any((scored / "not_run").glob("*.json")):
        raise Failure(
            f"{folder}: not a run, or nothing of it has ended: "
            "no data/summary.json, train/metrics.jsonl, eval/results or results in it"
        )
    return run


METRICS_BYTES = 1 << 30


def _read(path: Path, schema: type[T]) -> T | None:
    try:
        return parse_json(read_small(path), schema, str(path))
    except FileNotFoundError:
        return None


def _read_evaluation(folder: Path) -> Evaluation | None:
    """The scores under ``folder``; None if there are none."""
    scored = ResultFolder(folder)
    results = scored.results()
    if not results:
        return None
    samples = sample_files(folder / "samples", [result.name for result in results])
    return Evaluation(folder, tuple(group_runs(results)), tuple(map(NotRun.model_validate, scored.gaps())), samples)


def _read_steps(path: Path) -> tuple[Step, ...]:
    """The steps in order, without a last line that is still being written."""
    try:
        content = read_small(path, METRICS_BYTES)
    except FileNotFoundError:
        return ()
    lines = enumerate(content.split(b"\n")[:-1], start=1)
    return tuple(parse_json(line, Step, f"{path}:{number}") for number, line in lines if line.strip())
