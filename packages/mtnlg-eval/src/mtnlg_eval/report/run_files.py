"""Schemas and readers of a run folder: the JSON files that each package writes into it.

Files are the contract between the packages: nothing is imported from another package that wrote them, unused keys are
ignored, and a part that has not been run is None.

    data/summary.json, data/tokens/blend.json          mtnlg-data run
    train/summary.json, metrics.jsonl, recipe.toml     mtnlg-parallel train
    eval/results/*.json, eval/not_run/*.json           mtnlg-eval run, for any number of checkpoints and styles
    eval/samples/*.jsonl                               its rows (samples.py)
    eval/hans*.json, eval/operators.json, …            the studies, also in subfolders of eval

The folder of a training or of an evaluation alone is read, too. The page of a curation, data/report.html, is linked to.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import AliasPath, Field

from mtnlg_eval.records import Record, T, parse_record
from mtnlg_eval.results.compare import group_runs
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.studies.study import NAMES, study_class
from mtnlg_model.console import Failure
from mtnlg_model.files import read_small

from .samples import sample_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mtnlg_eval.results.compare import Run as ScoredRun
    from mtnlg_eval.results.folder import Gap
    from mtnlg_eval.results.result import Result
    from mtnlg_eval.studies.study import Study

CURATION_PAGE = "data/report.html"
METRICS_BYTES = 1 << 30


class Counts(Record):
    """Documents in and out of a stage, of one source or of all."""

    documents_in: int
    documents_out: int


class Stage(Counts):
    """One stage of the curation; ``sources`` is keyed by name."""

    name: str
    sources: dict[str, Counts]


class Curation(Record):
    """Schema of data/summary.json."""

    seconds: float
    stages: list[Stage]
    vocabulary: int | None = None
    unigram_entropy_nats: float | None = None

    @property
    def documents(self) -> tuple[int, int]:
        """Documents read and kept. Each source is counted at its own first and last stage, since stages may lack it."""
        by_source: dict[str, list[Counts]] = {}
        for stage in self.stages:
            for source, counts in stage.sources.items():
                by_source.setdefault(source, []).append(counts)
        return sum(c[0].documents_in for c in by_source.values()), sum(c[-1].documents_out for c in by_source.values())


class Source(Record):
    """One source of the blend; ``weight`` is its share of the training samples, up to a common factor."""

    name: str
    weight: float
    documents: int
    tokens: int


class Blend(Record):
    """Schema of data/tokens/blend.json; ``validation`` is the share of documents held out."""

    vocabulary: int
    validation: float
    sources: list[Source]

    @property
    def tokens(self) -> int:
        """Tokens of all sources."""
        return sum(source.tokens for source in self.sources)

    @property
    def weight(self) -> float:
        """Sum of the sources' weights; 1 if it is 0."""
        return sum(source.weight for source in self.sources) or 1.0


class SourceLoss(Record):
    """Mean loss of a source's samples since the previous measurement; None if it had no samples."""

    loss: float | None = None


class Step(Record):
    """Schema of a line of train/metrics.jsonl. A loss or norm that is not finite may be null."""

    step: int
    tokens: int
    loss: float | None
    lr: float
    grad_norm: float | None
    batch_size: int
    tokens_per_second: float
    validation_loss: float | None = None
    sources: dict[str, SourceLoss] = Field(default_factory=dict)


class TrainRecipe(Record):
    """Schema of train/recipe.toml."""

    sequence: int = Field(validation_alias=AliasPath("model", "sequence"))
    change: list[dict[str, Any]] = Field([], validation_alias=AliasPath("train", "change"))


class Change(NamedTuple):
    """Settings that apply from a number of tokens on, as text."""

    tokens: int
    words: str


class Layout(Record):
    """Degrees of tensor, context, pipeline and data parallelism; no cp if that is 1."""

    tp: int
    cp: int | None = None
    pp: int
    dp: int


class Training(Record):
    """Schema of train/summary.json; a loss that is not finite may be null."""

    layout: Layout
    parameters: int
    precision: str | None = None
    steps: int
    samples: int
    tokens: int
    loss: float | None = Field(allow_inf_nan=True)
    validation_loss: float | None = None
    seconds: float
    tokens_per_second: float
    versions: dict[str, str | None] = Field(default_factory=dict)
    stream: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run folder, best run first: the page's table shows that one, and compares the others with it.

    ``folder`` holds them, and ``samples`` are the files with the answers of each result.
    """

    folder: Path
    runs: tuple[ScoredRun, ...]
    not_run: tuple[Gap, ...]
    samples: Mapping[str, Path]

    @property
    def main(self) -> ScoredRun:
        """The run in the page's table."""
        return self.runs[0]

    @property
    def results(self) -> list[Result]:
        """Results of every run."""
        return [result for run in self.runs for result in run.results]

    @property
    def seconds(self) -> float:
        """Wall time of all results, in seconds."""
        return sum(result.provenance.seconds for result in self.results)


