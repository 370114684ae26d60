"""A 90 % interval of a predicted step time, from errors on published runs whose group was left out of the fit.

`benchmarks/planner_published.py` holds out folds of whole hidden sizes, fits the constants on all
others, and writes quantiles of measured over predicted, widened so that 90 % are covered in the mean of hidden sizes
left out and of all runs, to ``intervals.toml``: by program where there are enough runs, else over all. A program that
nobody has measured gets the latter (docs/decisions/0110, 0140).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .programs import Software

ANY: Final = "all"


class Interval(NamedTuple):
    """Factors on a predicted step time between which 90 % of measured ones lie, and whose errors they are."""

    low: float
    high: float
    kind: str


@cache
def _intervals() -> dict[str, dict[str, float]]:
    text = (files(__package__) / "intervals.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def interval_of(software: Software) -> Interval:
    """The interval of this program's step times."""
    measured = _intervals()
    name = software.name if software.name in measured else ANY
    figures = measured[name]
    kind = f"{figures['runs']:.0f} runs of {name}" if name != ANY else f"{figures['runs']:.0f} runs of other programs"
    return Interval(figures["low"], figures["high"], kind)
