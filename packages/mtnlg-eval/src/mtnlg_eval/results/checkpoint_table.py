"""The console's table of ``run --each``: checkpoint by task."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from mtnlg_eval.markup import DASH
from mtnlg_eval.table import Table, print_table
from mtnlg_eval.tasks.published import title_of

from .compare import Cell, difference, told_apart
from .folder import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any


def cells_of(summaries: Mapping[str, Mapping[str, Any]], out: Path) -> dict[tuple[str, str, str], Cell]:
    """Cells by (checkpoint, task, shots), from the summary that `evaluate` returned for each checkpoint and ``out``."""
    results = {result.name: result for result in ResultFolder(out).results()}
    return {
        (name, task, asked): Cell(tuple(results[each] for each in score["results"]))
        for name, summary in summaries.items()
        for task, scores in summary["tasks"].items()
        for asked, score in scores.items()
    }


def print_checkpoints(cells: Mapping[tuple[str, str, str], Cell]) -> None:
    """Print one table: a row per checkpoint and number of shots, a column per task; * is a significant difference."""
    names, tasks, shots = (list(dict.fromkeys(key[n] for key in cells)) for n in range(3))
    pairs = {key: (cell, cells.get((names[0], *key[1:]))) for key, cell in cells.items() if key[0] != names[0]}
    apart = told_apart({key: difference(cell, base) for key, (cell, base) in pairs.items() if base})
    rows = []
    for asked, name in product(shots, names):
        keys = [(name, task, asked) for task in tasks]
        texts = [_text(cells[key]) + ("*" if apart.get(key) else " ") if key in cells else DASH for key in keys]
        rows.append([name, asked, *texts])
    star = f"* differs from {names[0]}: paired, by Holm's procedure at 5 % over the table"
    table = Table(["checkpoint", "shots", *map(title_of, tasks)], rows)
    print_table(table, "", ["in percent, where it is a share", star], tight=True)


def _text(cell: Cell) -> str:
    return f"{100 * cell.value:.1f}"[:4].removesuffix(".") if cell.first.is_share else f"{cell.value:.4g}"
