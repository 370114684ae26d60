"""Number formats of pages and tables, and page templates, which escape everything that is not markup.

The curation page formats numbers the same way (``mtnlg_data.report.numbers``); neither package may import the other.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from mtnlg_eval.results.statistics import Estimate

NARROW = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
MAGNITUDES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def count(n: float) -> str:
    """A whole number with its thousands grouped: 12,345."""
    return f"{n:,.0f}".replace("-", MINUS)


def short(n: float) -> str:
    """A number in three figures and a magnitude: 4.12 M. T, B, M and k are powers of a thousand."""
    for size, letter in MAGNITUDES:
        if abs(n) >= 0.9995 * size:
            x = n / size
            places = 2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0
            return f"{x:.{places}f}{NARROW}{letter}"
    return f"{n:.3g}"


def decimal(x: float | None, places: int) -> str:
    """A number with this many decimals; a dash for None, "not finite" for infinities and NaN."""
    if x is None:
        return DASH
    return f"{x:.{places}f}".replace("-", MINUS) if isfinite(x) else "not finite"


def percent(part: float, whole: float) -> str:
    """A share in percent with one decimal: 12.3 %; a dash if the whole is zero."""
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


def value(number: float, is_share: bool) -> str:
    """A score, in percent if it is a share."""
    return f"{100 * number:.1f}" if is_share else f"{number:.4g}"


def interval(estimate: Estimate, is_share: bool) -> str:
    """The bounds of a score; "" if they are not known."""
    _, low, high = estimate
    return f"{value(low, is_share)}{DASH}{value(high, is_share)}" if is_share or low < high else ""


@cache
def environment() -> Environment:
    """The jinja2 environment of this package's templates, with this module's number formats as filters."""
    loader = PackageLoader("mtnlg_eval", "report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {each.__name__: each for each in (count, short, decimal, duration, value, interval)}
    return made


def render(template: str, **values: object) -> Markup:
    """Render a template of this package with these values."""
    return Markup(environment().get_template(template).render(**values))  # noqa: S704  (it escapes them)
