# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "scipy>=1.13", "matplotlib>=3.9"]
# ///
"""Is the planner right? Fits its few constants on measured step times, and checks it where nothing was fitted.

    python benchmarks/planner_fit.py FOLDER          FOLDER holds dgx_a100_1_node.csv and dgx_a100_many_nodes.csv

1. The constants of clusters/dgx-a100.toml that are fitted, on all rows, by robust least squares on log errors.
2. Five-fold cross-validation: every row predicted with constants fitted on the four fifths that do not hold it.
3. Selene's one constant, the share of its fabric, so that MT-NLG's step on 280 nodes is met; then 350 and 420 nodes.
4. Published runs that nothing was fitted on (Korthikanti et al. 2022; Narayanan et al. 2021).

Writes benchmarks/results/<date>-planner-accuracy.json and .csv (every error, signed, by file and row) and
docs/planner-accuracy.svg. The rows themselves stay where they are.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from scipy.optimize import brentq, least_squares

from mtnlg_model.config import ModelConfig, preset
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner import step
from mtnlg_parallel.planner.cluster import Cluster, load_cluster, load_software
from mtnlg_parallel.planner.measured import PUBLISHED, Rows
from mtnlg_parallel.planner.report import hardware_flops
from mtnlg_parallel.planner.run import Run
from record import today

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

HERE: Final = Path(__file__).parent
FILES: Final = ("dgx_a100_1_node.csv", "dgx_a100_many_nodes.csv")
FOLDS: Final = 5
SEED: Final = 7

FITTED: Final = {  # the constant, where it may lie, and where the search for it begins
    "memory": (0.6, 0.9, 0.8),
    "link_seconds": (1e-6, 25e-6, 15e-6),
    "launch_seconds": (15e-6, 45e-6, 29e-6),
    "socket_skew": (1.0, 1.5, 1.2),
}
SOFT: Final = 0.02
"""Log errors beyond this count in proportion, not squared: whole groups of rows are off for reasons of their own."""

WEIGHT: Final = 1.5
"""Of a row of many nodes, of which there are few, beside one of one node."""


class Row(NamedTuple):
    """A measured row: the file, its number there from 1, the run, and the seconds it took."""

    file: str
    number: int
    run: Run
    seconds: float


def read(folder: Path) -> list[Row]:
    """All rows of both files."""
    found = []
    for name in FILES:
        rows = Rows(folder / name)
        measured = rows.measured()
        assert measured, name  # noqa: S101  (these files have the column)
        found += [Row(name, n, run, took) for n, (run, took) in enumerate(zip(rows.runs, measured, strict=True), 1)]
    return found


def with_constants(cluster: Cluster, **constants: float) -> Cluster:
    """The cluster with other measured constants."""
    step.predict.cache_clear()
    return cluster.model_copy(update={"measured": cluster.measured.model_copy(update=constants)})


def errors(rows: Sequence[Row], cluster: Cluster) -> NDArray[np.float64]:
    """Signed relative error of each prediction."""
    software = load_software("megatron-deepspeed")
    return np.array([step.predict(row.run, cluster, software).seconds / row.seconds - 1 for row in rows])


def fit(rows: Sequence[Row], cluster: Cluster) -> Cluster:
    """The cluster with the constants that suit these rows best."""
    low, high, start = (np.array(values) for values in zip(*FITTED.values(), strict=True))
    weights = np.array([WEIGHT if row.file == FILES[1] else 1.0 for row in rows])

    def with_(scaled: NDArray[np.float64]) -> Cluster:
        return with_constants(cluster, **dict(zip(FITTED, map(float, scaled * start), strict=True)))

    def residuals(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(weights * np.log1p(errors(rows, with_(scaled))), dtype=np.float64)

    bounds = (low / start, high / start)
    found = least_squares(residuals, np.ones(len(start)), bounds=bounds, loss="soft_l1", f_scale=SOFT, diff_step=2e-3)
    return with_(found.x)


def cross_validate(rows: Sequence[Row], cluster: Cluster) -> NDArray[np.float64]:
    """Each row's error with constants fitted without it; folds drawn once, each file spread over all of them."""
    draw, fold = np.random.default_rng(SEED), np.empty(len(rows), dtype=int)
    for name in FILES:
        places = np.array([place for place, row in enumerate(rows) if row.file == name])
        fold[draw.permutation(places)] = np.arange(len(places)) % FOLDS
    found = np.empty(len(rows))
    for number in range(FOLDS):
        held_out = [row for row, f in zip(rows, fold, strict=True) if f == number]
        others = [row for row, f in zip(rows, fold, strict=True) if f != number]
        found[fold == number] = errors(held_out, fit(others, cluster))
        print(f"fold {number + 1} of {FOLDS} done", file=sys.stderr)
    return found


