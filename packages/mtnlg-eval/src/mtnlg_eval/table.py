"""The scores of one evaluation as a console table.

Wilson's interval for a share, which holds near 0 and 1 and for few rows, where 1.96 standard errors do not.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mtnlg_eval.tasks.published import TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


SHOTS_IN_FULL = 3
"""Columns that a terminal of 80 has room for with all that is told of a score."""

TITLES = {task.name: task.title for task in TASKS}


def show(summary: Mapping[str, Any], shots: Sequence[str]) -> None:
    """Print the scores; in brackets the mean number of shots that fitted, where fewer did than were asked for."""
    brief = len(shots) > SHOTS_IN_FULL
    told = "by shots" if brief else "± its standard error (shots that fitted)"
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1))
    drawn.add_column("task", no_wrap=True)
    for asked in shots:
        drawn.add_column(asked if brief else f"{asked}-shot", justify="right", no_wrap=True)
    drawn.add_column("rows", justify="right")
    for task, scores in summary["tasks"].items():
        rows = max(score["documents"] for score in scores.values())
        drawn.add_row(TITLES[task], *(_cell(scores[asked], asked, brief) for asked in shots), str(rows))
    for gap in summary["not_run"]:
        drawn.add_row(TITLES[gap["task"]], *("not run" for _ in shots), "")
    console = Console(highlight=False)
    console.print(drawn)
    console.print(f"  accuracy in percent {told}", style="dim")


def show_rows(head: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, wrap: bool = False) -> None:
    """Print rows under these columns, the first one headed ``head``; text that may ``wrap`` stands left."""
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1))
    drawn.add_column(head, no_wrap=True)
    for column in columns:
        drawn.add_column(column, justify="left" if wrap else "right", no_wrap=not wrap)
    for row in rows:
        drawn.add_row(*row)
    Console(highlight=False).print(drawn)


def _cell(score: Mapping[str, Any], asked: str, brief: bool) -> str:
    if brief:
        return f"{100 * score['value']:.1f}"
    error = "" if score["stderr"] is None else f" ± {100 * score['stderr']:.1f}"
    used = f"{score['shots_used']:.1f}".removesuffix(".0")
    return f"{100 * score['value']:.1f}{error}" + ("" if asked == used else f" ({used})")


Z = 1.959963984540054
"""Quantile of the normal distribution for 95 %, both sides."""


def wilson(right: float, of: int) -> tuple[float, float]:
    """Bounds in [0, 1] of the share that ``right`` of ``of`` rows (at least one) come from, 95 %; Wilson 1927."""
    share, spread = right / of, Z * Z / of
    middle = share + spread / 2
    half = Z * sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
