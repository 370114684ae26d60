"""Compare results: runs of several models, styles or draws of shots, their differences and averages.

Intervals and tests are in statistics.py. A mean over tasks adds their variances.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mtnlg_eval.tasks.published import TASKS, TASKS_BY_NAME, task_order

from .paper_setting import PAPER_STYLE, differences
from .result import Metric
from .statistics import Estimate, Z, holm, mean_estimate, p_value, paired

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from .result import Model, Result

PAPER_SETTING = (PAPER_STYLE, "any", "drawn")


@dataclass(frozen=True)
class Cell:
    """One task at one number of shots in one run: a result for each seed, all over the same rows."""

    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The result of the first seed."""
        return self.results[0]

    @property
    def value(self) -> float:
        """The score, the mean over the seeds."""
        return fmean(result.score for result in self.results)

    @property
    def estimate(self) -> Estimate:
        """The score with its 95 % interval."""
        first = self.first
        return mean_estimate(self.value, self.values, first.clusters, self.metrics[first.metric].stderr)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Every metric, the mean over the seeds, with the mean of its standard errors over the rows."""
        means = {}
        for name in self.first.metrics:
            own = [result.metrics[name] for result in self.results]
            errors = [metric.stderr for metric in own if metric.stderr is not None]
            value = fmean(metric.value for metric in own)
            means[name] = Metric(value=value, stderr=fmean(errors) if errors else None)
        return means

    @property
    def between_draws(self) -> float | None:
        """Standard error of the mean between draws of shots; None for one draw."""
        if len(self.results) < 2:
            return None
        return stdev(result.score for result in self.results) / sqrt(len(self.results))

    @property
    def shown(self) -> float:
        """Mean number of shots shown."""
        return fmean(result.shots.mean for result in self.results)

    @property
    def differs(self) -> list[str]:
        """Differences from the paper's setting, by the mean of shots shown and the most prompts cut over the seeds."""
        return differences(self.first, self.shown, self.truncated)

    @property
    def truncated(self) -> int:
        """Largest number of truncated prompts with any seed."""
        return max(result.truncated for result in self.results)

    @property
    def summary(self) -> dict[str, Any]:
        """What `evaluate` returns of the cell, the console and the page show, and results.json holds."""
        first, estimate = self.first, self.estimate
        return {
            "results": [result.name for result in self.results],
            "metrics": {name: metric.model_dump() for name, metric in self.metrics.items()},
            "metric": first.metric,
            "is_share": first.is_share,
            "value": estimate.value,
            "interval_95": [estimate.low, estimate.high],
            "between_draws": self.between_draws,
            "seeds": [result.shots.seed for result in self.results if result.shots.seed is not None],
            "rows": first.rows.count,
            "rows_digest": first.rows.digest,
            "failed": [row.model_dump() for row in first.rows.failed],
            "shots": first.shots.count,
            "shots_shown": self.shown,
            "truncated": self.truncated,
            "differs": self.differs,
        }

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Score of each row, averaged over the seeds; empty if the score is not a mean of rows."""
        mean: NDArray[np.float64] = np.mean([result.values for result in self.results], axis=0)
        return mean


@dataclass(frozen=True)
class Run:
    """Results of one model in one style and mode of shots.

    ``setting`` is the style of the paper's tasks' prompts and the source and labels of the shots, ``label`` a short
    name: the model's, and what else distinguishes the run.
    """

    results: tuple[Result, ...]
    setting: tuple[str, ...]
    label: str

    @property
    def model(self) -> Model:
        """The checkpoint."""
        return self.results[0].model

    @cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """Cells by (task, shots asked), in the paper's order, fewest shots first.

        If several sets of rows were scored, the largest.
        """
        groups: dict[tuple[str, str], dict[str, dict[int | None, Result]]] = {}
        for result in self.results:
            by_rows = groups.setdefault((result.task, result.shots.asked), {})
            by_rows.setdefault(result.rows.digest, {})[result.shots.seed] = result

        def rows(by_seed: Mapping[int | None, Result]) -> int:
            return max(result.rows.count for result in by_seed.values())

        cells = {key: Cell(tuple(max(by_rows.values(), key=rows).values())) for key, by_rows in groups.items()}

        def place(key: tuple[str, str]) -> tuple[object, ...]:
            return task_order(key[0]), cells[key].first.shots.count, key[1]

        return {key: cells[key] for key in sorted(cells, key=place)}

    @property
    def by_task(self) -> dict[str, dict[str, Cell]]:
        """Cells by task, then by shots asked."""
        tasks: dict[str, dict[str, Cell]] = {}
        for (task, asked), cell in self.cells.items():
            tasks.setdefault(task, {})[asked] = cell
        return tasks

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """`Cell.summary` by task, then by shots asked."""
        return {task: {asked: cell.summary for asked, cell in cells.items()} for task, cells in self.by_task.items()}


def group_runs(results: Iterable[Result]) -> list[Run]:
    """The runs of these results, best first: the paper's style and modes, then most tokens, then most results.

    Only the paper's tasks have styles; results of other tasks are in the run of the paper's style of their model.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        style = result.style if result.task in TASKS_BY_NAME else PAPER_STYLE
        key: tuple[str, ...] = (result.model.digest, style, result.shots.source, result.shots.labels)
        groups.setdefault(key, []).append(result)

    def rank(key: tuple[str, ...]) -> tuple[object, ...]:
        return key[1] == PAPER_STYLE, key[2:] == PAPER_SETTING[1:], groups[key][0].model.tokens, len(groups[key])

    runs = []
    for key in sorted(groups, key=rank, reverse=True):
        own, setting = groups[key], key[1:]
        changed = [each for each in setting if each not in PAPER_SETTING]
        runs.append(Run(tuple(own), setting, " ".join((own[0].model.name, *changed))))
    labels = Counter(run.label for run in runs)
    return [
        run
        if labels[run.label] == 1
        else replace(run, label=f"{run.label} {run.model.precision} {run.model.digest[:8]}")
        for run in runs
    ]