@dataclass(frozen=True)
class Run:
    """The content of a run folder; parts that have not been run are None. ``studies`` are by name and file."""

    name: str
    has_curation_page: bool
    curation: Curation | None
    blend: Blend | None
    steps: tuple[Step, ...]
    changes: tuple[Change, ...]
    training: Training | None
    evaluation: Evaluation | None
    studies: Mapping[str, Mapping[str, Study]]

    @property
    def not_run(self) -> dict[str, str]:
        """The parts that have not been run, each with its command."""
        parts = {
            "data": (self.curation, "mtnlg-data run RECIPE --out DIR/data"),
            "training": (self.training, "mtnlg-parallel train RECIPE --data DIR/data --out DIR/train"),
            "evaluation": (self.evaluation, "mtnlg-eval run CHECKPOINT --data ROWS --out DIR/eval"),
        }
        return {name: command for name, (part, command) in parts.items() if part is None}

    @property
    def seconds(self) -> dict[str, float]:
        """Wall times, in seconds, of the parts that have been run, without the time before and between them."""
        parts = {"data": self.curation, "training": self.training, "evaluation": self.evaluation}
        return {name: part.seconds for name, part in parts.items() if part is not None}

    @property
    def epochs(self) -> dict[str, float]:
        """Epochs by source: its share of the trained tokens divided by its tokens outside the validation set."""
        if self.blend is None or self.training is None:
            return {}
        trained, share = self.training.tokens / self.blend.weight, 1 - self.blend.validation
        sources = [source for source in self.blend.sources if source.tokens * share > 0]
        return {source.name: trained * source.weight / (source.tokens * share) for source in sources}


def read_run(folder: Path) -> Run:
    """Read the folder of a run or evaluation. Raises ``Failure`` if it is neither, or a file is malformed."""
    if not folder.is_dir():
        raise Failure(f"{folder}: no such run folder; nox -s quickstart makes runs/quickstart")
    scored = folder if (folder / "results").is_dir() or (folder / "not_run").is_dir() else folder / "eval"
    train = folder if (folder / "metrics.jsonl").exists() else folder / "train"
    run = Run(
        name=folder.resolve().name,
        has_curation_page=(folder / CURATION_PAGE).is_file(),
        curation=_read(folder / "data" / "summary.json", Curation),
        blend=_read(folder / "data" / "tokens" / "blend.json", Blend),
        steps=_read_steps(train / "metrics.jsonl"),
        changes=_read_changes(train / "recipe.toml"),
        training=_read(train / "summary.json", Training),
        evaluation=_read_evaluation(scored),
        studies=_read_studies(scored),
    )
    parts = (run.curation, run.blend, run.steps, run.training, run.evaluation, run.studies)
    if not any(parts) and not any((scored / "not_run").glob("*.json")):
        raise Failure(
            f"{folder}: not a run, or no part of it has ended: "
            "no data/summary.json, train/metrics.jsonl, eval/results or results in it"
        )
    return run


def _read(path: Path, schema: type[T]) -> T | None:
    try:
        return parse_record(read_small(path), schema, str(path))
    except FileNotFoundError:
        return None


def _read_steps(path: Path) -> tuple[Step, ...]:
    """The steps in order, without a last line that is still being written."""
    try:
        content = read_small(path, METRICS_BYTES)
    except FileNotFoundError:
        return ()
    lines = enumerate(content.split(b"\n")[:-1], start=1)
    return tuple(parse_record(line, Step, f"{path}:{number}") for number, line in lines if line.strip())


def _read_changes(path: Path) -> tuple[Change, ...]:
    """Changes of settings during training, in order."""
    try:
        content = tomllib.loads(read_small(path).decode())
    except FileNotFoundError:
        return ()
    except ValueError as error:
        raise Failure(f"{path}: {error}") from None
    recipe = parse_record(json.dumps(content, default=str).encode(), TrainRecipe, str(path))
    return tuple(
        Change(
            int(change["at"]) * recipe.sequence,
            ", ".join(
                f"{key} = {value}" for key, value in change.items() if key != "at" and (value != [] or key != "skip")
            ),
        )
        for change in recipe.change
        if isinstance(change.get("at"), int)
    )


def _read_evaluation(folder: Path) -> Evaluation | None:
    """The scores under ``folder``; None if there are none."""
    scored = ResultFolder(folder)
    results = scored.results()
    if not results:
        return None
    samples = sample_files(folder / "samples", [result.name for result in results])
    return Evaluation(folder, tuple(group_runs(results)), tuple(scored.gaps()), samples)


def _read_studies(folder: Path) -> dict[str, dict[str, Study]]:
    """The studies in an evaluation's folder and its subfolders, by name and file."""
    studies: dict[str, dict[str, Study]] = {}
    for name in NAMES:
        patterns = (f"{name}.json", f"{name}-*.json", f"*/{name}.json", f"*/{name}-*.json")
        for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))):
            file = path.relative_to(folder.parent).as_posix()
            studies.setdefault(name, {})[file] = parse_record(read_small(path), study_class(name), file)
    return studies
