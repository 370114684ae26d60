"""The planner's fitted constants: which they are, their fit to published rows, and to all rows but a group's.

Two more are fitted to an MLPerf run each (docs/decisions/0189): `network.CONGESTION`, the network of hgx-h100-roce.

With other constants a row's lower bound is computed again; what its simulated pipeline takes over it stays as shipped.
"""

from __future__ import annotations

import sys
import tomllib
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from mtnlg_parallel.planner import step
from mtnlg_parallel.planner.costs import layer, products
from planner_rows import measured_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mtnlg_parallel.planner.run import Run
    from planner_rows import Row

    Vector = NDArray[np.float64]


class Constant(NamedTuple):
    """A fitted constant, as planner_fit.toml says."""

    where: str
    low: float
    high: float
    neutral: float = nan


TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CONSTANTS: Final = {name: Constant(**fields) for name, fields in TABLE.items()}
MODULES: Final[dict[str, Any]] = {"COPIED_SHARE": layer, "MISALIGNED": products}
SOFT: Final = 0.05
"""Log errors beyond this count linearly, not squared: rows deviate for reasons of their own."""

RIDGE: Final = 1e-3
STEPS: Final = 3
FOLDS: Final = 8


class Rows:
    """Rows with measured step times; their errors as a function of the fitted constants."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Keep what can be predicted; simulate every row once."""
        self.rows = [row for row in rows if row.published and measured_seconds(row)]
        self.runs = [row.published for row in self.rows if row.published]
        self.measured = np.array([measured_seconds(row) for row in self.rows], dtype=float)
        self.computed = np.array([source_of(row) == COMPUTED for row in self.rows])
        self.shipped = np.array([self._shipped(name) for name in CONSTANTS])
        predicted = np.array([step.predict(run).seconds for run in self.runs])
        self.shipped_errors = np.log(predicted / self.measured)
        self.over_bound = predicted / self._bounds(self.shipped)
        sources = [f"{source_of(row)} {run.cluster.gpu.name}" for row, run in zip(self.rows, self.runs, strict=True)]
        counts = {source: sources.count(source) for source in sources}
        self.weights = np.array([counts[source] ** -0.25 for source in sources])

    def _shipped(self, name: str) -> float:
        kind, field, *_ = name.split()
        if kind == "module":
            return float(getattr(MODULES[field], field))
        for run in self.runs:
            if _applies(name, run):
                return float(getattr(run.cluster.measured if kind == "gpu" else run.software, field))
        return CONSTANTS[name].high

    def errors(self, values: Vector) -> Vector:
        """Log of predicted over measured seconds with these constants."""
        errors: Vector = np.log(self._bounds(values) * self.over_bound / self.measured)
        return errors

    def _bounds(self, values: Vector) -> Vector:
        for cached in (step.predict, layer.layer, layer.embedding, layer.head):
            cached.cache_clear()
        named = dict(zip(CONSTANTS, map(float, values), strict=True))
        for field, module in MODULES.items():
            setattr(module, field, named[f"module {field}"])
        return np.array([step.lower_bound(_with_constants(run, named)) for run in self.runs])


def _with_constants(run: Run, named: dict[str, float]) -> Run:
    measured = run.cluster.measured.model_copy(update=_named(named, "gpu", run))
    return run._replace(
        cluster=run.cluster.model_copy(update={"measured": measured}),
        software=run.software.model_copy(update=_named(named, "program", run)),
    )


def _named(values: dict[str, float], kind: str, run: Run) -> dict[str, float]:
    applying = (name for name in values if name.startswith(kind) and _applies(name, run))
    return {name.split()[1]: values[name] for name in applying}


def _applies(name: str, run: Run) -> bool:
    """Whether a constant of a GPU, a cluster or a program is one of this run's."""
    things = (run.cluster.name, run.cluster.gpu.name) if name.startswith("gpu") else (run.software.name,)
    return any(part in thing for part in CONSTANTS[name].where.split("|") for thing in things)


COMPUTED: Final = "vTrain, computed"
"""Source of rows that nobody measured."""


def source_of(row: Row) -> str:
    """Where a row was published; vTrain's files have no such column."""
    one_node = row.published is not None and row.published.gpus <= row.published.cluster.node.gpus
    return row.cells.get("family") or (COMPUTED if one_node else "vTrain")


BOUNDS: Final = (np.array([c.low for c in CONSTANTS.values()]), np.array([c.high for c in CONSTANTS.values()]))


def fit(rows: Rows) -> Vector:
    """Return the constants that fit all rows best."""
    scale = BOUNDS[1]

    def residuals(scaled: Vector) -> Vector:
        return np.asarray(rows.weights * rows.errors(scaled * scale), dtype=float)

    start = np.clip(rows.shipped, *BOUNDS) / scale
    bounds = (BOUNDS[0] / scale - 1e-9, BOUNDS[1] / scale + 1e-9)
    fitted = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=SOFT, diff_step=3e-3, max_nfev=4)
    return np.asarray(fitted.x * scale, dtype=float)


def jacobian(rows: Rows, values: Vector) -> NDArray[np.float64]:
    """Return the derivative of every row's log error by each constant, in units of its upper bound."""
    base, columns = rows.errors(values), []
    for place, high in enumerate(BOUNDS[1]):
        moved = values.copy()
        moved[place] += (1 if values[place] < 0.9 * high else -1) * 5e-3 * high
        columns.append((rows.errors(moved) - base) / ((moved[place] - values[place]) / high))
    return np.stack(columns, axis=1)


def hold_out(rows: Rows, fitted: Vector, slopes: NDArray[np.float64], group: Callable[[Row], Any]) -> Vector:
    """Return each row's log error with constants fitted without its group."""
    groups = [group(row) for row in rows.rows]
    result, scale = np.empty(len(groups)), BOUNDS[1]
    neutral = np.array([constant.neutral for constant in CONSTANTS.values()])
    for name in sorted(set(groups), key=str):
        out = np.array([each == name for each in groups])
        told = np.abs(slopes[~out]).max(axis=0) > 1e-6
        clocks = np.isnan(neutral)
        values = np.where(told, fitted, np.where(clocks, fitted[clocks & told].mean(), neutral))
        for _ in range(STEPS):
            errors = rows.errors(values)
            soft = rows.weights * (1 + (errors / SOFT) ** 2) ** -0.25
            left = (slopes * soft[:, None])[~out][:, told]
            normal = left.T @ left + RIDGE * np.eye(left.shape[1])
            move = np.linalg.solve(normal, -left.T @ (soft * errors)[~out])
            values = values.copy()
            values[told] = np.clip(values[told] + move * scale[told], BOUNDS[0][told], BOUNDS[1][told])
        result[out] = rows.errors(values)[out]
        print(f"{name}: {out.sum()} rows held out", file=sys.stderr)
    return result


def size_folds(rows: Rows) -> Callable[[Row], int]:
    """Return which fold of whole hidden sizes a row is in."""
    sizes = sorted({int(row.cells["hidden"]) for row in rows.rows})
    return lambda row: sizes.index(int(row.cells["hidden"])) % FOLDS
