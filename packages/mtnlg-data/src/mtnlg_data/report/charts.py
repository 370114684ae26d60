"""Bars and histograms of a page: bars are HTML that any width of screen can hold, histograms small SVG.

Every colour is one of the page's custom properties, by the class of what is drawn: ``soft`` is what came, ``strong``
what is left of it, ``second`` what it is compared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .markup import short, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH, HEIGHT, MARGIN = 360, 120, 18  # of a histogram, in pixels of its own; the margin holds the axis
GAP = 0.8  # between two bars


class Bar(NamedTuple):
    """A horizontal bar: its name, layers with their classes, the widest first, and the figure beside it."""

    name: str
    layers: Sequence[tuple[float, str]]
    figure: str


def bars(rows: Iterable[Bar], most: float | None = None) -> str:
    """Bars one under the other, the longest (or ``most``) as wide as there is room. Names and figures are markup."""
    rows = list(rows)
    longest = most or max((value for row in rows for value, _ in row.layers), default=0) or 1
    lines = []
    for row in rows:
        drawn = "".join(
            f'<i class="{kind}" style="width:{100 * value / longest:.2f}%"></i>' for value, kind in row.layers
        )
        lines.append(f'<span class="name">{row.name}</span><span class="bar">{drawn}</span><span>{row.figure}</span>')
    return '<div class="bars">\n{}\n</div>'.format("\n".join(lines))


class Layer(NamedTuple):
    """One of the histograms that share a picture: a count a bin."""

    counts: Sequence[float]
    kind: str


def histogram(layers: Sequence[Layer], ticks: Sequence[tuple[float, str]], description: str) -> str:
    """Histograms over the same bins, each drawn over those before; ``ticks`` are places from 0 to 1 and their names."""
    most = max((count for layer in layers for count in layer.counts), default=0) or 1
    floor = HEIGHT - MARGIN
    room = floor - MARGIN
    drawn = [f"<title>{text(description)}</title>"]
    for layer in layers:
        wide = WIDTH / max(1, len(layer.counts))
        for number, count in enumerate(layer.counts):
            if high := room * count / most:
                place = f'x="{number * wide + GAP / 2:.2f}" y="{floor - high:.2f}"'
                drawn.append(f'<rect class="{layer.kind}" {place} width="{wide - GAP:.2f}" height="{high:.2f}"/>')
    drawn.append(f'<line x1="0" x2="{WIDTH}" y1="{floor}" y2="{floor}"/>')
    drawn.append(f'<text class="most" x="0" y="{MARGIN - 6}">{short(most)}</text>')
    for at, name in ticks:
        anchor = "start" if at == 0 else "end" if at == 1 else "middle"
        drawn.append(f'<text x="{at * WIDTH:.1f}" y="{HEIGHT - 4}" text-anchor="{anchor}">{text(name)}</text>')
    body = "\n".join(drawn)
    return f'<svg class="histogram" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{body}</svg>'