class Difference(NamedTuple):
    """A difference of two scores over the same rows, with the adjusted mean and the variance of its interval."""

    value: float
    mean: float
    variance: float
    bound: float = 1.0

    @property
    def estimate(self) -> Estimate:
        """The difference with its 95 % interval."""
        half = Z * sqrt(self.variance)
        return Estimate(self.value, max(-self.bound, self.mean - half), min(self.bound, self.mean + half))


def difference(cell: Cell, base: Cell) -> Difference | None:
    """The score of ``cell`` minus that of ``base``; None unless both are means over the same rows."""
    same = (cell.first.rows.digest, cell.first.metric) == (base.first.rows.digest, base.first.metric)
    if not same or not len(cell.values) or len(cell.values) != len(base.values):
        return None
    bound = 1.0 if cell.first.is_share else float("inf")
    return Difference(cell.value - base.value, *paired(cell.values - base.values, base.first.clusters), bound)


def mean_of(estimates: Sequence[Estimate], weights: Sequence[float] | None = None, *, share: bool = True) -> Estimate:
    """The mean of independent estimates; its interval is around the mean of their intervals' middles, as Wilson's."""
    sizes, (least, most) = weights or [1] * len(estimates), (0.0, 1.0) if share else (-float("inf"), float("inf"))
    middle = fmean([(each.low + each.high) / 2 for each in estimates], weights)
    half = sqrt(sum((size * (each.high - each.low) / 2) ** 2 for size, each in zip(sizes, estimates, strict=True)))
    half, value = half / sum(sizes), fmean([each.value for each in estimates], weights)
    return Estimate(value, max(least, middle - half), min(most, middle + half))


def macro(run: Run, tasks: Sequence[str], asked: str) -> Estimate:
    """The mean accuracy over these tasks, which the run must have at ``asked`` shots."""
    return mean_of([run.cells[task, asked].estimate for task in tasks])


def mean_difference(parts: Sequence[Difference | None]) -> Difference | None:
    """The mean of differences of several tasks; None unless all are known."""
    known = [part for part in parts if part]
    if len(known) < len(parts):
        return None
    values, means, variances, _ = zip(*known, strict=True)
    return Difference(fmean(values), fmean(means), sum(variances) / len(parts) ** 2)


def compared(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The runs side by side: scores over all seeds, macro averages and paired differences to the first.

    Averages, and differences of shares, are in percent.

    ``told_apart`` lists the differences, and the numbers of shots of the macro averages' differences, that are
    significant by Holm's procedure over all of their kind.
    """
    base, pairs = runs[0], list(enumerate(runs))
    changes = {
        (n, "_".join(key)): difference(cell, base.cells[key])
        for n, run in pairs
        for key, cell in run.cells.items()
        if key in base.cells
    }
    tasks = {
        (n, asked): names
        for n, run in pairs
        for asked in dict.fromkeys(asked for _, asked in run.cells)
        if (names := common_tasks([run, base], asked))
    }
    means = {
        (n, asked): mean_difference([changes[n, f"{name}_{asked}"] for name in names])
        for (n, asked), names in tasks.items()
    }
    told_apart = []
    for kind in (changes, means):
        p_values = {key: p_value(each.mean, each.variance) for key, each in kind.items() if each and key[0]}
        rejected = holm(p_values)
        told_apart += [key for key in p_values if key in rejected]

    def percent(change: Difference | None) -> list[float] | None:
        return None if change is None else [(100 if change.bound == 1 else 1) * number for number in change.estimate]

    return [
        {
            "run": run.label,
            "digest": run.model.digest,
            "tokens": run.model.tokens,
            "style": run.setting[0],
            "tasks": run.summary,
            "macro": {
                asked: {
                    "tasks": names,
                    "percent": [100 * number for number in macro(run, names, asked)],
                    "difference": percent(means[n, asked]),
                }
                for (m, asked), names in tasks.items()
                if m == n
            },
            "difference": {name: percent(change) for (m, name), change in changes.items() if m == n},
            "told_apart": [name for m, name in told_apart if m == n],
        }
        for n, run in pairs
    ]


def common_tasks(runs: Sequence[Run], asked: str) -> list[str]:
    """Tasks of the paper that every run has at ``asked`` shots, in the paper's order."""
    return [task.name for task in TASKS if all((task.name, asked) in run.cells for run in runs)]


def group_means(results: Iterable[Result]) -> dict[str, dict[str, Any]]:
    """lm-eval's groups by name and shots asked: the mean over the rows of their tasks, for the first model and seed."""
    members: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        for group in result.groups:
            members.setdefault((group, result.shots.asked), {}).setdefault(result.task, result)
    means: dict[str, dict[str, Any]] = {}
    for (group, asked), tasks in members.items():
        own = list(tasks.values())
        rows, share = [result.rows.count for result in own], all(result.is_share for result in own)
        value, *bounds = mean_of([result.estimate for result in own], rows, share=share)
        shown = {
            "value": value,
            "interval_95": bounds,
            "rows": sum(rows),
            "tasks": list(tasks),
            "metric": own[0].metric,
            "is_share": share,
        }
        means.setdefault(group, {})[asked] = shown
    return means
