"""HTML elements of the pages of runs and plans; ``mtnlg_data.report.numbers`` writes their numbers.

Everything read from a file must pass through ``escape``; all other arguments here are markup already.
"""

from __future__ import annotations

import html
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.report.numbers import DASH, MINUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def escape(value: object) -> str:
    """The value as text that is safe in elements and in quoted attributes."""
    return html.escape(str(value))


def figure(caption: str, picture: str, note: str = "") -> str:
    """A ``<figure>`` with its caption above; ``note`` follows the caption in a muted colour."""
    muted = f" <span>{note}</span>" if note else ""
    return f"<figure><figcaption>{caption}{muted}</figcaption>\n{picture}\n</figure>"


def row(cells: Sequence[str], css_class: str = "") -> str:
    """A table row: a heading cell, then numeric cells."""
    head, *numbers = cells
    opening = f'<tr class="{css_class}">' if css_class else "<tr>"
    tail = "".join(f'<td class="n">{cell}</td>' for cell in numbers)
    return f'{opening}<th scope="row">{head}</th>{tail}</tr>'


def table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table of column names and rows; it scrolls by itself where it is wider than the page."""
    first, *others = head
    heads = f'<th scope="col">{first}</th>' + "".join(f'<th class="n" scope="col">{name}</th>' for name in others)
    body = "\n".join(rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def decimal(x: float | None, places: int) -> str:
    """A number with this many decimals; a dash for None, "not finite" for infinities and NaN."""
    if x is None:
        return DASH
    return f"{x:.{places}f}".replace("-", MINUS) if isfinite(x) else "not finite"


class Bar(NamedTuple):
    """A horizontal bar: its label, values with their CSS classes, the widest first, and the figure beside it."""

    name: str
    layers: Sequence[tuple[float, str]]
    figure: str


def bars(rows: Iterable[Bar], full_width: float | None = None) -> str:
    """A bar chart in the style of ``mtnlg_data/report/bars.css``; names and figures are markup.

    The largest value, or ``full_width``, takes the whole width.
    """
    rows = list(rows)
    longest = full_width or max((value for bar in rows for value, _ in bar.layers), default=0) or 1
    lines = []
    for bar in rows:
        layers = "".join(
            f'<i class="{kind}" style="width:{100 * value / longest:.2f}%"></i>' for value, kind in bar.layers
        )
        lines.append(f'<span class="name">{bar.name}</span><span class="bar">{layers}</span><span>{bar.figure}</span>')
    return '<div class="bars">\n{}\n</div>'.format("\n".join(lines))
