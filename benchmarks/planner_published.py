# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "scipy>=1.13", "matplotlib>=3.9"]
# ///
"""The planner beside what others measured: every row of files of published runs, cross-validated by group.

    python benchmarks/planner_published.py FILE.csv … [--intervals] [--out FILE]

1. Fit the planner's fitted constants (`planner_fit.CONSTANTS`) on all rows, by robust least squares on log errors; a
   source weighs as the root of its number of rows.
2. Hold out groups of rows, whole hidden sizes and whole sources, and predict each with constants fitted without it:
   Gauss-Newton steps from the fit on all rows. A constant that no row left tells anything of takes its neutral value,
   as for a program that nobody has measured; a GPU's clock the mean of the other clocks.
3. Predict with the shipped constants, by a roofline, and by six operations a parameter and token.

vTrain's rows of one node were not measured but computed, from a traced layer for each shape (docs/decisions/0189): they
are a source of their own and in no interval, but they alone tell the host's time of a launch.

The result has figures by program and GPU, ``covered`` the share of its runs in the interval that their program's other
hidden sizes give. It draws docs/planner-accuracy.svg; with ``--intervals`` it writes the planner's `intervals.toml`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mtnlg_parallel.planner import interval
from mtnlg_parallel.planner.interval import UNSEEN, kind_of
from mtnlg_parallel.planner.run import RECOMPUTED_SHARE
from planner_fit import CONSTANTS, Rows, fit, hold_out, jacobian, size_folds, source_of
from planner_rows import read_rows
from record import picture
from record import run as benchmark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mtnlg_parallel.planner.run import Run

    Vector = NDArray[np.float64]

HERE: Final = Path(__file__).parent
INTERVALS: Final = Path(interval.__file__).parent / "intervals.toml"


def roofline(run: Run) -> float:
    """Seconds of a step by the simplest published kind of formula: roofline layers, ring collectives, bubble.

    Its efficiencies of an A100 system are taken for all GPUs: 0.9 of products and memory, 0.65 of links and network.
    """
    model, layout, cluster = run.model, run.layout, run.cluster
    gpu = cluster.gpu
    forward = sum(2 * run.tokens * columns * depth for columns, depth in run.linears)
    attention = 4 * run.tokens * model.sequence * model.heads * model.head_size / layout.tp
    moved = 2 * (run.elements * 12 + 8 * run.tokens * model.ffn / layout.tp)
    computed = (forward + attention) / (0.9 * gpu.peak_flops) + moved / (0.9 * gpu.memory_bandwidth)
    link = 0.65 * (cluster.node.link_bandwidth if layout.tp <= cluster.node.gpus else cluster.network_share)
    tensor = 4 * (layout.tp - 1) / layout.tp * 2 * run.elements / link
    again = RECOMPUTED_SHARE[run.recompute]
    each = model.layers / layout.pp * ((3 + again) * computed + (2 + again) * tensor)
    head = 6 * run.tokens * model.vocabulary * model.hidden / layout.tp / (0.9 * gpu.peak_flops)
    hop = 2 * 2 * run.repeated / (0.65 * cluster.network_share) if layout.pp > 1 else 0.0
    bubble = (layout.pp - 1) / run.interleave
    parameters = model.parameters / (layout.tp * layout.pp)
    ranks = layout.copies
    reduced = 2 * (ranks - 1) / ranks * 2 * parameters / (0.65 * cluster.network_share) if run.zero < 2 else 0.0
    return (run.micro_batches + bubble) * (each + hop) + run.micro_batches * head + reduced


def six_operations(run: Run) -> float:
    """Seconds of a step by 6 operations a parameter and token at half of the GPU's 16-bit peak."""
    tokens = run.batch * run.model.sequence
    return 6 * run.model.parameters * tokens / run.gpus / (0.5 * run.cluster.gpu.peak_flops)


COVERED: Final = 0.9
SHRINKAGE: Final = 8
"""Runs of other kinds, each kind the same, that are added to a kind; one of fewer runs than these is not a kind."""


def kinds_and_sizes(rows: Rows) -> tuple[NDArray[np.str_], NDArray[np.int_]]:
    """Return each run's kind and hidden size."""
    return (
        np.array([kind_of(run) for run in rows.runs]),
        np.array([run.model.hidden for run in rows.runs]),
    )


def width(kinds: NDArray[np.str_], errors: Vector, kind: str) -> float:
    """Return what `COVERED` of a kind's next runs do not exceed: a conformal quantile of its absolute log errors.

    That counts the next run among them as the largest, which few runs need. A kind of fewer than `SHRINKAGE` runs gets
    the quantile of all runs.
    """
    sizes, own = np.abs(errors), kinds == kind
    if own.sum() < SHRINKAGE:
        return float(np.quantile(sizes, COVERED))
    others = {other: int((kinds == other).sum()) for other in set(kinds.tolist()) - {kind}}
    weights = np.array([1.0 if each == kind else SHRINKAGE / len(others) / others[each] for each in kinds.tolist()])
    return _covering(sizes, weights, more=1.0)


def _covering(sizes: Vector, weights: Vector, more: float = 0.0) -> float:
    """Return the size that `COVERED` of the weight does not exceed; ``more`` of it is of sizes beyond all of these."""
    order = np.argsort(sizes)
    place = np.searchsorted(np.cumsum(weights[order]), COVERED * (weights.sum() + more))
    return float(sizes[order][min(place, len(sizes) - 1)])


