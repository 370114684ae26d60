"""The console's table of ``run --each``: checkpoint by task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from mtnlg_eval.tasks.published import title_of
from mtnlg_model.console import output

from .compare import Cell, told_apart
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
    for head in ("checkpoint", "shots"):
        table.add_column(head, no_wrap=True)
    for task in tasks:
        table.add_column(title_of(task), justify="right", overflow="fold", min_width=5)
    cells = {
        (n, task, shots): cell
        for n, by_task in enumerate(scores)
        for task, by_shots in by_task.items()
        for shots, cell in by_shots.items()
    }
    apart = told_apart(
        {key: (cell, cells[0, *key[1:]]) for key, cell in cells.items() if key[0] and (0, *key[1:]) in cells}
    )
    for shots in asked:
        for n, name in enumerate(names):
            keys = [(n, task, shots) for task in tasks]
            table.add_row(
                name, shots, *(_text(cells.get(key), apart.get(key)) for key in keys), end_section=name == names[-1]
            )
    console = output()
    console.print(table)
    console.print("  in percent, where it is a share", style="dim")
    console.print(f"  * differs from {names[0]}: paired, by Holm's procedure at 5 % over the table", style="dim")


def _text(cell: Cell | None, differs: bool | None) -> str:
    if cell is None:
        return "\N{EN DASH}"
    value = f"{100 * cell.value:.1f}"[:4].removesuffix(".") if cell.first.is_share else f"{cell.value:.4g}"
    return value + ("*" if differs else " ")
