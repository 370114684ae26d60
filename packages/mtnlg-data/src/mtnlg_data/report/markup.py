"""A report's few elements. Whatever comes from a file passes through ``text``; the rest here is markup already.

``mtnlg_data`` and ``mtnlg_eval`` must not import one another, so this file stands in both, and a test keeps the two
byte-equal.

How a report writes numbers: grouped counts, short magnitudes, percents and durations, beside their units.

``mtnlg_data`` and ``mtnlg_eval`` must not import one another, so this file stands in both, and a test keeps the two
byte-equal.
"""

from __future__ import annotations

from html import escape
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def text(value: object) -> str:
    """Any value as text that no browser takes for markup."""
    return escape(str(value))


def figure(caption: str, picture: str, note: str = "") -> str:
    """A picture under its caption; ``note`` is the quieter half of the caption."""
    quiet = f" <span>{note}</span>" if note else ""
    return f"<figure><figcaption>{caption}{quiet}</figcaption>\n{picture}\n</figure>"


def row(cells: Sequence[str], kind: str = "") -> str:
    """A table's row: its head, then numbers."""
    head, *numbers = cells
    opening = f'<tr class="{kind}">' if kind else "<tr>"
    tail = "".join(f'<td class="n">{cell}</td>' for cell in numbers)
    return f'{opening}<th scope="row">{head}</th>{tail}</tr>'


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table from the names of its columns and its rows; wider than the page, it scrolls by itself."""
    first, *others = head
    heads = f'<th scope="col">{first}</th>' + "".join(f'<th class="n" scope="col">{name}</th>' for name in others)
    body = "\n".join(rows)
    opening = f'<table class="{kind}">' if kind else "<table>"
    return f'<div class="scroll">{opening}<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def absent(what: str, file: str, command: str) -> str:
    """Says which part has not been run, and what would run it."""
    return f'<p class="absent">{what}: there is no <code>{file}</code>. <code>{command}</code> writes it.</p>'


NARROW = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
MAGNITUDES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def count(n: float) -> str:
    """A whole number, its thousands grouped: 12,345."""
    return f"{n:,.0f}".replace("-", MINUS)


def short(n: float) -> str:
    """A number in three figures and a magnitude: 4.12 M. T, B, M and k are powers of a thousand."""
    for size, letter in MAGNITUDES:
        if abs(n) >= 0.9995 * size:
            return f"{_three(n / size)}{NARROW}{letter}"
    return f"{n:.3g}"


def brief(n: float) -> str:
    """A whole number where there is little room: grouped up to six figures, in short beyond."""
    return count(n) if abs(n) < 1e6 else short(n)


def _three(x: float) -> str:
    return f"{x:.2f}" if abs(x) < 9.995 else f"{x:.1f}" if abs(x) < 99.95 else f"{x:.0f}"


def decimal(x: float | None, places: int) -> str:
    """A number with so many places, a dash where there is none, and the truth where it is not finite."""
    if x is None:
        return DASH
    return f"{x:.{places}f}".replace("-", MINUS) if isfinite(x) else "not finite"


def percent(part: float, whole: float) -> str:
    """A share in percent, one place: 12.3 %."""
    return f"{100 * part / whole:.1f}{NARROW}%" if whole else DASH


def duration(seconds: float) -> str:
    """A time in the two units that matter: 41.3 s, 4 min 12 s, 3 h 05 min, 2 d 07 h."""
    if seconds < 59.95:
        return f"{seconds:.1f}{NARROW}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NARROW}min {rest:02d}{NARROW}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours}{NARROW}h {minutes:02d}{NARROW}min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days}{NARROW}d {hours:02d}{NARROW}h"
