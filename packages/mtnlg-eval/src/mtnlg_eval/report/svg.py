"""From a matplotlib figure to a picture inside a page: text stays text, colours follow the page, bytes never vary.

Colours are drawn as stand-ins and replaced by the page's custom properties, so that one picture serves light, dark and
paper. Names inside a picture get its own prefix, since all pictures of a page share one name space; the namespace
declarations, which a picture inside HTML does not need, go, so that the page holds no address at all.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from io import StringIO
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .markup import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

POINTS_PER_INCH = 72
VIEW = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
WIDEST = 1.15  # screen pixels a point: beyond this a picture would be louder than the text
INK, MUTED, RULE, ACCENT, SOFT, SECOND = (f"#0a0b{n:02x}" for n in range(1, 7))
PROPERTIES = {INK: "ink", MUTED: "muted", RULE: "rule", ACCENT: "accent", SOFT: "soft", SECOND: "second"}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mtnlg",
    "text.parse_math": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 10,
    "axes.linewidth": 0.6,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": INK,
    "lines.linewidth": 1.2,
    "lines.solid_joinstyle": "round",
}


@contextmanager
def styled() -> Iterator[None]:
    """The settings under which every picture is drawn; also a decorator."""
    with mpl.rc_context(STYLE):
        yield


def canvas(width: float, height: float) -> Figure:
    """An empty figure of this many points."""
    return Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH), dpi=POINTS_PER_INCH)


def chart(
    width: float,
    height: float,
    *,
    left: float = 42,
    right: float = 10,
    top: float = 22,
    ticks: tuple[int, int] = (5, 5),
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes: margins in points, at most so many ticks along and up, magnitudes in short."""
    figure = canvas(width, height)
    frame = (left / width, 32 / height, 1 - (left + right) / width, 1 - (32 + top) / height)
    axes = figure.add_axes(frame)
    for axis, most in zip((axes.xaxis, axes.yaxis), ticks, strict=True):
        axis.set_major_locator(MaxNLocator(most))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    return figure, axes


def _tick(value: float) -> str:
    if abs(value) < 1000:
        return f"{value:g}"
    number, _, letter = short(value).partition("\N{NARROW NO-BREAK SPACE}")
    return f"{float(number):g}\N{NARROW NO-BREAK SPACE}{letter}"


def inline(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element; ``name`` is unique on the page, ``description`` is for who cannot see it."""
    text = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    FigureCanvasSVG(figure)
    figure.savefig(text, format="svg", metadata=nothing)
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", drawing, flags=re.DOTALL)
    width, height = (POINTS_PER_INCH * inches for inches in figure.get_size_inches())
    widest = f"max-width:{WIDEST * width:.0f}px"
    opening = (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="{widest}" role="img"><title>{escape(description)}</title>'
    )
    drawing = re.sub(r"<svg[^>]*>", lambda _: opening, drawing, count=1).replace("xlink:href", "href")
    drawing = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", drawing)
    drawing = re.sub(r"font-family: [^;\"]+;? ?", "", drawing)
    for stand_in, property_ in PROPERTIES.items():
        drawing = drawing.replace(stand_in, f"var(--{property_})")
    return re.sub(r"\s*\n\s*", "\n", _named_apart(drawing, name)).strip()


def standing_alone(pictures: Sequence[str], across: int = 1) -> str:
    """`inline` pictures, so many in a row, as a file of its own, which brings the page's colours along."""
    placed: list[str] = []
    width = height = 0.0
    for start in range(0, len(pictures), across):
        left, below = 0.0, height
        for picture in pictures[start : start + across]:
            w, h = map(float, VIEW.findall(picture)[0])
            where = f'x="{left:g}" y="{below:g}" width="{w:g}" height="{h:g}"'
            placed.append(picture.replace("<svg ", f"<svg {where} ", 1))
            left, height = left + w, max(height, below + h)
        width = max(width, left)
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8").partition("* {")[0]
    style += "svg { background: var(--paper); font-family: system-ui, sans-serif; }"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
    return "\n".join((opening, f"<style>\n{style}\n</style>", *placed, "</svg>\n"))


def _named_apart(drawing: str, prefix: str) -> str:
    """Prefix the names that something in the drawing refers to, drop the others."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawing))
    drawing = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", drawing)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda m: f"{m[1]}{prefix}-{m[2]}", drawing)
