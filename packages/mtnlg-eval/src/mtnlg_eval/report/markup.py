"""How a report writes numbers, and text from files.

The curation's page writes numbers the same way (``mtnlg_data.report.numbers``); neither package may import the other.
"""

from __future__ import annotations

import html
from math import isfinite

NARROW = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
MAGNITUDES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def escape(value: object) -> str:
    """The value as text that is safe in elements and in quoted attributes."""
    return html.escape(str(value))


def count(n: float) -> str:
    """A whole number with its thousands grouped: 12,345."""
    return f"{n:,.0f}".replace("-", MINUS)


def short(n: float) -> str:
    """A number in three figures and a magnitude: 4.12 M. T, B, M and k are powers of a thousand."""
    for size, letter in MAGNITUDES:
        if abs(n) >= 0.9995 * size:
            return f"{_three_figures(n / size)}{NARROW}{letter}"
    return f"{n:.3g}"


def _three_figures(x: float) -> str:
    return f"{x:.2f}" if abs(x) < 9.995 else f"{x:.1f}" if abs(x) < 99.95 else f"{x:.0f}"


def brief(n: float) -> str:
    """A whole number for narrow places: ``count`` up to six figures, ``short`` beyond."""
    return count(n) if abs(n) < 1e6 else short(n)


def decimal(x: float | None, places: int) -> str:
    """A number with this many decimals; a dash for None, "not finite" for infinities and NaN."""
    if x is None:
        return DASH
    return f"{x:.{places}f}".replace("-", MINUS) if isfinite(x) else "not finite"


def percent(part: float, whole: float) -> str:
    """A share in percent with one decimal: 12.3 %; a dash where the whole is zero."""
    return f"{100 * part / whole:.1f}{NARROW}%" if whole else DASH


def duration(seconds: float) -> str:
    """A time in its two largest units: 41.3 s, 4 min 12 s, 3 h 05 min, 2 d 07 h."""
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
