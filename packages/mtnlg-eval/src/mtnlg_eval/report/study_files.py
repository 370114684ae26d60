"""Schemas and readers of a run's studies: HANS, hidden operators and bias.

    eval/hans.json, eval/hans-*.json mtnlg-eval hans DIR/eval
    eval/operators.json              mtnlg-eval operators CHECKPOINT --out DIR/eval
    eval/bias.json                   mtnlg-eval bias CHECKPOINT --out DIR/eval
    eval/NAME/hans.json, …           the same with --out DIR/eval/NAME

Each names the model that it is of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtnlg_model.console import Failure
from mtnlg_model.files import read_small

if TYPE_CHECKING:
    from pathlib import Path


class Schema(BaseModel):
    """Base of every schema of the report: immutable; ignores keys that the report does not use."""

    model_config = ConfigDict(frozen=True, extra="ignore")


T = TypeVar("T", bound=Schema)


def parse_json(content: bytes, schema: type[T], place: str) -> T:
    """Validate JSON against the schema; ``Failure`` names ``place``, the malformed key and its value."""
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        shown = "" if isinstance(detail["input"], dict | list) else f" = {str(detail['input'])[:60]!r}"
        where = f"{place}: {key}{shown}" if key else place
        raise Failure(f"{where}: {detail['msg']}; run the stage that wrote it again") from None


class Study(Schema):
    """The model of a study; ``tokens`` is what it had been trained on."""

    checkpoint: str
    name: str
    digest: str
    tokens: int


class SubsetScore(Schema):
    """A subset of HANS: its rows, and its accuracy in [0, 1] at threshold one half, with its interval, and shifted."""

    rows: int
    accuracy: float
    low: float
    high: float
    shifted: float


class HansTally(Schema):
    """HANS at one number of shots; ``labels`` and ``subcases`` are keyed by heuristic first."""

    whole: SubsetScore
    mass: float
    said_true: float
    labels: dict[str, dict[str, SubsetScore]]
    subcases: dict[str, dict[str, SubsetScore]]


class ShotsFrom(Schema):
    """How the shots were chosen: from which rows, and with which labels."""

    source: str
    labels: str


class Hans(Study):
    """Schema of hans.json; ``shots`` is keyed by the requested number of shots."""

    shots_from: ShotsFrom
    shots: dict[str, HansTally] = Field(min_length=1)


class Cell(Schema):
    """Problems solved for one operator, disguise and number of shots."""

    operator: str
    disguise: str
    shots: int
    right: int
    problems: int = Field(ge=1)


class Operators(Study):
    """Schema of operators.json."""

    cells: list[Cell] = Field(min_length=1)


class Occupations(Schema):
    """Gender by occupation; ``by_occupation`` holds log P(female) - log P(male) in nats."""

    male_likelier: float
    male_likelier_95: tuple[float, float]
    mean_log_ratio: float
    mean_log_ratio_stderr: float
    by_occupation: dict[str, float] = Field(min_length=1)


class Occupation(Occupations):
    """Gender by occupation; ``marked`` are the occupations whose names are marked by gender, apart from the others."""

    marked: Occupations | None = None


class Sentiment(Schema):
    """Mean polarity of a group's words in percent: its positive and its negative part."""

    positive: float
    negative: float


class Group(Schema):
    """Adjectives of this group only, each with its rank, and the sentiment of all words."""

    alone: list[tuple[int, str]]
    sentiment: Sentiment


class Adjectives(Schema):
    """The groups of one kind of bias; ``shared`` is the number of adjectives that all groups have."""

    shared: int
    groups: dict[str, Group]


class Bias(Study):
    """Schema of bias.json; ``adjectives`` is keyed by kind."""

    samples_a_prompt: int
    occupation: Occupation | None = None
    adjectives: dict[str, Adjectives] = Field(default_factory=dict)


SCHEMAS: dict[str, type[Study]] = {"hans": Hans, "operators": Operators, "bias": Bias}


@dataclass(frozen=True)
class StudyFile:
    """A study and its path relative to the run folder."""

    file: str
    study: Study


@dataclass(frozen=True)
class Studies:
    """The studies of a run, and the errors of malformed files."""

    shown: tuple[StudyFile, ...] = ()
    errors: tuple[str, ...] = ()


def read_studies(folder: Path) -> Studies:
    """The studies in the folder of an evaluation, and in its folders."""
    studies: list[StudyFile] = []
    errors: list[str] = []
    for name, schema in SCHEMAS.items():
        patterns = (f"{name}.json", f"{name}-*.json", f"*/{name}.json", f"*/{name}-*.json")
        for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))):
            file = path.relative_to(folder.parent).as_posix()
            try:
                studies.append(StudyFile(file, parse_json(read_small(path), schema, file)))
            except Failure as failure:
                errors.append(str(failure))
    return Studies(tuple(studies), tuple(errors))
