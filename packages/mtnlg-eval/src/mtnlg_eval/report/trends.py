"""Small charts, one per task: scores against the examples shown in the prompt, and against training tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.chart import PERCENT, Chart, steps, tokens_axis
from mtnlg_eval.markup import interval, short
from mtnlg_eval.tasks.published import TASKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_eval.chart import Axis
    from mtnlg_eval.results.compare import Cell, Run
    from mtnlg_eval.tasks.published import Task

    from .run_files import Evaluation

LOOKS = {"0": "muted", "1": "accent dashed", "few": "accent"}


def trends(evaluation: Evaluation) -> dict[str, list[Chart]]:
    """The paper's tasks against the examples shown, and against training tokens if several checkpoints were scored."""
    tasks = [task for task in TASKS if evaluation.main.by_shots(task.name)]
    several = [task for task in tasks if len(evaluation.main.by_shots(task.name)) > 1]
    found = {"shots": [_by_shots(evaluation.main, task) for task in several], "tokens": []}
    if len({run.model.tokens for run in evaluation.history}) > 1:
        found["tokens"] = [_by_tokens(evaluation.history, task) for task in tasks]
    return found


def _by_shots(run: Run, task: Task) -> Chart:
    """Accuracy with its interval at every number of shots scored, beside MT-NLG's (a diamond) and chance."""
    cells = run.by_shots(task.name)
    shown = [f"{cell.shown:.1f}".removesuffix(".0") for cell in cells.values()]
    chart = _chart(task, steps(shown, 0.5), "the examples shown in the prompt")
    for x, (asked, cell) in enumerate(cells.items()):
        _add(chart, x, cell, "accent", f"{asked}-shot, {cell.shown:.1f} shown")
        if (mtnlg := task.figure("MT-NLG", asked)) is not None:
            chart.dot(x, mtnlg, "second diamond", f"MT-NLG, {asked}-shot: {mtnlg:.1f}")
    return chart


def _by_tokens(history: Sequence[Run], task: Task) -> Chart:
    """Accuracy with its interval over the training tokens of each scored checkpoint at 0, 1 and few shots."""
    most = max(run.model.tokens for run in history)
    chart = _chart(task, tokens_axis(most), "training tokens")
    for shots, look in LOOKS.items():
        points = [(run.model, run.cells[task.name, shots]) for run in history if (task.name, shots) in run.cells]
        for model, cell in points:
            _add(chart, model.tokens, cell, look, f"{model.name}, {short(model.tokens)} tokens, {shots}-shot")
        chart.line(look, *[(model.tokens, 100 * cell.value) for model, cell in points])
    return chart


def _chart(task: Task, x: Axis, against: str) -> Chart:
    """An empty chart from 0 to 100 % with the task's chance as a dashed line."""
    chart = Chart(task.title, f"{task.title}: accuracy against {against}", x, PERCENT, 220, 130)
    if task.chance is not None:
        chart.line("muted dashed", (x.low, task.chance), (x.high, task.chance))
    return chart


def _add(chart: Chart, x: float, cell: Cell, look: str, what: str) -> None:
    (score, low, high), color = (100 * number for number in cell.estimate), look.partition(" ")[0]
    chart.line(color, (x, low), (x, high))
    chart.dot(x, score, color, f"{what}: {score:.1f} ({interval(cell.estimate, True)})")
