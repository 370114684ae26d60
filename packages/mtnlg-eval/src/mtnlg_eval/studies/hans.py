"""The HANS study (paper.md 5.3): answers by heuristic, label and each of the 30 subcases.

HANS asks whether a sentence entails another made of the same words. A model that only compares words always says True:
right for half the rows, wrong for the other half. Accuracy alone therefore says little; the study adds:

    mass        P(True) + P(False): how much the model answers in the requested form; shots raise it
    said_true   the share of rows with the answer True: the bias towards one label
    shifted     accuracy with the threshold on P(True) / (P(True) + P(False)) at its mean over all rows instead of at
                one half, which removes that bias; the intervals take that threshold as given

It reads the samples that ``mtnlg-eval run`` writes, at every number of shots that was scored. Every figure has its 95 %
interval, where rows of one template count as dependent. With several draws of shots, every figure is their mean, and
``between_draws`` is the standard error of the mean accuracy.
"""

from __future__ import annotations

import re
from math import exp
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel, Field

from mtnlg_eval.chart import PERCENT, Chart, steps
from mtnlg_eval.markup import count
from mtnlg_eval.records import Record, parse_record
from mtnlg_eval.results.compare import group_runs
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.results.statistics import Estimate, clustered_error, mean_estimate, numbered
from mtnlg_eval.table import Table
from mtnlg_model.console import Failure
from mtnlg_model.files import file_lines

from .study import Study

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

HALF = 0.5
TRUE, FALSE = 0, 1
"""Labels, which are also the indices of the choices: True is entailment."""


class Document(BaseModel, strict=True):
    """The fields of a row that the study needs."""

    heuristic: str
    subcase: str
    label: int = Field(ge=TRUE, le=FALSE)
    template: str = ""


class Verdict(BaseModel, strict=True):
    """The model's answer to one row, a line of the samples: log P(True) and log P(False), and the scores of `run`."""

    doc: Document
    filtered_resps: list[tuple[float, bool]] = Field(min_length=2, max_length=2)
    scores: list[float] = Field(min_length=2, max_length=2)

    @property
    def mass(self) -> float:
        """P(True) + P(False)."""
        return sum(exp(logp) for logp, _ in self.filtered_resps)

    @property
    def probability(self) -> float:
        """P(True) / (P(True) + P(False)), from the scores: above one half if `run` decides for True."""
        true, false = self.scores
        return 1 / (1 + exp(min(false - true, 700.0)))

    @property
    def said_true(self) -> bool:
        """Whether `run` decides for True."""
        return self.scores[TRUE] >= self.scores[FALSE]

    def right(self, threshold: float) -> bool:
        """Whether the answer is right if it is True above the threshold and False otherwise."""
        said_true = self.said_true if threshold == HALF else self.probability > threshold
        return said_true == (self.doc.label == TRUE)


class SubsetScore(Record):
    """A subset of the rows: its size, and its accuracy in [0, 1] at threshold one half and at the shifted threshold."""

    rows: int
    accuracy: Estimate
    shifted: Estimate


class Tally(Record):
    """The study at one number of shots; ``labels`` and ``subcases`` are keyed by heuristic first."""

    whole: SubsetScore
    mass: Estimate
    said_true: Estimate
    threshold: float = HALF
    labels: dict[str, dict[str, SubsetScore]]
    subcases: dict[str, dict[str, SubsetScore]]
    draws: int = 1
    between_draws: float | None = None


class Answer(NamedTuple):
    """A verdict of one draw of shots, with the cluster of its row and the draw's shifted threshold."""

    verdict: Verdict
    cluster: Hashable
    threshold: float


