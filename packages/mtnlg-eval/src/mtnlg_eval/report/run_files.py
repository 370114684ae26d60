"""What a run folder says about itself: the JSON that each package leaves there, read into typed parts.

Files are the contract between the packages: nothing is imported from those that wrote them, keys that the report does
not use are passed over, and a part that has not been run is None.

    data/summary.json, data/tokens/blend.json      mtnlg-data run (and data/report.html, which is only linked to)
    train/metrics.jsonl, train/summary.json        mtnlg-parallel train
    eval/summary.json, eval/results.json           mtnlg-eval run
    eval/step-N/summary.json                       mtnlg-eval run --each

The studies that may lie there too are read by study_files.py.

How a file of the run folder is read: JSON into typed parts; keys that the report has no use for are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from mtnlg_model.console import Failure

from .study_files import P, Part, Studies, parse, read_studies

if TYPE_CHECKING:
    from pathlib import Path


CURATION_PAGE = "data/report.html"


class Flow(Part):
    """Documents and characters that went into a stage and came out of it, and why the others did not."""

    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    dropped: dict[str, int] = Field(default_factory=dict)


class Stage(Part):
    """One stage of the curation."""

    name: str
    seconds: float
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    sources: dict[str, Flow]


class Quality(Part):
    """The quality classifier on held-out documents."""

    accuracy: float | None = None
    auc: float | None = None


class Duplicates(Part):
    """Clusters of near duplicates: how many there are."""

    components: int = 0


class Decontamination(Part):
    """What the task texts cost: documents cut apart, documents given up, matches by task."""

    documents_cut: int = 0
    documents_dropped: int = 0
    cuts_by_task: dict[str, int] = Field(default_factory=dict)


class Curation(Part):
    """data/summary.json."""

    seconds: float
    stages: list[Stage]
    quality: Quality | None = None
    duplicates: Duplicates | None = None
    decontamination: Decontamination | None = None
    vocabulary: int | None = None
    unigram_entropy_nats: float | None = None


class BlendSource(Part):
    """One source of the blend: its weight in training and what it holds."""

    name: str
    weight: float
    documents: int
    tokens: int


class Blend(Part):
    """data/tokens/blend.json; ``validation`` is the share that is held out of training."""

    vocabulary: int
    validation: float
    sources: list[BlendSource]


class Step(Part):
    """One line of train/metrics.jsonl. A loss or norm that is not a number may stand as null."""

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


class Layout(Part):
    """Tensor, pipeline and data parallelism: how many ranks wide."""

    tp: int
    pp: int
    dp: int


class Rank(Part):
    """A rank's place in the layout."""

    rank: int
    tp: int
    pp: int
    dp: int


class PipelineStage(Part):
    """The layers that one pipeline stage holds."""

    stage: int
    layers: list[str]
    parameters: int


class Training(Part):
    """train/summary.json."""

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


class Score(Part):
    """A task's score at one number of shots: a share in [0, 1], and how many documents and shots it stands on."""

    metric: str
    value: float
    documents: int = Field(ge=1)
    shots_used: float


class NotRun(Part):
    """A task that was asked for and could not be scored."""

    task: str
    why: str


class Evaluation(Part):
    """eval/summary.json; ``tasks`` by name, then by "0", "1" or "few"."""

    checkpoint: str
    digest: str
    tokens: int
    tasks: dict[str, dict[str, Score]]
    not_run: list[NotRun] = Field(default_factory=list)
    seconds: float
    rows_from: str


class Harness(Part):
    """eval/results.json, of which only the version of lm-eval is used."""

    lm_eval_version: str | None = None


@dataclass(frozen=True)
class Run:
    """All that a run folder holds for the report; None for what has not been run."""

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
    """Read what is there. Raises ``Failure`` where the folder is missing or a file in it breaks the contract."""
    if not folder.is_dir():
        raise Failure(f"{folder}: no such run folder; nox -s quickstart makes runs/quickstart")
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


def _read(path: Path, schema: type[P]) -> P | None:
    try:
        return parse(path.read_bytes(), schema, str(path))
    except FileNotFoundError:
        return None


def _read_history(folder: Path) -> tuple[Evaluation, ...]:
    """The evaluations of several checkpoints of the run, by the tokens that each had read."""
    found = (_read(path, Evaluation) for path in folder.glob("step-*/summary.json"))
    return tuple(sorted((told for told in found if told is not None), key=lambda told: told.tokens))


def _read_steps(path: Path) -> tuple[Step, ...]:
    """The steps in order; a last line that training has not finished writing is left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    lines = content.split(b"\n")[:-1]
    return tuple(parse(line, Step, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip())
