"""The HANS study (paper.md 5.3): answers by heuristic, label and each of the 30 subcases.

HANS asks whether a sentence entails another made of the same words. A model that only compares words always says True:
right for half the rows, wrong for the other half. Accuracy alone therefore says little; the study adds:

    mass        P(True) + P(False): how far the model answers in the requested form; shots raise it
    said_true   the share of rows with the answer True: the bias towards one label
    shifted     accuracy with the threshold on P(True) / (P(True) + P(False)) at its mean over all rows instead of at
                one half, which removes that bias

It reads the samples that ``mtnlg-eval run`` writes, at every number of shots that was scored. Of several draws of shots
every number is the mean, and ``between_draws`` the standard error of the accuracy's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtnlg_eval.results.compare import group_runs, labels
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.results.statistics import mean_estimate
from mtnlg_eval.tasks.rows import explain
from mtnlg_model.console import Failure
from mtnlg_model.files import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

HALF = 0.5
TRUE, FALSE = 0, 1
"""Labels, which are also the indices of the choices: True is entailment."""


class Verdict(NamedTuple):
    """The model's answer to one row: log P(True) and log P(False), and what `run` compares the two answers by."""

    heuristic: str
    subcase: str
    label: int
    template: str
    logps: tuple[float, float]
    scores: tuple[float, float]

    @property
    def mass(self) -> float:
        """P(True) + P(False)."""
        return exp(self.logps[TRUE]) + exp(self.logps[FALSE])

    @property
    def probability(self) -> float:
        """P(True) / (P(True) + P(False)), by the scores: above one half where `run` decides for True."""
        true, false = self.scores
        return 1 / (1 + exp(min(false - true, 700.0)))

    def right(self, threshold: float) -> bool:
        """Whether the answer is right if it is True above the threshold and False otherwise."""
        said_true = self.scores[TRUE] >= self.scores[FALSE] if threshold == HALF else self.probability > threshold
        return said_true == (self.label == TRUE)


class SubsetScore(NamedTuple):
    """A subset of the rows: its size, and its accuracy in [0, 1] at threshold one half and at the shifted threshold.

    ``low`` to ``high`` is the first one's 95 % interval, rows of one template counting as dependent.
    """

    rows: int
    accuracy: float
    low: float
    high: float
    shifted: float


class Tally(NamedTuple):
    """The study at one number of shots; ``labels`` and ``subcases`` are keyed by heuristic first."""

    whole: SubsetScore
    mass: float
    said_true: float
    threshold: float
    labels: dict[str, dict[str, SubsetScore]]
    subcases: dict[str, dict[str, SubsetScore]]


