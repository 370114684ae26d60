"""Matplotlib figures as inline SVG: text stays text, colours follow the page, equal figures give equal bytes.

Figures are drawn in placeholder colours, which are replaced by the page's CSS custom properties, so that one picture
serves light, dark and print. Ids get a prefix, since all pictures of a page share one id space. Namespace declarations,
which inline SVG does not need, are removed, so that the page contains no URL.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from importlib.resources import files
from io import StringIO
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from mtnlg_eval.report.markup import NARROW, escape, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matplotlib.axes import Axes

POINTS_PER_INCH = 72
VIEW_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
MAX_SCALE = 1.15  # CSS pixels per point; beyond this a picture's text is larger than the page's
TIP_RADIUS = 7  # points
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
    """Apply the style of all figures; a context manager and a decorator."""
    with mpl.rc_context(STYLE):
        yield


def canvas(width: float, height: float) -> Figure:
    """An empty figure; width and height are in points."""
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
    """A figure with axes: margins in points, ``ticks`` at most on x and y, tick labels in short form (12 k)."""
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
    number, _, letter = short(value).partition(NARROW)
    return f"{float(number):g}{NARROW}{letter}"


class Tip(NamedTuple):
    """What a pointer reads at a place of these axes."""

    axes: Axes
    x: float
    y: float
    text: str


def to_svg(figure: Figure, name: str, description: str, tips: Iterable[Tip] = ()) -> str:
    """The figure as an ``<svg>`` element; ``name`` is unique on the page, ``description`` is its accessible title.

    ``tips`` become invisible circles that show their text under the pointer.
    """
    file = StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    width, height = (POINTS_PER_INCH * inches for inches in figure.get_size_inches())
    style = f"max-width:{MAX_SCALE * width:.0f}px"
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" style="{style}" role="img"><title>{escape(description)}</title>'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1).replace("xlink:href", "href")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", svg)
    svg = re.sub(r"font-family: [^;\"]+;? ?", "", svg)
    for placeholder, property_ in PROPERTIES.items():
        svg = svg.replace(placeholder, f"var(--{property_})")
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):  # a word of a file, which could end the attribute
        name = f"a{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    svg = re.sub(r"\s*\n\s*", "\n", _prefix_ids(svg, name)).strip()
    circles = "".join(_circle(tip, height) for tip in tips if isfinite(tip.x) and isfinite(tip.y))
    return f'{svg.removesuffix("</svg>")}<g fill="transparent">{circles}</g>\n</svg>' if circles else svg


def _circle(tip: Tip, height: float) -> str:
    x, y = tip.axes.transData.transform((tip.x, tip.y))
    return f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="{TIP_RADIUS}"><title>{escape(tip.text)}</title></circle>'


def standalone_svg(pictures: Sequence[str], columns: int = 1) -> str:
    """A complete SVG file of ``to_svg`` pictures in a grid, with the page's colours."""
    placed: list[str] = []
    width = height = 0.0
    for start in range(0, len(pictures), columns):
        x, y = 0.0, height
        for picture in pictures[start : start + columns]:
            w, h = map(float, VIEW_BOX.findall(picture)[0])
            place = f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"'
            placed.append(picture.replace("<svg ", f"<svg {place} ", 1))
            x, height = x + w, max(height, y + h)
        width = max(width, x)
    style = files("mtnlg_eval.report").joinpath("style.css").read_text(encoding="utf-8").partition("* {")[0]
    style += "svg { background: var(--paper); font-family: system-ui, sans-serif; }"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
    return "\n".join((opening, f"<style>\n{style}\n</style>", *placed, "</svg>\n"))


def _prefix_ids(svg: str, prefix: str) -> str:
    """Prefix the ids that are referred to, and remove the others."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", svg)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda m: f"{m[1]}{prefix}-{m[2]}", svg)
