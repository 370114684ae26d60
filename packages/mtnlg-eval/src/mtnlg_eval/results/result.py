"""One score and everything that it depends on: the record that --out keeps, and that results.json and pages show.

A result is identified by its task, style, number of shots, seed, checkpoint and the digest of its requests. The same
command again gives the same name; other rows, other prompts or another precision give another.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from mtnlg_eval.table import wilson_interval

from .paper_setting import PAPER_POOL, differences

SCORED_ROWS = "scored rows"
"""The pool of shots where there is no other."""


class Record(BaseModel):
    """Base of the parts of a result: immutable; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Rows(Record):
    """The rows scored; ``digest`` is of their contents in any order, equal for the hub's rows and a file's.

    ``sample_of`` is the number of rows that ``--limit`` sampled from.
    """

    source: str
    split: str
    variant: str | None
    count: int = Field(ge=1)
    sample_of: int
    digest: str


class Shots(Record):
    """The examples in the prompts: ``asked`` as in the command ("few" or a number) and ``count``, the number meant.

    ``mean`` and ``least`` are of those shown, ``pool`` the split that they were drawn from.
    """

    asked: str
    count: int
    mean: float
    least: int
    pool: str
    pool_rows: int
    seed: int | None
    source: str = "any"
    labels: str = "drawn"


class Model(Record):
    """The checkpoint and its precision; ``context`` is the longest prompt in tokens."""

    checkpoint: str
    digest: str
    tokens: int
    step: int
    parameters: int
    precision: str
    context: int

    @property
    def name(self) -> str:
        """The last part of the checkpoint's path."""
        return PurePath(self.checkpoint).name


class Metric(Record):
    """A metric over all rows and, where lm-eval has one, its standard error."""

    value: float
    stderr: float | None


class Provenance(Record):
    """Where a result comes from; the only part that may change when the same command runs again.

    ``rows_revision`` is the commit of the hub's data set.
    """

    command: str
    date: str
    hardware: str
    layout: str
    packages: dict[str, str]
    seconds: float
    rows_revision: str | None = None


class Result(Record):
    """The score of one task at one number of shots, one seed, by one checkpoint.

    ``correct`` has a character a row, "1" for a right answer, in the order of the rows' digests: results with equal
    ``rows.digest`` pair row by row. ``lm_eval`` holds lm-eval's own sections on the task.
    """

    version: Literal[1] = 1
    task: str
    style: str
    shots: Shots
    rows: Rows
    truncated: int
    requests_digest: str
    model: Model
    metrics: dict[str, Metric]
    correct: str
    lm_eval: dict[str, Any]
    provenance: Provenance

    @model_validator(mode="after")
    def _check_rows(self) -> Result:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.task):
            raise ValueError(f"task = {self.task}: needs letters, digits, _ . -")
        if len(self.correct) != self.rows.count:
            raise ValueError(f"correct has {len(self.correct)} answers for {self.rows.count} rows")
        return self

    @property
    def name(self) -> str:
        """Name of its files: task and shots, style, modes of shots, seed if there are shots, checkpoint, requests."""
        shots = self.shots
        how = [mode for mode in (shots.source, shots.labels) if mode not in {"any", "drawn"}]
        how += [] if shots.seed is None else [f"seed{shots.seed}"]
        digests = (self.model.digest[:8], self.requests_digest[:8])
        return "-".join((f"{self.task}_{shots.asked}", self.style, *how, *digests))

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.metrics["acc"].value

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % confidence interval of the accuracy."""
        return wilson_interval(self.accuracy * self.rows.count, self.rows.count)

    @computed_field  # type: ignore[prop-decorator]  # pydantic documents this order
    @property
    def differs(self) -> list[str]:
        """What differs from the paper's setting, a few words each."""
        shots, rows = self.shots, self.rows
        return differences(
            self.task,
            style=self.style,
            rows=rows.count,
            split=rows.split,
            variant=rows.variant,
            asked=shots.count,
            shown=shots.mean,
            pool=PAPER_POOL if not shots.count else SCORED_ROWS if shots.pool == rows.split else shots.pool,
            modes=(shots.source, shots.labels),
            truncated=self.truncated,
            context=self.model.context,
        )


def digest_of(texts: list[str]) -> str:
    """SHA-256 of these texts, in hex; each is terminated, so that no two lists share a digest."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
