"""How a report writes numbers: grouped, in three figures and a magnitude, with a minus sign and a narrow space."""

from __future__ import annotations

NARROW = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
MAGNITUDES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def count(n: float) -> str:
    """A whole number with its thousands grouped: 12,345."""
    return f"{n:,.0f}".replace("-", MINUS)


def signed(n: float) -> str:
    """A whole number with its sign; empty for none."""
    return f"{n:+,}".replace("-", MINUS) if n else ""


def short(n: float) -> str:
    """A number in three figures and a magnitude: 4.12 M. T, B, M and k are powers of a thousand."""
    for size, letter in MAGNITUDES:
        if abs(n) >= 0.9995 * size:
            x = n / size
            places = 2 if abs(x) < 9.995 else 1 if abs(x) < 99.95 else 0
            return f"{x:.{places}f}{NARROW}{letter}"
    return f"{n:.3g}"


def data_size(n: float) -> str:
    """Bytes in three figures, for a terminal, where a narrow space is not printable: 4.12 MB."""
    return f"{n:.0f} B" if n < 1000 else f"{short(n).replace(NARROW, ' ').replace('B', 'G')}B"


def brief(n: float) -> str:
    """A whole number for narrow places: ``count`` up to six figures, ``short`` beyond."""
    return count(n) if abs(n) < 1e6 else short(n)


def percent(part: float, whole: float = 1) -> str:
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
