"""How scores move with the examples in the prompt and with the tokens of training: a small picture a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.published import SHOTS

from .drawing import ACCENT, INK, MUTED, SECOND, canvas, inline, styled
from .notation import short
from .results import interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtnlg_eval.published import Task

    from .folder import Evaluation, Score

ACROSS = 3
WIDTH, HEIGHT = 220.0, 130.0
LINES = {"0": (MUTED, "-"), "1": (ACCENT, "--"), "few": (ACCENT, "-")}


@styled()
def by_shots(evaluation: Evaluation, tasks: Sequence[Task]) -> str:
    """Accuracy with its interval at every number of shots that was scored, beside MT-NLG's (a diamond) and chance."""
    figure = canvas(ACROSS * WIDTH, _rows(tasks) * HEIGHT)
    for axes, task in _grid(figure, tasks):
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
    return inline(figure, "by-shots", "Accuracy of each task against the number of examples in the prompt")


@styled()
def by_tokens(history: Sequence[Evaluation], tasks: Sequence[Task]) -> str:
    """Accuracy over the tokens that each scored checkpoint had read: no shots, one (broken), few (strong)."""
    figure = canvas(ACROSS * WIDTH, _rows(tasks) * HEIGHT)
    for axes, task in _grid(figure, tasks):
        for shots, (color, style) in LINES.items():
            points = [(e.tokens, e.tasks[task.name][shots]) for e in history if shots in e.tasks.get(task.name, {})]
            _line(axes, points, color, style)
        axes.set_xlim(0, max(e.tokens for e in history) or 1)
        axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    return inline(figure, "by-tokens", "Accuracy of each task against the tokens that training had read")


def _line(axes: Axes, points: Sequence[tuple[int, Score]], color: str, style: str) -> None:
    tokens, values = [tokens for tokens, _ in points], [100 * score.value for _, score in points]
    axes.plot(tokens, values, style, color=color, marker="o", markersize=3, clip_on=False)


def _grid(figure: Figure, tasks: Sequence[Task]) -> Iterator[tuple[Axes, Task]]:
    """A pair of axes a task, from 0 to 100 %, its chance as a line."""
    whole = _rows(tasks) * HEIGHT
    for number, task in enumerate(tasks):
        row, column = divmod(number, ACROSS)
        left, bottom = (column * WIDTH + 30) / (ACROSS * WIDTH), 1 - (row * HEIGHT + HEIGHT - 26) / whole
        axes = figure.add_axes((left, bottom, (WIDTH - 60) / (ACROSS * WIDTH), (HEIGHT - 50) / whole))
        axes.set_title(task.title, loc="left", fontsize=10, color=INK, pad=4)
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 50, 100])
        axes.locator_params(axis="x", nbins=4)
        if task.chance is not None:
            axes.axhline(task.chance, color=MUTED, linewidth=0.8, dashes=(3, 3))
        yield axes, task


def _rows(tasks: Sequence[Task]) -> int:
    return -(-len(tasks) // ACROSS)


def _count(task: Task, asked: str) -> int:
    return task.few if asked == "few" else int(asked)
