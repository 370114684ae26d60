"""Curves over tokens as small SVG: of more points than columns, mean, minimum and maximum of each column.

So a picture of weeks of steps is no larger than one of an hour, and a single spike stays in it. Colours are the CSS
properties of the page, or those that `standalone` adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from mtnlg_data.report.numbers import NARROW, short

from .markup import escape

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 24  # margins
COLUMNS: Final = 360
DOTS: Final = 40
"""Points of a curve up to which each is marked."""
MARKS: Final = 200
STYLE: Final = (
    "text{fill:var(--muted);font:11px system-ui,sans-serif;font-variant-numeric:tabular-nums}"
    ".line{fill:none;stroke:var(--accent);stroke-width:1.3}.band{fill:var(--soft)}"
    ".second{fill:none;stroke:var(--second);stroke-width:1.1}.dot{fill:var(--second)}"
    ".rule{stroke:var(--rule);stroke-width:.7}.restart{stroke:var(--muted);stroke-width:.6;stroke-dasharray:2 4}"
    ".skip{stroke:var(--second);stroke-width:1.2}.line,.second,.skip,.restart{vector-effect:non-scaling-stroke}"
)
COLOURS: Final = (
    "svg{--paper:#fdfcfa;--muted:#6a665f;--rule:#d8d4cb;--accent:#2b5a86;--soft:#cddae5;--second:#b0531f;"
    "background:var(--paper)}@media(prefers-color-scheme:dark){svg{--paper:#17191b;--muted:#a09b92;--rule:#3b3c3d;"
    "--accent:#8db6dc;--soft:#33475b;--second:#e39a63}}"
)


@dataclass(frozen=True)
class Curve:
    """Values over tokens, of equal length; NaN where there is none."""

    tokens: array[float]
    values: array[float]

    def columns(self, begin: float, end: float) -> tuple[Floats, Floats, Floats, Floats]:
        """x, mean, minimum and maximum of the points from ``begin`` to ``end``; of few points, each is a column."""
        x, y = np.asarray(self.tokens), np.asarray(self.values)
        inside = slice(np.searchsorted(x, begin, side="left"), np.searchsorted(x, end, side="right"))
        x, y = x[inside], y[inside]
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        if len(x) <= 2 * COLUMNS:
            return x, y, y, y
        starts = np.unique(np.searchsorted(x, np.linspace(x[0], x[-1], COLUMNS, endpoint=False)))
        counts = np.diff(np.append(starts, len(x)))
        mean = np.add.reduceat(y, starts) / counts
        middle = np.add.reduceat(x, starts) / counts
        return middle, mean, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)


@dataclass(frozen=True)
class Marks:
    """Tokens at which the run was restarted, and at which steps were skipped."""

    restarts: Sequence[float] = ()
    skips: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """A picture of a curve between two numbers of tokens, with a second one in another colour and marks."""

    title: str
    curve: Curve
    end: float
    begin: float = 0.0
    second: Curve | None = None
    marks: Marks = field(default_factory=Marks)
    logarithmic: bool = False
    from_zero: bool = False
    width: int = 380
    height: int = 190

    def svg(self) -> str:
        """The picture as an ``<svg>`` element."""
        drawn = [self.curve.columns(self.begin, self.end)]
        if self.second:
            drawn.append(self.second.columns(self.begin, self.end))
        scale = self._scale([column for each in drawn for column in each[2:]])
        parts = [*self._axes(scale), *self._marks()]
        x, mean, low, high = drawn[0]
        if len(x) and mean is not low:
            outline = [*self._points(x, high, scale), *reversed(self._points(x, low, scale))]
            parts.append(f'<polygon class="band" points="{" ".join(outline)}"/>')
        parts.append(f'<polyline class="line" points="{" ".join(self._points(x, mean, scale))}"/>')
        if len(drawn) > 1:
            points = self._points(drawn[1][0], drawn[1][1], scale)
            parts.append(f'<polyline class="second" points="{" ".join(points)}"/>')
            if len(points) <= DOTS:
                places = (point.partition(",") for point in points)
                parts += [f'<circle class="dot" r="2" cx="{px}" cy="{py}"/>' for px, _, py in places]
        body = "\n".join(parts)
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img">'
            f"<title>{escape(self.title)}</title>\n{body}\n</svg>"
        )

    def _scale(self, columns: Sequence[Floats]) -> Scale:
        values = np.concatenate(columns) if columns else np.empty(0)
        if self.logarithmic:
            values = values[values > 0]
        low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 2.0)
        if self.from_zero:
            low = min(low, 0.0)
        if low == high:
            low, high = (
                (low / 2, high * 2) if self.logarithmic else (low - abs(low) / 10 - 1e-12, high + abs(high) / 10)
            )
        return Scale(low, high, self.height - BOTTOM, TOP, self.logarithmic)

    def _x(self, tokens: float) -> float:
        span = (self.end - self.begin) or 1.0
        return LEFT + (tokens - self.begin) / span * (self.width - LEFT - RIGHT)

    def _points(self, x: Floats, y: Floats, scale: Scale) -> list[str]:
        return [f"{self._x(px):.1f},{scale(py):.1f}" for px, py in zip(x.tolist(), y.tolist(), strict=True)]

    def _axes(self, scale: Scale) -> Iterator[str]:
        right = self.width - RIGHT
        for value in scale.ticks():
            y = scale(value)
            yield f'<line class="rule" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_label(value)}</text>'
        for value in Scale(self.begin, self.end or 1.0, LEFT, right).ticks():
            anchor = "end" if self._x(value) > right - 12 else "middle"
            yield f'<text x="{self._x(value):.1f}" y="{self.height - 7}" text-anchor="{anchor}">{_label(value)}</text>'

    def _marks(self) -> Iterator[str]:
        bottom = self.height - BOTTOM
        for css_class, tokens, y1, y2 in (
            ("restart", self.marks.restarts, TOP, bottom),
            ("skip", self.marks.skips, TOP - 8, TOP - 2),
        ):
            places = dict.fromkeys(round(self._x(at)) for at in tokens if self.begin <= at <= self.end)
            for x in list(places)[-MARKS:]:
                yield f'<line class="{css_class}" x1="{x}" x2="{x}" y1="{y1}" y2="{y2}"/>'


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` to ``high`` onto ``start`` to ``stop``, linearly or by logarithms."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = (self._forward(v) for v in (self.low, self.high, value))
        return self.start + (at - low) / ((high - low) or 1.0) * (self.stop - self.start)

    def _forward(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.logarithmic else value

    def ticks(self, most: int = 5) -> list[float]:
        """Round values within, at most ``most``."""
        if self.logarithmic and self.high / self.low >= 10:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = (self._decade(decades, digits) for digits in ((1, 2, 5), (1, 3), (1,)))
            ticks = next((values for values in every if len(values) <= most + 2), None)
            return ticks if ticks is not None else self._decade(decades[:: -(-len(decades) // most)], (1,))
        size = 10.0 ** math.floor(math.log10(((self.high - self.low) or 1.0) / most))
        step = next(size * n for n in (1, 2, 5, 10, 20) if (self.high - self.low) / (size * n) <= most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _decade(self, decades: Sequence[int], digits: Sequence[int]) -> list[float]:
        values = (digit * 10.0**decade for decade in decades for digit in digits)
        return [value for value in values if self.low <= value <= self.high * (1 + 1e-9)]


def _label(value: float) -> str:
    if abs(value) >= 1000:
        figure, _, letter = short(value).partition(NARROW)
        return f"{float(figure):g}{NARROW}{letter}"
    return "0" if abs(value) < 1e-15 else f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.2g}"


def standalone(svg: str) -> str:
    """The element as a file of its own, light or dark as the viewer is."""
    opening = '<svg xmlns="http://www.w3.org/2000/svg"'
    return svg.replace("<svg", opening, 1).replace("<title>", f"<style>{COLOURS}{STYLE}</style><title>", 1) + "\n"