def inside(rows: Rows, errors: Vector) -> NDArray[np.bool_]:
    """Return which runs lie in the interval of their kind that other hidden sizes give."""
    kinds, sizes = kinds_and_sizes(rows)
    result = np.zeros(len(errors), dtype=bool)
    for kind, size in {*zip(kinds.tolist(), sizes.tolist(), strict=True)}:
        rest, own = (sizes != size) & ~rows.computed, (kinds == kind) & (sizes == size)
        result[own] = np.abs(errors[own]) <= width(kinds[rest], errors[rest], kind)
    return result


def write_intervals(rows: Rows, sizes_out: Vector, sources_out: Vector) -> None:
    """Write the interval of each kind of measured runs, of other measured kinds, and of programs nobody has measured.

    The first two are from errors with hidden sizes held out, the last from those with sources held out.
    """
    measured = ~rows.computed
    kinds, _ = (each[measured] for each in kinds_and_sizes(rows))
    gpus = json.dumps(sorted({run.cluster.gpu.name for run in rows.runs}))
    lines = ["# Measured over predicted step time, 90 % of held-out runs: benchmarks/planner_published.py."]
    lines += [f"gpus = {gpus}"]
    unseen = unseen_width(rows, sources_out)
    lines += _interval(UNSEEN, len(kinds), "programs that were held out", unseen)
    for kind in sorted(set(kinds.tolist())):
        own = int((kinds == kind).sum())
        runs, of = (own, kind) if own >= SHRINKAGE else (len(kinds), "all programs")
        lines += _interval(kind, runs, of, width(kinds, sizes_out[measured], kind))
    INTERVALS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _interval(name: str, runs: int, of: str, half: float) -> list[str]:
    bounds = [f"low = {np.exp(-half):.3f}", f"high = {np.exp(half):.3f}"]
    return [f'\n["{name}"]', f"runs = {runs}", f'of = "{of}"', *bounds]


def unseen_width(rows: Rows, errors: Vector) -> float:
    """Return what `COVERED` of the runs of programs do not exceed whose source was held out, each program alike."""
    measured = ~rows.computed
    programs = [run.software.name for run, real in zip(rows.runs, measured, strict=True) if real]
    return _covering(np.abs(errors[measured]), np.array([1 / programs.count(each) for each in programs]))


def table(rows: Rows, columns: dict[str, Vector]) -> list[dict[str, Any]]:
    """Return mean absolute errors by source, GPU and precision, and shares in the intervals.

    ``covered``: held-out errors in those that other hidden sizes give; ``shipped in``: shipped errors in those of all.
    """
    held, (names, _) = columns["without hidden size"], kinds_and_sizes(rows)
    known, known_errors = names[~rows.computed], held[~rows.computed]
    widths = np.array([width(known, known_errors, name) for name in names.tolist()])
    figures = {name: np.abs(np.expm1(errors)) for name, errors in columns.items()}
    figures |= {"covered": inside(rows, held), "shipped in": np.abs(columns["shipped"]) <= widths}
    kinds = []
    for row, run in zip(rows.rows, rows.runs, strict=True):
        nodes = "one node" if run.gpus <= run.cluster.node.gpus else "many nodes"
        kinds.append(f"{source_of(row)}, {run.cluster.gpu.name}, {run.precision}, {nodes}")
    result = []
    for kind in dict.fromkeys(kinds):
        mask = np.array([each == kind for each in kinds])
        means = {name: float(each[mask].mean()) for name, each in figures.items()}
        result.append({"runs": kind, "rows": int(mask.sum()), **means})
    return result


def draw(path: Path, rows: Rows, columns: dict[str, Vector]) -> None:
    """Draw predicted against measured seconds of ours, a roofline and six operations, with our errors below."""
    with picture(path, 7, 9) as figure:
        above, below = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
        for name, marker, colour in (("6ND", "x", "#bbb"), ("roofline", "+", "#e0a030")):
            predicted = rows.measured * np.exp(columns[name])
            above.plot(rows.measured, predicted, marker, color=colour, markersize=3, label=name)
        sources, held = np.array([source_of(row) for row in rows.rows]), columns["without hidden size"]
        for source in dict.fromkeys(sources):
            mask = sources == source
            measured, style = rows.measured[mask], {"markersize": 3, "alpha": 0.6}
            above.plot(measured, measured * np.exp(held[mask]), "o", label=source, **style)
            below.plot(measured, 100 * np.expm1(held[mask]), "o", **style)
        line = np.array([rows.measured.min() / 2, rows.measured.max() * 2])
        above.plot(line, line, "k-", linewidth=0.8)
        below.axhline(0, color="k", linewidth=0.8)
        above.set(xscale="log", yscale="log", ylabel="predicted, s a step; hidden size held out")
        below.set(xlabel="measured, s a step", ylabel="error, %", ylim=(-40, 40))
        above.legend(fontsize="small")


def measure(*files: Path, intervals: bool = False) -> dict[str, Any]:
    """Fit, cross-validate by group, compare and draw."""
    rows = Rows([row for file in files for row in read_rows(file)])
    fitted = fit(rows)
    slopes = jacobian(rows, fitted)
    columns = {
        "shipped": rows.shipped_errors,
        "without hidden size": hold_out(rows, fitted, slopes, size_folds(rows)),
        "without source": hold_out(rows, fitted, slopes, source_of),
        "roofline": np.log([roofline(run) for run in rows.runs] / rows.measured),
        "6ND": np.log([six_operations(run) for run in rows.runs] / rows.measured),
    }
    if intervals:
        write_intervals(rows, columns["without hidden size"], columns["without source"])
    draw(HERE.parent / "docs" / "planner-accuracy.svg", rows, columns)
    return {
        "constants": dict(zip(CONSTANTS, map(float, fitted), strict=True)),
        "by_group": table(rows, columns),
    }


if __name__ == "__main__":
    benchmark(measure, __doc__)
