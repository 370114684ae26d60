"""The paper's own studies that a run's folder holds: HANS, hidden operators, bias; each says whom it asked.

    eval/hans.json                   mtnlg-eval hans DIR/eval
    eval/operators.json              mtnlg-eval operators CHECKPOINT --out DIR/eval
    eval/bias.json                   mtnlg-eval bias CHECKPOINT --out DIR/eval
    eval/NAME/hans.json, …           the same with --out DIR/eval/NAME: HANS at other shots or in another mode

One checkpoint's answers are never shown as another's: those of the checkpoint whose scores are on the page are
shown, all others are named.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path


class Part(BaseModel):
    """Base of everything read here: immutable, and open to keys that the report does not use."""

    model_config = ConfigDict(frozen=True, extra="ignore")


P = TypeVar("P", bound=Part)


def parse(content: bytes, schema: type[P], place: str) -> P:
    """The content as the schema has it; ``Failure`` names ``place``, the key and the value that break it."""
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in detail["loc"])
        shown = "" if isinstance(detail["input"], dict | list) else f" = {str(detail['input'])[:60]!r}"
        where = f"{place}: {key}{shown}" if key else place
        raise Failure(f"{where}: {detail['msg']}; run the stage that wrote it again") from None


class Study(Part):
    """Whom a study asked."""

    checkpoint: str
    digest: str
    tokens: int

    @property
    def asked(self) -> str:
        """The checkpoint's name."""
        return PurePath(self.checkpoint).name


class Share(Part):
    """Some rows of HANS: how many, and the shares of right answers, plain and with the threshold shifted."""

    rows: int
    accuracy: float
    shifted: float


class AtShots(Part):
    """HANS at one number of shots; ``labels`` and ``subcases`` lie by heuristic."""

    whole: Share
    mass: float
    said_true: float
    labels: dict[str, dict[str, Share]]
    subcases: dict[str, dict[str, Share]]


class ShotsFrom(Part):
    """Which rows could be shots, and in which order of labels."""

    source: str
    labels: str


class Hans(Study):
    """hans.json; ``shots`` by the number that was asked for."""

    shots_from: ShotsFrom
    shots: dict[str, AtShots] = Field(min_length=1)


class Cell(Part):
    """Problems of one operator in one disguise at one number of shots."""

    operator: str
    disguise: str
    shots: int
    right: int
    problems: int = Field(ge=1)


class Operators(Study):
    """operators.json."""

    cells: list[Cell] = Field(min_length=1)


class Occupation(Part):
    """Which gender the model gives the holders of occupations; log P(female) - log P(male) of each."""

    male_likelier: float
    male_likelier_95: tuple[float, float]
    mean_log_ratio: float
    mean_log_ratio_stderr: float
    by_occupation: dict[str, float] = Field(min_length=1)


class Sentiment(Part):
    """Mean polarity of the words beside a group, in percent: its positive and its negative part."""

    positive: float
    negative: float


class Group(Part):
    """Adjectives beside one group alone, with their ranks, and the sentiment of all words."""

    alone: list[tuple[int, str]]
    sentiment: Sentiment


class Adjectives(Part):
    """What one kind of bias found: its groups, and how many adjectives all of them have."""

    shared: int
    groups: dict[str, Group]


class Bias(Study):
    """bias.json; ``adjectives`` by kind."""

    samples_a_prompt: int
    occupation: Occupation | None = None
    adjectives: dict[str, Adjectives] = Field(default_factory=dict)


SCHEMAS: dict[str, type[Study]] = {"hans": Hans, "operators": Operators, "bias": Bias}


@dataclass(frozen=True)
class Found:
    """A study and where it lies in the run's folder."""

    file: str
    study: Study


@dataclass(frozen=True)
class Studies:
    """What was found: studies of the page's checkpoint, those of others, and of each unreadable file what is wrong."""

    shown: tuple[Found, ...] = ()
    others: tuple[Found, ...] = ()
    broken: tuple[str, ...] = ()


def read_studies(run: Path, digest: str | None) -> Studies:
    """The studies under ``run/eval``; ``digest`` is that of the scored checkpoint, None where nothing was scored.

    Where nothing was scored, the checkpoint that has read most tokens is the page's.
    """
    found: list[Found] = []
    broken: list[str] = []
    for name, schema in SCHEMAS.items():
        for path in sorted((run / "eval").glob(f"{name}.json")) + sorted((run / "eval").glob(f"*/{name}.json")):
            file = path.relative_to(run).as_posix()
            try:
                found.append(Found(file, parse(path.read_bytes(), schema, file)))
            except Failure as failure:
                broken.append(str(failure))
    if digest is None and found:
        digest = max(found, key=lambda one: one.study.tokens).study.digest
    shown = tuple(one for one in found if one.study.digest == digest)
    return Studies(shown, tuple(one for one in found if one.study.digest != digest), tuple(broken))
