"""One score and everything that it depends on: the record that --out stores, and that results.json and pages show.

A result is identified by its task, style, number of shots, seed, model and the digest of its requests. Repeating a
command gives the same name; other rows, other prompts or another model give another name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from pydantic import Field, computed_field, model_validator

from mtnlg_eval.records import Record

from .paper_setting import differences
from .statistics import Estimate, mean_estimate


class FailedRow(Record):
    """A row that could not be scored, by its number in the split, and why."""

    number: int
    why: str


class Rows(Record):
    """The rows scored; ``digest`` is of their contents, independent of order and equal for the hub's rows and a file's.

    ``sample_of`` is the number of rows that ``--limit`` sampled from; ``failed`` lists rows that could not be scored.
    """

    source: str
    split: str
    variant: str | None
    count: int = Field(ge=1)
    sample_of: int
    digest: str
    failed: list[FailedRow] = Field(default_factory=list)


class Shots(Record):
    """The examples in the prompts: ``asked`` is as in the command ("few" or a number), ``count`` the number it means.

    ``mean`` and ``least`` are the mean and least number shown in a prompt, ``pool`` the split that they are drawn from.
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
    """A model in a precision: ``checkpoint`` is its path or hub id, ``name`` the last part of that.

    ``context`` is its longest prompt in tokens, ``threads`` torch's number on a CPU.
    """

    checkpoint: str
    name: str
    digest: str
    tokens: int
    step: int
    parameters: int
    precision: str
    context: int
    threads: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Path, name, digest and trained tokens, as summaries and studies record them."""
        return self.model_dump(include={"checkpoint", "name", "digest", "tokens"})


class Metric(Record):
    """A metric over all rows and, if it can be computed, its standard error; rows of a group count as dependent."""

    value: float
    stderr: float | None


class Provenance(Record):
    """Where a result comes from; the only part that may change when a command is repeated.

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
    """The score of one task at one number of shots, one seed, by one model.

    ``metric`` names the score. ``values`` has each row's score, in the order of the rows' digests, so that results with
    equal ``rows.digest`` pair row by row, and ``clusters`` the number of each row's group; both are empty if the score
    is not a mean of rows. ``groups`` are the lm-eval groups that the task was run for, ``label_tokens`` the number of
    tokens of each label word if all rows have the same words. ``lm_eval`` holds lm-eval's own sections.
    """

    version: Literal[2] = 2
    task: str
    style: str
    shots: Shots
    rows: Rows
    truncated: int
    requests_digest: str
    model: Model
    metric: str
    metrics: dict[str, Metric]
    values: list[float]
    clusters: list[int]
    groups: list[str] = Field(default_factory=list)
    label_tokens: list[int] = Field(default_factory=list)
    lm_eval: dict[str, Any]
    provenance: Provenance

    @model_validator(mode="after")
    def _check_rows(self) -> Result:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.task):
            raise ValueError(f"task = {self.task}: needs letters, digits, _ . -")
        if self.values and not len(self.values) == len(self.clusters) == self.rows.count:
            raise ValueError(f"values has {len(self.values)} scores for {self.rows.count} rows")
        if self.metric not in self.metrics:
            raise ValueError(f"metric = {self.metric}: not in metrics")
        return self

    @property
    def name(self) -> str:
        """Name of the result's files: task and shots, style, shot modes, seed if there are shots, model, requests."""
        shots = self.shots
        how = [mode for mode in (shots.source, shots.labels) if mode not in {"any", "drawn"}]
        how += [] if shots.seed is None else [f"seed{shots.seed}"]
        digests = (self.model.digest[:8], self.requests_digest[:8])
        return "-".join((f"{self.task}_{shots.asked}", self.style, *how, *digests))

    @property
    def score(self) -> float:
        """The value of ``metric``."""
        return self.metrics[self.metric].value

    @property
    def is_share(self) -> bool:
        """Whether the score is a mean of numbers from 0 to 1, shown in percent."""
        return bool(self.values) and all(0 <= value <= 1 for value in self.values)

    @property
    def estimate(self) -> Estimate:
        """The score with its 95 % interval."""
        return mean_estimate(self.score, self.values, self.clusters, self.metrics[self.metric].stderr)

    @computed_field  # type: ignore[prop-decorator]  # pydantic documents this order
    @property
    def differs(self) -> list[str]:
        """Differences from the paper's setting, a few words each."""
        return differences(self, self.shots.mean, self.truncated)


def digest_of(texts: list[str]) -> str:
    """SHA-256 of these texts, in hex; each is terminated, so that no two lists share a digest."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