def tally(verdicts: Sequence[Verdict]) -> Tally:
    """The study's numbers over at least one row."""
    threshold = fmean(verdict.probability for verdict in verdicts)

    def score(subset: Sequence[Verdict]) -> SubsetScore:
        plain, shifted = ([float(verdict.right(bound)) for verdict in subset] for bound in (HALF, threshold))
        templates: dict[str, int] = {}
        clusters = [templates.setdefault(verdict.template, len(templates)) for verdict in subset]
        return SubsetScore(len(subset), *mean_estimate(fmean(plain), plain, clusters), fmean(shifted))

    def score_by(name: Callable[[Verdict], str]) -> dict[str, dict[str, SubsetScore]]:
        groups: defaultdict[str, defaultdict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
        for verdict in verdicts:
            groups[verdict.heuristic][name(verdict)].append(verdict)
        return {heuristic: {n: score(subset) for n, subset in named.items()} for heuristic, named in groups.items()}

    return Tally(
        whole=score(verdicts),
        mass=fmean(verdict.mass for verdict in verdicts),
        said_true=fmean(verdict.scores[TRUE] >= verdict.scores[FALSE] for verdict in verdicts),
        threshold=threshold,
        labels=score_by(lambda verdict: "entailment" if verdict.label == TRUE else "non-entailment"),
        subcases=score_by(lambda verdict: verdict.subcase),
    )


class _Doc(BaseModel):
    model_config = ConfigDict(strict=True)

    heuristic: str
    subcase: str
    label: int = Field(ge=TRUE, le=FALSE)
    template: str = ""


class _Sample(BaseModel):
    model_config = ConfigDict(strict=True)

    doc: _Doc
    filtered_resps: list[tuple[float, bool]] = Field(min_length=2, max_length=2)
    scores: list[float] = Field(min_length=2, max_length=2)


def read_verdicts(samples: Path) -> list[Verdict]:
    """The answers in a file of samples; ``Failure`` names the first malformed line."""
    verdicts = []
    with samples.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                sample = _Sample.model_validate_json(line)
            except ValidationError as error:
                raise Failure(f"{samples}:{number}: {explain(error)}") from None
            ((true, _), (false, _)), (first, second), doc = sample.filtered_resps, sample.scores, sample.doc
            verdicts.append(
                Verdict(
                    doc.heuristic, doc.subcase, doc.label, doc.template or str(number), (true, false), (first, second)
                )
            )
    if not verdicts:
        raise Failure(f"{samples}: no samples in it")
    return verdicts


def run_hans_study(folder: Path) -> dict[str, dict[str, Any]]:
    """Tally the HANS results of an evaluation by number of shots; returns the studies by file name, and writes them.

    ``folder`` is the --out of ``mtnlg-eval run``. Every model, style and mode of shots has a study: the best one's is
    hans.json, another's hans-LABEL.json (results/compare.py). ``Failure`` if HANS was not scored.
    """
    scored = ResultFolder(folder)
    runs = group_runs(result for result in scored.results() if result.task == "hans")
    if not runs:
        raise Failure(
            f"{folder}: HANS was not scored here; mtnlg-eval run CHECKPOINT --tasks hans --out {folder} scores it"
        )
    studies: dict[str, dict[str, Any]] = {}
    for run, label in zip(runs, labels(runs), strict=True):
        shots = run.results[0].shots
        tallies = {
            asked: {
                **mean_of([to_plain(tally(read_verdicts(scored.samples(result)))) for result in cell.results]),
                "draws": len(cell.results),
                "between_draws": cell.between_draws,
            }
            for asked, cell in run.by_shots("hans").items()
        }
        identity = run.model.model_dump(include={"checkpoint", "digest", "tokens"}) | {"name": label}
        name = "-".join(("hans", *re.findall(r"[\w.]+", label))) if studies else "hans"
        mode = {"source": shots.source, "labels": shots.labels}
        studies[f"{name}.json"] = {"version": 2, **identity, "shots_from": mode, "shots": tallies}
        write_json(folder / f"{name}.json", studies[f"{name}.json"])
    return studies


def to_plain(value: Any) -> Any:  # noqa: ANN401  (a tree of named tuples)
    """The tree with every named tuple as a dict, for JSON."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    return {name: to_plain(child) for name, child in value.items()} if isinstance(value, dict) else value


def mean_of(tallies: Sequence[Any]) -> Any:  # noqa: ANN401  (trees of one form, as `to_plain` gives them)
    """The tree of the means of each number; counts of rows are those of all draws."""
    first = tallies[0]
    if isinstance(first, dict):
        return {name: mean_of([each[name] for each in tallies]) for name in first}
    return first if isinstance(first, int) else fmean(tallies)


def names_in_any(tallies: Iterable[Mapping[str, Iterable[str]]]) -> dict[str, list[str]]:
    """The names of subsets by heuristic that any of the tallies has."""
    names: dict[str, dict[str, None]] = {}
    for heuristics in tallies:
        for heuristic, subsets in heuristics.items():
            names.setdefault(heuristic, {}).update(dict.fromkeys(subsets))
    return {heuristic: list(subsets) for heuristic, subsets in names.items()}


def table_rows(study: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Rows of a table: the subset, then accuracy → shifted accuracy in percent at each number of shots.

    Numbers of shots may have been scored over different rows: a cell is empty where none is of the subset.
    """
    tallies = list(study["shots"].values())

    def cells(scores: Iterable[dict[str, Any] | None]) -> tuple[str, ...]:
        return tuple(_text(score) if score else "" for score in scores)

    def subset(part: str, heuristic: str, name: str) -> tuple[str, ...]:
        return cells(tally[part].get(heuristic, {}).get(name) for tally in tallies)

    yield ("all rows", *cells(tally["whole"] for tally in tallies))
    sizes = [tally["whole"]["rows"] for tally in tallies]
    if len(set(sizes)) > 1:
        yield ("number of rows", *map(str, sizes))
    if any(tally["draws"] > 1 for tally in tallies):
        spreads = (tally["between_draws"] for tally in tallies)
        yield ("standard error between draws", *("" if each is None else f"{100 * each:.1f}" for each in spreads))
    subcases = names_in_any(tally["subcases"] for tally in tallies)
    for heuristic, names in names_in_any(tally["labels"] for tally in tallies).items():
        for label in names:
            yield (f"{heuristic}, {label}", *subset("labels", heuristic, label))
        for subcase in subcases[heuristic]:
            yield (f"  {subcase}", *subset("subcases", heuristic, subcase))
    yield ("P(True) + P(False)", *(f"{tally['mass']:.3f}" for tally in tallies))
    yield ("says True", *(f"{100 * tally['said_true']:.1f}" for tally in tallies))


def _text(score: Mapping[str, Any]) -> str:
    accuracy, low, high, shifted = (100 * score[key] for key in ("accuracy", "low", "high", "shifted"))
    return f"{accuracy:.0f}±{(high - low) / 2:.0f} → {shifted:.0f}"
