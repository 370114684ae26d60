"""Results side by side: runs of several checkpoints, styles or draws of shots, their differences and averages.

Two cells over the same rows are compared row by row. With d the difference of a row's two scores (1, 0 or -1, or
between them where several draws of shots are averaged), n rows and one row of +1 and one of -1 added,

    mean = sum d / (n + 2),    variance = (sum d^2 + 2) / (n + 2) - mean^2,    mean +- 1.96 sqrt(variance / (n + 2))

is a 95 % interval (Bonett and Price 2012): unlike that of two separate scores it knows that both met the same rows, and
unlike the plain one it does not collapse where no row differs. A mean over tasks adds their variances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mtnlg_eval.table import Z, wilson_interval
from mtnlg_eval.tasks.published import TASKS, TASKS_BY_NAME

from .paper_setting import PAPER_STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from .result import Model, Result


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


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
        """Accuracy, the mean over the seeds."""
        return fmean(result.accuracy for result in self.results)

    @property
    def estimate(self) -> Estimate:
        """Accuracy with Wilson's interval."""
        rows = self.first.rows.count
        return Estimate(self.value, *wilson_interval(self.value * rows, rows))

    @property
    def between_draws(self) -> float | None:
        """Standard error of the mean between draws of shots; None for one draw."""
        if len(self.results) < 2:
            return None
        return stdev(result.accuracy for result in self.results) / sqrt(len(self.results))

    @property
    def shown(self) -> float:
        """Mean number of shots shown."""
        return fmean(result.shots.mean for result in self.results)

    @property
    def differs(self) -> list[str]:
        """What differs from the paper's setting; shots shown are the mean over the seeds, prompts cut the most."""
        shots = self.first.shots.model_copy(update={"mean": self.shown})
        truncated = max(result.truncated for result in self.results)
        return self.first.model_copy(update={"shots": shots, "truncated": truncated}).differs

    @cached_property
    def correct(self) -> NDArray[np.float64]:
        """Score of each row, the mean over the seeds."""
        rows = [np.frombuffer(result.correct.encode(), np.uint8) - ord("0") for result in self.results]
        mean: NDArray[np.float64] = np.mean(rows, axis=0)
        return mean


@dataclass(frozen=True)
class Run:
    """Results of one checkpoint in one precision, style and mode of shots."""

    results: tuple[Result, ...]

    @property
    def model(self) -> Model:
        """The checkpoint."""
        return self.results[0].model

    @property
    def style(self) -> str:
        """Style of prompts and scores."""
        return self.results[0].style

    @cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """Cells by task and shots asked; of several sets of rows the largest."""
        groups: dict[tuple[str, str], dict[str, dict[int | None, Result]]] = {}
        for result in self.results:
            by_rows = groups.setdefault((result.task, result.shots.asked), {})
            by_rows.setdefault(result.rows.digest, {})[result.shots.seed] = result
        largest = {key: max(by_rows.values(), key=_size) for key, by_rows in groups.items()}
        return {key: Cell(tuple(by_seed.values())) for key, by_seed in largest.items()}

    def tasks(self) -> list[str]:
        """Names of the tasks scored, in the paper's order, then those of one's own."""
        own = sorted({name for name, _ in self.cells} - TASKS_BY_NAME.keys())
        return [task.name for task in TASKS if any(name == task.name for name, _ in self.cells)] + own

    def by_shots(self, task: str) -> dict[str, Cell]:
        """The cells of a task by shots asked, fewest first."""
        cells = [(asked, cell) for (name, asked), cell in self.cells.items() if name == task]
        return dict(sorted(cells, key=lambda item: (item[1].first.shots.count, item[0])))


def _size(by_seed: dict[int | None, Result]) -> int:
    return max(result.rows.count for result in by_seed.values())


