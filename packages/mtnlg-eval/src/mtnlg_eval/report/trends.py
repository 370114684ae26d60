"""How scores move with the examples in the prompt and with the tokens of training: a small picture a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.published import SHOTS

from .drawing import ACCENT, INK, MUTED, SECOND, canvas, inline, styled
from .notation import short
from .results import interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtnlg_eval.published import Task

    from .folder import Evaluation, Score

WIDTH, HEIGHT = 220.0, 130.0
LINES = {"0": (MUTED, "-"), "1": (ACCENT, "--"), "few": (ACCENT, "-")}


@styled()
def by_shots(evaluation: Evaluation, task: Task) -> str:
    """Accuracy with its interval at every number of shots that was scored, beside MT-NLG's (a diamond) and chance."""
    figure, axes = _panel(task)
    scores = sorted(((_count(task, asked), score) for asked, score in evaluation.tasks[task.name].items()))
    places = {count: place for place, count in enumerate(dict.fromkeys(count for count, _ in scores))}
    for count, score in scores:
        low, high = interval(score)
        axes.plot([places[count]] * 2, [low, high], color=ACCENT, linewidth=1.4)
        axes.plot(places[count], 100 * score.value, "o", color=ACCENT, markersize=4)
    for shots, theirs in zip(SHOTS, task.figures["MT-NLG"], strict=True):
        if theirs is not None and _count(task, shots) in places:
            axes.plot(places[_count(task, shots)], theirs, "D", color=SECOND, markersize=3)
    axes.set_xticks(list(places.values()), [str(count) for count in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    return inline(figure, f"by-shots-{task.name}", f"{task.title}: accuracy against the examples in the prompt")


@styled()
def by_tokens(history: Sequence[Evaluation], task: Task) -> str:
    """Accuracy over the tokens that each scored checkpoint had read: no shots, one (broken), few (strong)."""
    figure, axes = _panel(task)
    for shots, (color, style) in LINES.items():
        points = [(e.tokens, e.tasks[task.name][shots]) for e in history if shots in e.tasks.get(task.name, {})]
        _line(axes, points, color, style)
    axes.set_xlim(0, max(e.tokens for e in history) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    return inline(figure, f"by-tokens-{task.name}", f"{task.title}: accuracy against the tokens that training had read")


def _line(axes: Axes, points: Sequence[tuple[int, Score]], color: str, style: str) -> None:
    tokens, values = [tokens for tokens, _ in points], [100 * score.value for _, score in points]
    axes.plot(tokens, values, style, color=color, marker="o", markersize=3, clip_on=False)


def _panel(task: Task) -> tuple[Figure, Axes]:
    """A small figure with one pair of axes, from 0 to 100 %, the task's chance as a line."""
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.add_axes((30 / WIDTH, 24 / HEIGHT, 1 - 50 / WIDTH, 1 - 50 / HEIGHT))
    axes.set_title(task.title, loc="left", fontsize=10, color=INK, pad=7)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    axes.locator_params(axis="x", nbins=4)
    if task.chance is not None:
        axes.axhline(task.chance, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return figure, axes


def _count(task: Task, asked: str) -> int:
    return task.few if asked == "few" else int(asked)
