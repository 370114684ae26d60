"""The curves of a training over tokens: losses beside the unigram entropy, and what the optimizer did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mtnlg_eval.chart import Axis, Chart, Dot, Line
from mtnlg_eval.markup import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    entropy = run.curation.unigram_entropy_nats if run.curation else None
    losses = {"loss": ("accent", "training loss"), "validation_loss": ("second", "validation loss")}
    about = "Training and validation loss over tokens, nats per token"
    charts = [_chart(run.steps, "Loss", about, losses, entropy)] if run.steps else []
    for name, title in SMALL.items() if run.steps else ():
        series = {name: ("accent", title.partition(",")[0].lower())}
        charts.append(_chart(run.steps, title, f"{title} over tokens", series))
    return charts


def _chart(
    steps: Sequence[Step], title: str, about: str, series: Mapping[str, tuple[str, str]], level: float | None = None
) -> Chart:
    """A chart of fields of the steps, each in a look and words; of several, larger and from the least value on."""
    points: dict[str, Points] = {
        name: [(s.tokens, y, s) for s in steps if (y := getattr(s, name)) is not None] for name in series
    }
    values = [y for own in points.values() for _, y, _ in own] or [1.0 if len(series) == 1 else 0.0]
    values += [] if level is None else [level]
    low, high, end = min(values) if len(series) > 1 else 0.0, max(values), steps[-1].tokens
    room = 0.05 * (high - low) if low else 0.0
    x = Axis(0, end, ((0, "0"), (end / 2, short(end / 2)), (end, short(end))))
    y = Axis(low - room, high + room, tuple((value, f"{value:.3g}") for value in (low, (low + high) / 2, high)))
    width, height = (410, 260) if len(series) > 1 else (300, 176)
    chart = Chart(title, about, x, y, width, height, left=44, note="tokens")
    for name, (look, words) in series.items():
        chart.lines.append(Line([(tokens, value) for tokens, value, _ in _downsampled(points[name])], look))
        for tokens, value, step in points[name][:: -(-len(points[name]) // MAX_DOTS) or 1]:
            chart.dots.append(Dot(tokens, value, f"{look} bar", f"step {step.step}, {words}: {value:.4g}"))
    if level is not None:
        chart.lines.append(Line([(0, level), (end, level)], "muted dashed"))
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
