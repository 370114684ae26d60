"""The console's table of ``run --each``: checkpoint by task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mtnlg_eval.tasks.published import title_of
from mtnlg_model.console import output

from .compare import Cell, difference
from .folder import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    CellsByTask = Mapping[str, Mapping[str, Cell]]


def cells_of(summary: Mapping[str, Any], out: Path) -> CellsByTask:
    """The cells of a summary that `evaluate` returned for the folder ``out``."""
    results = {result.name: result for result in ResultFolder(out).results()}
    return {
        task: {shots: Cell(tuple(results[name] for name in score["results"])) for shots, score in scores.items()}
        for task, scores in summary["tasks"].items()
    }


def print_checkpoints(names: Sequence[str], scores: Sequence[CellsByTask]) -> None:
    """Print one table, a row per checkpoint and number of shots, a column per task.

    ``scores`` has the cells of each checkpoint by task and shots. A star marks a difference to the first checkpoint.
    """
    tasks = list(dict.fromkeys(task for by_task in scores for task in by_task))
    asked = list(dict.fromkeys(shots for by_task in scores for cells in by_task.values() for shots in cells))
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("checkpoint", no_wrap=True)
    table.add_column("shots", no_wrap=True)
    for task in tasks:
        table.add_column(title_of(task), justify="right", overflow="fold", min_width=5)
    for shots in asked:
        for name, by_task in zip(names, scores, strict=True):
            cells = (_starred(by_task, scores[0], task, shots) for task in tasks)
            table.add_row(name, shots, *cells, end_section=name == names[-1])
    console = output()
    console.print(table)
    console.print("  accuracy in percent", style="dim")
    console.print(f"  * differs from {names[0]}: the paired 95 % interval leaves out 0", style="dim")


def _starred(by_task: CellsByTask, first: CellsByTask, task: str, n: str) -> str:
    cell, base = by_task.get(task, {}).get(n), first.get(task, {}).get(n)
    if cell is None:
        return "\N{EN DASH}"
    change = None if base is None or base is cell else difference(cell, base)
    star = "*" if change and (change.low > 0 or change.high < 0) else " "
    return f"{100 * cell.value:.1f}"[:4].removesuffix(".") + star