def paper(cluster: Cluster) -> tuple[Cluster, dict[str, Any]]:
    """Selene with its share of the fabric set on 280 nodes alone, and all three of the paper's points."""
    software = load_software(cluster.software)

    def run(nodes: int) -> Run:
        return Run(preset("mt-nlg-530b"), Layout(tp=8, pp=35, dp=nodes * 8 // 280), batch=1920)

    def excess(network: float) -> float:
        seconds = step.predict(run(280), with_constants(cluster, network=network), software).seconds
        return float(seconds - PUBLISHED[280][0])

    selene = with_constants(cluster, network=float(brentq(excess, 0.05, 1.0, xtol=1e-6)))
    points = {}
    for nodes, (seconds, _) in PUBLISHED.items():
        predicted = step.predict(run(nodes), selene, software).seconds
        points[str(nodes)] = {"predicted": predicted, "published": seconds, "error": predicted / seconds - 1}
    return selene, points


def _model(layers: int, hidden: int, heads: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=51200)


KORTHIKANTI: Final = (  # table 5: model, layers, hidden, heads, pp, batch, micro-batch, interleave, full, present work
    ("22B", 48, 6144, 64, 1, 4, 4, 1, 1.42, 1.10),
    ("175B", 96, 12288, 96, 8, 64, 1, 3, 18.13, 13.75),
    ("530B", 105, 20480, 128, 35, 280, 1, 3, 49.05, 37.83),
    ("1T", 128, 25600, 160, 64, 512, 1, 1, 94.42, 71.49),
)
NARAYANAN: Final = (  # table 1: layers, hidden, heads, tp, pp, GPUs, batch, TFLOP/s a GPU
    (24, 2304, 24, 1, 1, 32, 512, 137),
    (30, 3072, 32, 2, 1, 64, 512, 138),
    (36, 4096, 32, 4, 1, 128, 512, 142),
    (40, 6144, 48, 8, 1, 256, 1024, 135),
    (48, 8192, 64, 8, 2, 512, 1536, 138),
    (60, 10240, 80, 8, 4, 1024, 1792, 140),
    (80, 12288, 96, 8, 8, 1536, 2304, 148),
    (96, 16384, 128, 8, 16, 1920, 2160, 155),
    (105, 20480, 128, 8, 35, 2520, 2520, 163),
    (128, 25600, 160, 8, 64, 3072, 3072, 163),
)


def published(selene: Cluster) -> Iterator[dict[str, Any]]:
    """Runs on Selene that nothing was fitted on: seconds of a step, predicted and published."""
    program = load_software("megatron-lm")
    for name, layers, hidden, heads, pp, batch, micro, v, full, present in KORTHIKANTI:
        model, layout = _model(layers, hidden, heads), Layout(tp=8, pp=pp, dp=1)
        run = Run(model, layout, batch, micro, interleave=v, zero=0)
        both = run._replace(recompute="selective", sequence_parallel=True)
        for kind, one, took in (("full recomputation", run, full), ("selective, sequence parallel", both, present)):
            yield _compared(f"Korthikanti 2022 {name}, {kind}", step.predict(one, selene, program).seconds, took)
    program = load_software("megatron-lm-2021")
    for layers, hidden, heads, tp, pp, gpus, batch, rate in NARAYANAN:
        model, layout = _model(layers, hidden, heads), Layout(tp=tp, pp=pp, dp=gpus // (tp * pp))
        # Neither micro-batch nor chunks are published: the quickest of those the batch allows.
        v = next((v for v in (2, 3, 4, 5) if pp > 1 and layers % (pp * v) == 0), 1)
        runs = [Run(model, layout, batch, b, interleave=v, zero=0, precision="fp16") for b in (1, 2, 4, 8, 16)]
        allowed = [r for r in runs if batch % (layout.dp * r.micro_batch) == 0 and r.micro_batches % pp == 0]
        best = min(allowed, key=lambda r: step.predict(r, selene, program).seconds)
        took = hardware_flops(best) / gpus / rate / 1e12
        name = f"Narayanan 2021 {model.parameters / 1e9:.1f}B, {gpus} GPUs, micro-batch {best.micro_batch}"
        yield _compared(name, step.predict(best, selene, program).seconds, took)


def _compared(name: str, predicted: float, took: float) -> dict[str, Any]:
    return {"run": name, "predicted": predicted, "published": took, "error": predicted / took - 1}


def summary(found: NDArray[np.float64], rows: Sequence[Row]) -> dict[str, Any]:
    """Mean absolute error, mean error and the largest, by file."""
    told = {}
    for name in FILES:
        part = found[[row.file == name for row in rows]]
        largest = float(part[np.argmax(np.abs(part))])
        told[name] = {"rows": len(part), "mean_absolute": float(np.abs(part).mean()), "mean": float(part.mean())}
        told[name]["largest"] = largest
    return told


def draw(path: Path, rows: Sequence[Row], found: NDArray[np.float64], others: Sequence[dict[str, Any]]) -> None:
    """Predicted against measured, on logarithmic axes, with the errors below."""
    import matplotlib as mpl  # noqa: PLC0415  (slow, and the fit does without)

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "planner"
    from matplotlib import pyplot as plt  # noqa: PLC0415  (after use)

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 9), height_ratios=(3, 1), sharex=True)
    measured = np.array([row.seconds for row in rows])
    series = [(name, np.array([row.file == name for row in rows])) for name in FILES]
    labels = ("one node, cross-validated", "many nodes, cross-validated")
    for (_, mask), label, marker in zip(series, labels, "o^", strict=True):
        above.plot(measured[mask], (measured * (1 + found))[mask], marker, markersize=4, alpha=0.6, label=label)
        below.plot(measured[mask], 100 * found[mask], marker, markersize=3, alpha=0.6)
    took = np.array([one["published"] for one in others])
    error = np.array([one["error"] for one in others])
    above.plot(took, took * (1 + error), "s", markersize=4, label="published runs, not fitted")
    below.plot(took, 100 * error, "s", markersize=3)
    line = np.array([0.05, 150.0])
    above.plot(line, line, "k-", linewidth=0.8)
    below.axhline(0, color="k", linewidth=0.8)
    above.set(xscale="log", yscale="log", ylabel="predicted, s a step")
    below.set(xlabel="measured, s a step", ylabel="error, %", ylim=(-30, 30))
    above.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Fit, validate, write."""
    if len(sys.argv) != 2:
        sys.exit("usage: planner_fit.py FOLDER")
    begin = time.perf_counter()
    rows, cluster = read(Path(sys.argv[1])), load_cluster("dgx-a100")
    fitted = fit(rows, cluster)
    constants = {name: float(f"{getattr(fitted.measured, name):.4g}") for name in FITTED}
    fitted = with_constants(cluster, **constants)
    inside, outside = errors(rows, fitted), cross_validate(rows, cluster)
    selene = load_cluster("selene")
    selene, points = paper(selene.model_copy(update={"measured": fitted.measured}))
    others = list(published(selene))
    result = {
        "date": today(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("mtnlg-parallel", "numpy", "scipy")},
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "seconds": round(time.perf_counter() - begin, 1),
        "constants": constants,
        "selene_network": selene.measured.network,
        "cross_validated": summary(outside, rows),
        "fitted": summary(inside, rows),
        "paper": points,
        "published": others,
        "published_mean_absolute": float(np.mean([abs(one["error"]) for one in others])),
    }
    target = HERE / "results" / f"{today()}-planner-accuracy.json"
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    with target.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "row", "error, cross-validated", "error, fitted on all"])
        for row, out, inn in zip(rows, outside, inside, strict=True):
            writer.writerow([row.file, row.number, f"{out:+.4f}", f"{inn:+.4f}"])
        writer.writerows(["MT-NLG 530B (paper)", nodes, f"{one['error']:+.4f}", ""] for nodes, one in points.items())
        writer.writerows([one["run"], "", f"{one['error']:+.4f}", ""] for one in others)
    unseen = [*others, *(point for nodes, point in points.items() if nodes != "280")]
    draw(HERE.parent / "docs" / "planner-accuracy.svg", rows, outside, unseen)
    print(
        json.dumps(
            {name: result[name] for name in ("constants", "selene_network", "cross_validated", "fitted")}, indent=1
        )
    )
    print(json.dumps([result["paper"], result["published_mean_absolute"]], indent=1))


if __name__ == "__main__":
    main()
