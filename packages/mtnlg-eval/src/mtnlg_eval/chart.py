"""Pictures as inline SVG: lines, bars and dots over two axes. Colours and fonts are the page's (report/chart.css)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .markup import interval, render, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from mtnlg_eval.results.statistics import Estimate


class Axis(NamedTuple):
    """Range of an axis, from left to right or from bottom to top, and its ticks: (position, label)."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()

    def share(self, value: float) -> float:
        """Position of a value on the axis, from 0 to 1."""
        return (value - self.low) / ((self.high - self.low) or 1)


PERCENT = Axis(0, 100, ((0, "0"), (50, "50"), (100, "100")))


def tokens_axis(most: float) -> Axis:
    """An axis of tokens from 0 to ``most``."""
    return Axis(0, most, ((0, "0"), (most / 2, short(most / 2)), (most, short(most))))


def steps(labels: Sequence[str], margin: float = 0.4) -> Axis:
    """An axis with a tick for each label, at 0, 1, 2 and so on."""
    return Axis(-margin, len(labels) - 1 + margin, tuple(enumerate(labels)))


class Line(NamedTuple):
    """A line through points; ``look`` are classes of chart.css, ``width`` is that of a bar."""

    points: Sequence[tuple[float, float]]
    look: str
    width: float


class Dot(NamedTuple):
    """A mark and its tooltip."""

    x: float
    y: float
    look: str
    tip: str


@dataclass
class Chart:
    """Marks over two axes; lengths are in points, ``about`` describes the chart to readers who cannot see it."""

    title: str
    about: str
    x: Axis
    y: Axis
    width: float = 300
    height: float = 176
    left: float = 30
    note: str = ""
    lines: list[Line] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    labels: list[tuple[float, str, str]] = field(default_factory=list)
    """Texts at the top: (x, look, text)."""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """(look, name) of each line, which the page writes below the chart."""

    def px(self, x: float) -> float:
        """Position of ``x`` in points from the left."""
        return round(self.left + (self.width - self.left - 14) * self.x.share(x), 1)

    def py(self, y: float) -> float:
        """Position of ``y`` in points from the top."""
        return round(24 + (self.height - 24 - (34 if self.note else 20)) * (1 - self.y.share(y)), 1)

    def line(self, look: str, *points: tuple[float, float], width: float = 1.2) -> None:
        """Add a line through points."""
        self.lines.append(Line(points, look, width))

    def dot(self, x: float, y: float, look: str, tip: str) -> None:
        """Add a mark with its tooltip."""
        self.dots.append(Dot(x, y, look, tip))

    def share(self, x: float, estimate: Estimate, look: str, what: str) -> None:
        """Add a share with its interval, in percent."""
        score, low, high = (100 * number for number in estimate)
        self.line(look.partition(" ")[0], (x, low), (x, high))
        self.dot(x, score, look, f"{what}: {score:.1f} ({interval(estimate, True)})")

    def __html__(self) -> Markup:
        """The chart as an ``<svg>`` element."""
        return render("chart.svg", chart=self)