def tally(*draws: Sequence[Verdict]) -> Tally:
    """The study's figures over at least one row, which each draw of shots has answered, in one order."""
    thresholds = [fmean(verdict.probability for verdict in draw) for draw in draws]
    answers = [
        Answer(verdict, verdict.doc.template or number, threshold)
        for draw, threshold in zip(draws, thresholds, strict=True)
        for number, verdict in enumerate(draw)
    ]

    def figure(subset: Sequence[Answer], of: Callable[[Answer], float]) -> Estimate:
        values, clusters = [float(of(each)) for each in subset], numbered(each.cluster for each in subset)
        return mean_estimate(fmean(values), values, clusters, clustered_error(values, clusters))

    def score(subset: Sequence[Answer]) -> SubsetScore:
        plain = figure(subset, lambda each: each.verdict.right(HALF))
        shifted = figure(subset, lambda each: each.verdict.right(each.threshold))
        return SubsetScore(rows=len(subset) // len(draws), accuracy=plain, shifted=shifted)

    def score_by(name: Callable[[Document], str]) -> dict[str, dict[str, SubsetScore]]:
        groups: dict[str, dict[str, list[Answer]]] = {}
        for answer in answers:
            doc = answer.verdict.doc
            groups.setdefault(doc.heuristic, {}).setdefault(name(doc), []).append(answer)
        return {heuristic: {n: score(subset) for n, subset in named.items()} for heuristic, named in groups.items()}

    return Tally(
        whole=score(answers),
        mass=figure(answers, lambda each: each.verdict.mass),
        said_true=figure(answers, lambda each: each.verdict.said_true),
        threshold=fmean(thresholds),
        labels=score_by(lambda doc: "entailment" if doc.label == TRUE else "non-entailment"),
        subcases=score_by(lambda doc: doc.subcase),
        draws=len(draws),
    )


def read_verdicts(samples: Path) -> list[Verdict]:
    """The answers in a file of samples. Raises ``Failure`` naming the first malformed line."""
    lines = enumerate(file_lines(samples), start=1)
    verdicts = [parse_record(line, Verdict, f"{samples}:{number}") for number, line in lines]
    if not verdicts:
        raise Failure(f"{samples}: no samples")
    return verdicts


CHARTS = (
    (
        "accuracy, %: plain (dots) and threshold shifted (rings)",
        "accuracy against the examples in the prompt",
        (("plain", "accent", "whole.accuracy"), ("threshold shifted", "accent dashed ring", "whole.shifted")),
    ),
    (
        "P(True) + P(False), %; says True, % (grey)",
        "probability of the two answers, and share of True",
        (("P(True) + P(False)", "second", "mass"), ("says True", "muted dashed", "said_true")),
    ),
)
"""Title, description and lines of each chart; a line is a name, a look and a field of `Tally`."""


class Hans(Study):
    """The study of a model in one style and mode of shots; ``shots`` is keyed by the number of shots asked for."""

    TITLE = "HANS"
    READING = (
        "A model that only compares the words of the two sentences always says True: right on entailment, wrong on the "
        "rest. An increase therefore counts only if both labels improve. Figures are ± half their 95 % intervals; "
        "those after the arrow, and the rings, have the threshold on P(True) at its mean over all rows, not one half."
    )

    shots_from: dict[Literal["source", "labels"], str]
    """How the shots were chosen."""
    shots: dict[str, Tally] = Field(min_length=1)

    def tables(self) -> list[Table]:
        """Accuracy with its interval → shifted accuracy, in percent, for every subset at each number of shots.

        Numbers of shots may have been scored on different rows: a cell is empty if none of them is in the subset.
        """
        tallies = list(self.shots.values())

        def row(head: str, scores: Iterable[SubsetScore | None]) -> list[str]:
            return [head, *(f"{_text(x.accuracy)} → {_text(x.shifted)}" if x else "" for x in scores)]

        rows = [row("all rows", [each.whole for each in tallies])]
        if len({each.whole.rows for each in tallies}) > 1:
            rows.append(["number of rows", *(count(each.whole.rows) for each in tallies)])
        if any(each.draws > 1 for each in tallies):
            spreads = (each.between_draws for each in tallies)
            rows.append(["standard error between draws", *("" if x is None else f"{100 * x:.1f}" for x in spreads)])
        for heuristic in _names(each.labels for each in tallies):
            for part, start in (("labels", f"{heuristic}, "), ("subcases", "  ")):
                groups = [getattr(each, part).get(heuristic, {}) for each in tallies]
                rows += [row(start + name, [group.get(name) for group in groups]) for name in _names(groups)]
        rows.append(["P(True) + P(False), %", *(_text(each.mass) for each in tallies)])
        rows.append(["says True, %", *(_text(each.said_true) for each in tallies)])
        return [Table(["accuracy, % → shifted", *(f"{asked} shots" for asked in self.shots)], rows)]

    def charts(self) -> list[Chart]:
        """Accuracy by shots; mass and share of True by shots."""
        charts, axis = [], steps(list(self.shots), 0.3)
        for title, about, lines in CHARTS:
            chart = Chart(title, f"HANS: {about}", axis, PERCENT, note="examples in the prompt")
            for what, look, field in lines:
                estimates = list(map(attrgetter(field), self.shots.values()))
                chart.line(look, *((n, 100 * share) for n, (share, *_) in enumerate(estimates)))
                for n, estimate in enumerate(estimates):
                    chart.share(n, estimate, look, what)
            charts.append(chart)
        return charts


def run_hans_study(folder: Path) -> dict[str, Hans]:
    """Tally the HANS results of an evaluation by number of shots; writes the studies and returns them by file name.

    ``folder`` is the --out of ``mtnlg-eval run``. Every model, style and mode of shots has a study: the best run's is
    hans.json, another's hans-LABEL.json (results/compare.py). Raises ``Failure`` if HANS was not scored.
    """
    scored = ResultFolder(folder)
    runs = group_runs(result for result in scored.results() if result.task == "hans")
    if not runs:
        raise Failure(
            f"{folder}: HANS was not scored here; mtnlg-eval run CHECKPOINT --tasks hans --out {folder} scores it"
        )
    studies: dict[str, Hans] = {}
    for run in runs:
        tallies = {}
        for asked, cell in run.by_task["hans"].items():
            draws = (read_verdicts(scored.samples(result)) for result in cell.results)
            tallies[asked] = tally(*draws).model_copy(update={"between_draws": cell.between_draws})
        name = "-".join(("hans", *re.findall(r"[\w.]+", run.label))) if studies else "hans"
        mode = run.results[0].shots
        studies[f"{name}.json"] = Hans(
            version=3,
            **run.model.identity | {"name": run.label},
            shots_from={"source": mode.source, "labels": mode.labels},
            shots=tallies,
        )
        studies[f"{name}.json"].write(folder / f"{name}.json")
    return studies


def _names(groups: Iterable[Iterable[str]]) -> list[str]:
    """Names that are in any of these groups, in order."""
    return list(dict.fromkeys(name for group in groups for name in group))


def _text(estimate: Estimate) -> str:
    share, low, high = estimate
    return f"{100 * share:.0f}±{50 * (high - low):.0f}"


STUDY = Hans