def group_runs(results: Iterable[Result]) -> list[Run]:
    """The runs of these results, best first: the paper's style and modes, then most tokens, then most results."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        key = (result.model.digest, result.model.precision, result.style, result.shots.source, result.shots.labels)
        groups.setdefault(key, []).append(result)

    def rank(key: tuple[str, ...]) -> tuple[object, ...]:
        return key[2] == PAPER_STYLE, key[3:] == ("any", "drawn"), groups[key][0].model.tokens, len(groups[key])

    return [Run(tuple(groups[key])) for key in sorted(groups, key=rank, reverse=True)]


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name of each run: the checkpoint's, and what else sets it apart."""

    def parts(run: Run) -> list[str]:
        shots = run.results[0].shots
        modes = [mode for mode, plain in ((shots.source, "any"), (shots.labels, "drawn")) if mode != plain]
        return [run.model.name, run.style, *modes, run.model.precision, run.model.digest[:8]]

    columns = [parts(run) for run in runs]
    plain = [[name, *(word for word in rest[:-2] if word != PAPER_STYLE)] for name, *rest in columns]
    for number, words in enumerate(plain):
        if plain.count(words) > 1:
            plain[number] = [*words, *columns[number][-2:]]
    return [" ".join(words) for words in plain]


def difference(cell: Cell, base: Cell) -> Estimate | None:
    """The accuracy of ``cell`` less that of ``base``; None unless both scored the same rows."""
    if cell.first.rows.digest != base.first.rows.digest:
        return None
    mean, variance = _paired(cell.correct - base.correct)
    return _around(cell.value - base.value, mean, Z * sqrt(variance))


def _around(value: float, middle: float, half: float) -> Estimate:
    return Estimate(value, max(-1.0, middle - half), min(1.0, middle + half))


def _paired(d_N: NDArray[np.float64]) -> tuple[float, float]:
    """Adjusted mean of paired differences and its variance."""
    n = len(d_N) + 2
    mean = float(d_N.sum()) / n
    return mean, ((float((d_N**2).sum()) + 2) / n - mean**2) / n


def macro(run: Run, tasks: Sequence[str], asked: str) -> Estimate:
    """The mean accuracy over these tasks, which the run has at ``asked`` shots."""
    estimates = [run.cells[task, asked].estimate for task in tasks]
    middle = fmean((each.low + each.high) / 2 for each in estimates)  # Wilson's intervals are not around their values
    half = sqrt(sum(((each.high - each.low) / 2) ** 2 for each in estimates)) / len(estimates)
    return Estimate(fmean(each.value for each in estimates), max(0.0, middle - half), min(1.0, middle + half))


def macro_difference(run: Run, base: Run, tasks: Sequence[str], asked: str) -> Estimate | None:
    """The mean difference over these tasks; None unless both runs scored the same rows of each."""
    pairs = [(run.cells[task, asked], base.cells[task, asked]) for task in tasks]
    if any(cell.first.rows.digest != other.first.rows.digest for cell, other in pairs):
        return None
    parts = [_paired(cell.correct - other.correct) for cell, other in pairs]
    middle, half = fmean(mean for mean, _ in parts), Z * sqrt(sum(variance for _, variance in parts)) / len(parts)
    return _around(fmean(cell.value - other.value for cell, other in pairs), middle, half)


def compared(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The runs side by side, each with its macro averages and its paired differences to the first, in percent."""

    def percent(estimate: Estimate | None) -> list[float] | None:
        return None if estimate is None else [100 * number for number in estimate]

    base, rows = runs[0], []
    for run, label in zip(runs, labels(runs), strict=True):
        macros, differences = {}, {}
        for asked in dict.fromkeys(asked for _, asked in run.cells):
            if tasks := common_tasks([run, base], asked):
                own = percent(macro(run, tasks, asked)), percent(macro_difference(run, base, tasks, asked))
                macros[asked] = {"tasks": tasks, "percent": own[0], "difference": own[1]}
        for key, cell in run.cells.items():
            if key in base.cells:
                differences["_".join(key)] = percent(difference(cell, base.cells[key]))
        rows.append(
            {
                "run": label,
                "digest": run.model.digest,
                "tokens": run.model.tokens,
                "style": run.style,
                "results": {"_".join(key): [result.name for result in cell.results] for key, cell in run.cells.items()},
                "macro": macros,
                "difference": differences,
            }
        )
    return rows


def common_tasks(runs: Sequence[Run], asked: str) -> list[str]:
    """Tasks of the paper that every run has at ``asked`` shots, in its order."""
    return [task.name for task in TASKS if all((task.name, asked) in run.cells for run in runs)]
