"""Console tables of scores, and the confidence interval of a proportion."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mtnlg_eval.tasks.published import TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


MAX_WIDE_COLUMNS = 3
"""Columns with standard error and shots that fit a terminal of 80 characters."""

TITLES = {task.name: task.title for task in TASKS}


def print_scores(summary: Mapping[str, Any], shots: Sequence[str]) -> None:
    """Print the scores; the mean number of shots is in brackets if fewer fitted the context than requested."""
    brief = len(shots) > MAX_WIDE_COLUMNS
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("task", no_wrap=True)
    for count in shots:
        table.add_column(count if brief else f"{count}-shot", justify="right", no_wrap=True)
    table.add_column("rows", justify="right")
    for task, scores in summary["tasks"].items():
        rows = max(score["documents"] for score in scores.values())
        table.add_row(TITLES[task], *(_cell(scores[count], count, brief) for count in shots), str(rows))
    for gap in summary["not_run"]:
        table.add_row(TITLES[gap["task"]], *("not run" for _ in shots), "")
    console = Console(highlight=False)
    console.print(table)
    legend = "by shots" if brief else "± its standard error (shots that fitted)"
    console.print(f"  accuracy in percent {legend}", style="dim")


def _cell(score: Mapping[str, Any], shots: str, brief: bool) -> str:
    if brief:
        return f"{100 * score['value']:.1f}"
    stderr = "" if score["stderr"] is None else f" ± {100 * score['stderr']:.1f}"
    used = f"{score['shots_used']:.1f}".removesuffix(".0")
    return f"{100 * score['value']:.1f}{stderr}" + ("" if shots == used else f" ({used})")


def print_rows(head: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, wrap: bool = False) -> None:
    """Print a table with ``head`` over the first column; ``wrap`` left-aligns and wraps the others."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column(head, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if wrap else "right", no_wrap=not wrap)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


Z = 1.959963984540054
"""Quantile of the standard normal distribution for 95 %, two-sided."""


def wilson_interval(successes: float, total: int) -> tuple[float, float]:
    """95 % confidence interval of a proportion, in [0, 1]; ``total`` is at least 1.

    Wilson 1927. Unlike ± 1.96 standard errors it holds near 0 and 1 and for few rows.
    """
    share, spread = successes / total, Z * Z / total
    middle = share + spread / 2
    half = Z * sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
