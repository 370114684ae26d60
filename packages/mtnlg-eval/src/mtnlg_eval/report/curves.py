"""The curves of a training over tokens: losses beside the unigram entropy, and what the optimizer did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mtnlg_eval.chart import Axis, Chart, Dot, Line
from mtnlg_eval.markup import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .run_files import Run, Step

    Points = list[tuple[float, float, Step]]

MAX_POINTS: Final = 800
"""Of a curve. Of a longer one each interval keeps its least and its greatest value, so that spikes stay."""

MAX_DOTS: Final = 40
"""Of a curve, with what a pointer reads there."""

SMALL: Final = {
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "batch_size": "Batch, samples per step",
    "tokens_per_second": "Throughput, tokens per second",
}


def curves(run: Run) -> list[Chart]:
    """The charts of the steps in metrics.jsonl; none without them."""
    if not run.steps:
        return []
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    return [_losses(run.steps, entropy), *(_small(run.steps, name, title) for name, title in SMALL.items())]


def _losses(steps: Sequence[Step], entropy: float | None) -> Chart:
    trained, held_out = _points(steps, "loss"), _points(steps, "validation_loss")
    values = [value for _, value, _ in (*trained, *held_out)] or [0.0]
    values += [] if entropy is None else [entropy]
    chart = _chart("Loss", "Training and validation loss over tokens, nats per token", steps, min(values), max(values))
    chart.width, chart.height = 410, 260
    _plot(chart, trained, "accent", "training loss")
    _plot(chart, held_out, "second", "validation loss")
    if entropy is not None:
        chart.lines.append(Line([(chart.x.low, entropy), (chart.x.high, entropy)], "muted dashed"))
        chart.labels.append((chart.x.high, "muted", f"dashed: unigram entropy {entropy:.2f}"))
    return chart


def _small(steps: Sequence[Step], name: str, title: str) -> Chart:
    points = _points(steps, name)
    chart = _chart(title, f"{title} over tokens", steps, 0.0, max((value for _, value, _ in points), default=1.0))
    _plot(chart, points, "accent", title.partition(",")[0].lower())
    return chart


def _chart(title: str, about: str, steps: Sequence[Step], low: float, high: float) -> Chart:
    end, room = steps[-1].tokens, 0.05 * (high - low) if low else 0.0
    x = Axis(0, end, ((0, "0"), (end / 2, short(end / 2)), (end, short(end))))
    y = Axis(low - room, high + room, tuple((value, f"{value:.3g}") for value in (low, (low + high) / 2, high)))
    return Chart(title, about, x, y, left=44, note="tokens")


def _points(steps: Sequence[Step], name: str) -> Points:
    """Tokens, value and step of every step that has one."""
    return [(step.tokens, value, step) for step in steps if (value := getattr(step, name)) is not None]


def _plot(chart: Chart, points: Points, look: str, words: str) -> None:
    chart.lines.append(Line([(tokens, value) for tokens, value, _ in _downsampled(points)], look))
    for tokens, value, step in points[:: -(-len(points) // MAX_DOTS) or 1]:
        chart.dots.append(Dot(tokens, value, f"{look} bar", f"step {step.step}, {words}: {value:.4g}"))


def _downsampled(points: Points) -> Points:
    if len(points) <= MAX_POINTS:
        return points
    width = -(-2 * len(points) // MAX_POINTS)
    kept = [points[0], points[-1]]
    for begin in range(0, len(points), width):
        part = points[begin : begin + width]
        kept += {id(each): each for each in (min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1]))}.values()
    return sorted(kept, key=lambda point: point[0])
