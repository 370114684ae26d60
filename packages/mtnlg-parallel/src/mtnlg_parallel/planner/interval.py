"""90 % interval of a predicted step time, from errors on published runs that were held out of the fit.

`benchmarks/planner_published.py` holds out folds of whole hidden sizes, fits the constants on the rest, and writes to
``intervals.toml`` the interval of each error class: it covers 90 % of the class's next runs, estimated from the class's
held-out errors and some of all classes. A class is a program, in 8 bits or not; a class with fewer than eight measured
runs gets the interval that covers 90 % of all runs. An unmeasured program or GPU gets the interval that covers 90 % of
the runs of programs that were held out entirely, weighted equally by program (docs/decisions/0170).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .cluster import cluster_with, load_cluster
from .run import PRODUCT_BYTES

if TYPE_CHECKING:
    from .run import Run

UNSEEN: Final = "unseen"
"""Entry of intervals.toml that is not an error class: runs of held-out programs."""


class Interval(NamedTuple):
    """Factors on a predicted step time that bound 90 % of measured ones, and the runs they were estimated from."""

    low: float
    high: float
    kind: str


@cache
def _intervals() -> dict[str, Any]:
    text = (files(__package__) / "intervals.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def kind_of(run: Run) -> str:
    """Error class used for this run's interval."""
    return run.software.name + (f" {run.precision}" if run.precision in PRODUCT_BYTES else "")


def interval_of(run: Run) -> Interval:
    """The interval of this run's step time."""
    measured = _intervals()
    unseen = measured[UNSEEN]
    figures = measured.get(kind_of(run), unseen)
    low, high = figures["low"], figures["high"]
    kind = f"{figures['runs']} runs of {figures['of']}"
    sheet = cluster_with(run.cluster.gpu.name)  # of `this_machine` the GPU has the name that the driver gives it
    if sheet is None or load_cluster(sheet).gpu.name not in measured["gpus"]:
        low, high = min(low, unseen["low"]), max(high, unseen["high"])
        kind += ", none of them on this GPU"
    return Interval(low, high, kind)
