"""The page's charts: training curves, and small charts of scores.

Curves are over tokens: losses, in total and by source, with the unigram entropy; and optimizer statistics. Scores are,
per task, against the examples shown in the prompt, and against training tokens.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from mtnlg_eval.chart import PERCENT, Axis, Chart, steps, tokens_axis
from mtnlg_eval.markup import short
from mtnlg_eval.tasks.published import TASKS_BY_NAME, title_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mtnlg_eval.results.compare import Cell
    from mtnlg_eval.results.compare import Run as ScoredRun

    from .run_files import Evaluation, Run, Step

    Points = list[tuple[float, float, Step]]
    Series = tuple[str, str, Callable[[Step], float | None]]  # look, name, and a step's value

MAX_POINTS: Final = 800
"""Points of a curve. A longer curve keeps the least and the greatest value of each interval, so that spikes stay."""

MAX_DOTS: Final = 40
"""Dots with tooltips per curve."""

COLORS: Final = 8
"""Number of colors for sources in chart.css; further sources repeat them dashed."""

SMALL: Final = {
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "batch_size": "Batch, samples per step",
    "tokens_per_second": "Throughput, tokens per second",
}

LOOKS = {"0": "muted", "1": "accent dashed", "few": "accent"}


def curves(run: Run) -> list[Chart]:
    """The charts of the steps in metrics.jsonl; [] if there are no steps."""
    if not run.steps:
        return []
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    losses: list[Series] = [
        ("accent", "training loss", attrgetter("loss")),
        ("second", "validation loss", attrgetter("validation_loss")),
    ]
    about = "Training and validation loss over tokens, nats per token"
    charts = [_curve(run, "Loss", about, losses, entropy)]
    names = dict.fromkeys(name for step in run.steps for name in step.sources)
    sources: list[Series] = [
        (f"source s{number % COLORS}{' dashed' * (number // COLORS % 2)}", name, partial(_source_loss, name))
        for number, name in enumerate(names)
    ]
    charts += [_curve(run, "Loss by source", "Loss of each source over tokens, nats per token", sources)] * bool(names)
    return charts + [
        _curve(run, title, f"{title} over tokens", [("accent", title.partition(",")[0].lower(), attrgetter(name))])
        for name, title in SMALL.items()
    ]


def _source_loss(name: str, step: Step) -> float | None:
    return source.loss if (source := step.sources.get(name)) else None


def _curve(run: Run, title: str, about: str, series: Sequence[Series], level: float | None = None) -> Chart:
    """A chart of the steps, with a mark at each change of the run. Loss charts are larger and do not begin at 0."""
    is_loss = title not in SMALL.values()
    points: list[Points] = [
        [(s.tokens, at, s) for s in run.steps if (at := value(s)) is not None] for *_, value in series
    ]
    values = [value for line in points for _, value, _ in line] or [0.0 if is_loss else 1.0]
    values += [] if level is None else [level]
    low, high, end = min(values) if is_loss else 0.0, max(values), run.steps[-1].tokens
    room = 0.05 * (high - low) if low else 0.0
    y = Axis(low - room, high + room, tuple((value, short(value)) for value in (low, (low + high) / 2, high)))
    width, height = (410, 260) if is_loss else (300, 176)
    left = 8 + 6 * max(6, *(len(label) for _, label in y.ticks))
    chart = Chart(title, about, tokens_axis(end), y, width, height, left, note="tokens")
    for change in run.changes:
        if change.tokens <= end:
            chart.line("muted dashed", (change.tokens, y.low), (change.tokens, y.high), width=0.8)
            chart.dot(change.tokens, y.high, "muted bar", f"from {short(change.tokens)} on: {change.words}")
    for (look, words, _), line in zip(series, points, strict=True):
        chart.line(look, *[(tokens, value) for tokens, value, _ in _downsampled(line)])
        for tokens, value, step in line[:: -(-len(line) // MAX_DOTS) or 1]:
            chart.dot(tokens, value, f"{look} bar", f"step {step.step}, {words}: {value:.4g}")
        if is_loss and line:
            chart.legend.append((look, words))
    if level is not None:
        chart.line("muted dashed", (0, level), (end, level))
        chart.labels.append((end, "muted", f"dashed: unigram entropy {level:.2f}"))
    return chart


def _downsampled(points: Points) -> Points:
    if len(points) <= MAX_POINTS:
        return points
    width = -(-2 * len(points) // MAX_POINTS)
    kept = [points[0], points[-1]]
    for begin in range(0, len(points), width):
        part = points[begin : begin + width]
        kept += {id(each): each for each in (min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1]))}.values()
    return sorted(kept, key=lambda point: point[0])


def trends(evaluation: Evaluation) -> dict[str, list[Chart]]:
    """Shares against the examples shown, and against training tokens if several checkpoints were scored."""
    cells = evaluation.main.by_task
    tasks = [task for task, by_shots in cells.items() if all(cell.first.is_share for cell in by_shots.values())]
    charts = {"shots": [_by_shots(cells[task], task) for task in tasks if len(cells[task]) > 1], "tokens": []}
    alike = [run for run in evaluation.runs if run.setting == evaluation.main.setting]
    history = sorted(alike, key=lambda run: run.model.tokens)  # they differ in the checkpoint alone
    if len({run.model.tokens for run in history}) > 1:
        charts["tokens"] = [_by_tokens(history, task) for task in tasks]
    return charts


def _by_shots(cells: Mapping[str, Cell], task: str) -> Chart:
    """Accuracy with its interval at every number of shots scored, beside MT-NLG's (a diamond) and chance."""
    labels = [f"{cell.shown:.1f}".removesuffix(".0") for cell in cells.values()]
    chart = _chart(task, steps(labels, 0.5), "the examples shown in the prompt")
    for x, (asked, cell) in enumerate(cells.items()):
        chart.share(x, cell.estimate, "accent", f"{asked}-shot, {cell.shown:.1f} shown")
        published = TASKS_BY_NAME.get(task)
        if published and (mtnlg := published.figure("MT-NLG", asked)) is not None:
            chart.dot(x, mtnlg, "second diamond", f"MT-NLG, {asked}-shot: {mtnlg:.1f}")
    return chart


def _by_tokens(history: Sequence[ScoredRun], task: str) -> Chart:
    """Accuracy with its interval over the training tokens of each scored checkpoint at 0, 1 and few shots."""
    most = max(run.model.tokens for run in history)
    chart = _chart(task, tokens_axis(most), "training tokens")
    for shots in dict.fromkeys(asked for run in history for name, asked in run.cells if name == task):
        look = LOOKS.get(shots, "accent")
        points = [(run.model, run.cells[task, shots]) for run in history if (task, shots) in run.cells]
        for model, cell in points:
            what = f"{model.name}, {short(model.tokens)} tokens, {shots}-shot"
            chart.share(model.tokens, cell.estimate, look.partition(" ")[0], what)
        chart.line(look, *[(model.tokens, 100 * cell.value) for model, cell in points])
    return chart


def _chart(task: str, x: Axis, against: str) -> Chart:
    """An empty chart from 0 to 100 %, with the chance of one of the paper's tasks as a dashed line."""
    chart = Chart(title_of(task), f"{title_of(task)}: accuracy against {against}", x, PERCENT, 220, 130)
    published = TASKS_BY_NAME.get(task)
    if published and published.chance is not None:
        chart.line("muted dashed", (x.low, published.chance), (x.high, published.chance))
    return chart
