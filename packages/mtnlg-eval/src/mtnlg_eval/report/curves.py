"""Training curves over tokens: losses, in total and by source, with the unigram entropy; and optimizer statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_eval.chart import Axis, Chart, tokens_axis
from mtnlg_eval.markup import short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .run_files import Run, Step

    Points = list[tuple[float, float, Step]]

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


class Series(NamedTuple):
    """A line of a chart: its look, its name, and the function that gives a step's value."""

    look: str
    words: str
    value: Callable[[Step], float | None]


def curves(run: Run) -> list[Chart]:
    """The charts of the steps in metrics.jsonl; [] if there are no steps."""
    if not run.steps:
        return []
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    losses = [_field("accent", "training loss", "loss"), _field("second", "validation loss", "validation_loss")]
    about = "Training and validation loss over tokens, nats per token"
    charts = [_chart(run, "Loss", about, losses, entropy)]
    names = dict.fromkeys(name for step in run.steps for name in step.sources)
    sources = [_source(number, name) for number, name in enumerate(names)]
    charts += [_chart(run, "Loss by source", "Loss of each source over tokens, nats per token", sources)] * bool(names)
    for name, title in SMALL.items():
        series = [_field("accent", title.partition(",")[0].lower(), name)]
        charts.append(_chart(run, title, f"{title} over tokens", series))
    return charts


def _field(look: str, words: str, name: str) -> Series:
    return Series(look, words, lambda step: getattr(step, name))


def _source(number: int, name: str) -> Series:
    look = f"source s{number % COLORS}{' dashed' * (number // COLORS % 2)}"
    return Series(look, name, lambda step: found.loss if (found := step.sources.get(name)) else None)


def _chart(run: Run, title: str, about: str, series: Sequence[Series], level: float | None = None) -> Chart:
    """A chart of the steps, with a mark at each change of the run. Loss charts are larger and do not begin at 0."""
    is_loss = title not in SMALL.values()
    points: list[Points] = [
        [(s.tokens, at, s) for s in run.steps if (at := one.value(s)) is not None] for one in series
    ]
    values = [value for own in points for _, value, _ in own] or [0.0 if is_loss else 1.0]
    values += [] if level is None else [level]
    low, high, end = min(values) if is_loss else 0.0, max(values), run.steps[-1].tokens
    room = 0.05 * (high - low) if low else 0.0
    y = Axis(low - room, high + room, tuple((value, short(value)) for value in (low, (low + high) / 2, high)))
    width, height = (410, 260) if is_loss else (300, 176)
    chart = Chart(title, about, tokens_axis(end), y, width, height, left=44, note="tokens")
    for change in run.changes:
        if change.tokens <= end:
            chart.line("muted dashed", (change.tokens, y.low), (change.tokens, y.high), width=0.8)
            chart.dot(change.tokens, y.high, "muted bar", f"from {short(change.tokens)} on: {change.words}")
    for (look, words, _), own in zip(series, points, strict=True):
        chart.line(look, *[(tokens, value) for tokens, value, _ in _downsampled(own)])
        for tokens, value, step in own[:: -(-len(own) // MAX_DOTS) or 1]:
            chart.dot(tokens, value, f"{look} bar", f"step {step.step}, {words}: {value:.4g}")
        if is_loss and own:
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
