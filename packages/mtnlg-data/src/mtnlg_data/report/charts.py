"""Charts of the report: bars in HTML, which fit any width of screen, and histograms in small SVG.

Colours are CSS classes of the page: ``soft`` is the input, ``strong`` what is left of it, ``second`` a comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .markup import escape, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH, HEIGHT, MARGIN = 360, 120, 18  # of a histogram, in SVG units; the margin holds the axis
GAP = 0.8  # between two bars
STYLE = """\
.bars {
  display: grid; grid-template-columns: max-content minmax(3rem, 1fr) max-content; gap: .18rem .7rem;
  align-items: center;
  font: .8rem/1.3 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", sans-serif;
  font-variant-numeric: tabular-nums; max-width: 640px;
}
.bars .name { color: var(--muted); max-width: 11rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bars span:nth-child(3n) { text-align: right; }
.bar { position: relative; height: .72rem; }
.bar i { position: absolute; inset: 0 auto 0 0; }
.soft { background: var(--soft); fill: var(--soft); }
.strong { background: var(--accent); fill: var(--accent); }
.second { background: var(--second); fill: var(--second); }
@media print { .bar i { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
"""CSS of `bars` and of the classes of values, beside style.css."""


class Bar(NamedTuple):
    """A horizontal bar: its label, values with their CSS classes, the widest first, and the figure beside it."""

    name: str
    layers: Sequence[tuple[float, str]]
    figure: str


def bars(rows: Iterable[Bar], full_width: float | None = None) -> str:
    """A bar chart; the largest value, or ``full_width``, takes the whole width. Names and figures are markup."""
    rows = list(rows)
    longest = full_width or max((value for row in rows for value, _ in row.layers), default=0) or 1
    lines = []
    for row in rows:
        layers = "".join(
            f'<i class="{kind}" style="width:{100 * value / longest:.2f}%"></i>' for value, kind in row.layers
        )
        lines.append(f'<span class="name">{row.name}</span><span class="bar">{layers}</span><span>{row.figure}</span>')
    return '<div class="bars">\n{}\n</div>'.format("\n".join(lines))


class Layer(NamedTuple):
    """One of several histograms in a chart: a count per bin, and its CSS class."""

    counts: Sequence[float]
    kind: str


def histogram(layers: Sequence[Layer], ticks: Sequence[tuple[float, str]], description: str) -> str:
    """Histograms over the same bins, later ones in front; ``ticks`` are places from 0 to 1 and their labels."""
    largest = max((count for layer in layers for count in layer.counts), default=0) or 1
    floor = HEIGHT - MARGIN
    room = floor - MARGIN
    shapes = [f"<title>{escape(description)}</title>"]
    for layer in layers:
        bin_width = WIDTH / max(1, len(layer.counts))
        for number, count in enumerate(layer.counts):
            if height := room * count / largest:
                place = f'x="{number * bin_width + GAP / 2:.2f}" y="{floor - height:.2f}"'
                size = f'width="{bin_width - GAP:.2f}" height="{height:.2f}"'
                shapes.append(f'<rect class="{layer.kind}" {place} {size}/>')
    shapes.append(f'<line x1="0" x2="{WIDTH}" y1="{floor}" y2="{floor}"/>')
    shapes.append(f'<text class="most" x="0" y="{MARGIN - 6}">{short(largest)}</text>')
    for tick, label in ticks:
        anchor = "start" if tick == 0 else "end" if tick == 1 else "middle"
        shapes.append(f'<text x="{tick * WIDTH:.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{escape(label)}</text>')
    body = "\n".join(shapes)
    return f'<svg class="histogram" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{body}</svg>'
