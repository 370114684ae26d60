"""A 90 % interval of a predicted step time, from errors on published runs whose group was left out of the fit.

`benchmarks/planner_published.py` holds out folds of whole hidden sizes, fits the constants on all others, and writes to
``intervals.toml`` how wide a kind of runs is: one factor times its mean error, drawn towards that of all kinds where it
has few runs. A kind is a program, in 8 bits or not; one that nobody has measured gets what holds 90 % of all runs
(docs/decisions/0110, 0151).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .programs import Software
    from .run import Run

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


def kind_of(run: Run, software: Software) -> str:
    """The kind of runs whose errors this one's is taken to be like."""
    return software.name + (" fp8" if run.precision == "fp8" else "")


def interval_of(run: Run, software: Software) -> Interval:
    """The interval of this run's step time."""
    measured, name = _intervals(), kind_of(run, software)
    figures = measured.get(name) or measured[ANY]
    kind = f"{figures['runs']:.0f} runs of {name if name in measured else 'other programs'}"
    return Interval(figures["low"], figures["high"], kind)
