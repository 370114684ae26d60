"""Small charts, one per task: scores against the examples shown in the prompt, and against training tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.report.blocks import figure
from mtnlg_eval.report.markup import DASH, short
from mtnlg_eval.results.compare import labels
from mtnlg_eval.tasks.published import SHOTS, TASKS

from .svg import ACCENT, INK, MUTED, SECOND, Tip, canvas, styled, to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtnlg_eval.report.run_files import Evaluation
    from mtnlg_eval.results.compare import Cell, Run
    from mtnlg_eval.tasks.published import Task

WIDTH, HEIGHT = 220.0, 130.0  # points
LINES = {"0": (MUTED, "-"), "1": (ACCENT, "--"), "few": (ACCENT, "-")}


def trends(evaluation: Evaluation) -> list[Markup]:
    """The paper's tasks against the examples shown, and against training tokens if several checkpoints were scored."""
    tasks = [task for task in TASKS if len(evaluation.main.by_shots(task.name)) > 1]
    note = f"{labels(evaluation.runs)[0]}, percent with interval; diamond: MT-NLG, dashed line: chance"
    parts = [_panels("Score against examples shown in the prompt", [by_shots(evaluation.main, t) for t in tasks], note)]
    history = evaluation.history
    if len({run.model.tokens for run in history}) > 1:
        note = "percent with interval at 0 examples (grey), 1 (dashed) and few (solid)"
        scored = [task for task in TASKS if evaluation.main.by_shots(task.name)]
        parts.append(_panels("Score against training tokens", [by_tokens(history, task) for task in scored], note))
    return [part for part in parts if "<svg" in part]


def _panels(caption: str, pictures: Sequence[str], note: str) -> Markup:
    return figure(caption, f'<div class="panels wider">{"".join(pictures)}</div>', note)


@styled()
def by_shots(run: Run, task: Task) -> str:
    """Accuracy with its interval at every number of shots scored, beside MT-NLG's (a diamond) and chance."""
    figure, axes = _panel(task)
    tips: list[Tip] = []
    cells = run.by_shots(task.name)
    for x, (asked, cell) in enumerate(cells.items()):
        _interval(axes, x, cell, ACCENT)
        axes.plot(x, 100 * cell.value, "o", color=ACCENT, markersize=4)
        tips.append(_tip(axes, x, cell, f"{asked}-shot, {cell.shown:.1f} shown"))
        if asked in SHOTS and (mtnlg := task.figures["MT-NLG"].at(asked)) is not None:
            axes.plot(x, mtnlg, "D", color=SECOND, markersize=3)
            tips.append(Tip(axes, x, mtnlg, f"MT-NLG, {asked}-shot: {mtnlg:.1f}"))
    axes.set_xticks(range(len(cells)), [f"{cell.shown:.1f}".removesuffix(".0") for cell in cells.values()])
    axes.set_xlim(-0.5, len(cells) - 0.5)
    about = f"{task.title}: accuracy against the examples shown in the prompt"
    return to_svg(figure, f"by-shots-{task.name}", about, tips)


@styled()
def by_tokens(history: Sequence[Run], task: Task) -> str:
    """Accuracy with its interval over the training tokens of each scored checkpoint at 0, 1 and few shots."""
    figure, axes = _panel(task)
    tips: list[Tip] = []
    for shots, (color, style) in LINES.items():
        points = [(run.model.tokens, run.cells[task.name, shots]) for run in history if (task.name, shots) in run.cells]
        for tokens, cell in points:
            _interval(axes, tokens, cell, color)
            tips.append(_tip(axes, tokens, cell, f"{cell.first.model.name}, {short(tokens)} tokens, {shots}-shot"))
        values = [100 * cell.value for _, cell in points]
        axes.plot([x for x, _ in points], values, style, color=color, marker="o", markersize=3, clip_on=False)
    axes.set_xlim(0, max(run.model.tokens for run in history) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    return to_svg(figure, f"by-tokens-{task.name}", f"{task.title}: accuracy against training tokens", tips)


def _tip(axes: Axes, x: float, cell: Cell, what: str) -> Tip:
    value, low, high = (100 * number for number in cell.estimate)
    return Tip(axes, x, value, f"{what}: {value:.1f} ({low:.1f}{DASH}{high:.1f})")


def _interval(axes: Axes, x: float, cell: Cell, color: str) -> None:
    _, low, high = cell.estimate
    axes.plot([x, x], [100 * low, 100 * high], color=color, linewidth=1.2, clip_on=False)


def _panel(task: Task) -> tuple[Figure, Axes]:
    """A small figure with a y axis from 0 to 100 % and the task's chance as a dashed line."""
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.add_axes((30 / WIDTH, 24 / HEIGHT, 1 - 50 / WIDTH, 1 - 50 / HEIGHT))
    axes.set_title(task.title, loc="left", fontsize=10, color=INK, pad=7)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    axes.locator_params(axis="x", nbins=4)
    if task.chance is not None:
        axes.axhline(task.chance, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return figure, axes
