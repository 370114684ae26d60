# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "scipy>=1.13", "matplotlib>=3.9"]
# ///
"""Accuracy of the planner: fit its constants on measured step times, and check it on runs that were not fitted.

    python benchmarks/planner_fit.py FOLDER          FOLDER holds dgx_a100_1_node.csv and dgx_a100_many_nodes.csv

1. Fit the free constants of clusters/dgx-a100.toml on all rows, by robust least squares on log errors.
2. Five-fold cross-validation: predict every row with constants fitted on the four fifths without it.
3. Set Selene's one constant, its fabric's share, on MT-NLG's step on 280 nodes; predict 350 and 420 nodes.
4. Predict published runs that were not fitted (Korthikanti et al. 2022; Narayanan et al. 2021).

Writes benchmarks/results/<date>-planner-accuracy.json and .csv (every error, signed, by file and row) and
docs/planner-accuracy.svg. The rows themselves are not copied.
"""

from __future__ import annotations

import argparse
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
from mtnlg_parallel.planner.measured import PUBLISHED, MeasuredRows
from mtnlg_parallel.planner.report import hardware_flops
from mtnlg_parallel.planner.run import Run
from record import default_out, today

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

HERE: Final = Path(__file__).parent
FILES: Final = ("dgx_a100_1_node.csv", "dgx_a100_many_nodes.csv")
FOLDS: Final = 5
SEED: Final = 7

FITTED: Final = {  # constant: lower bound, upper bound, start
    "memory": (0.6, 0.9, 0.8),
    "link_seconds": (1e-6, 25e-6, 15e-6),
    "launch_seconds": (15e-6, 45e-6, 29e-6),
    "socket_skew": (1.0, 1.5, 1.2),
}
SOFT: Final = 0.02
"""Log errors beyond this count linearly, not squared: whole groups of rows deviate for reasons of their own."""

WEIGHT: Final = 1.5
"""Weight of a row of many nodes, which are few, against one of one node."""


class Row(NamedTuple):
    """A measured row: file, row number from 1, run, and measured seconds."""

    file: str
    number: int
    run: Run
    seconds: float


def read_rows(folder: Path) -> list[Row]:
    """Return all rows of both files."""
    result = []
    for name in FILES:
        rows = MeasuredRows(folder / name)
        measured = rows.measured()
        assert measured, name  # noqa: S101  (these files have the column)
        pairs = zip(rows.runs, measured, strict=True)
        result += [Row(name, number, run, seconds) for number, (run, seconds) in enumerate(pairs, 1)]
    return result


def with_constants(cluster: Cluster, **constants: float) -> Cluster:
    """Return the cluster with other measured constants."""
    step.predict.cache_clear()
    return cluster.model_copy(update={"measured": cluster.measured.model_copy(update=constants)})


def errors(rows: Sequence[Row], cluster: Cluster) -> NDArray[np.float64]:
    """Return the signed relative error of each prediction."""
    software = load_software("megatron-deepspeed")
    return np.array([step.predict(row.run, cluster, software).seconds / row.seconds - 1 for row in rows])


def fit(rows: Sequence[Row], cluster: Cluster) -> Cluster:
    """Return the cluster with the constants that fit these rows best."""
    low, high, start = (np.array(values) for values in zip(*FITTED.values(), strict=True))
    weights = np.array([WEIGHT if row.file == FILES[1] else 1.0 for row in rows])

    def cluster_at(scaled: NDArray[np.float64]) -> Cluster:
        return with_constants(cluster, **dict(zip(FITTED, map(float, scaled * start), strict=True)))

    def residuals(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(weights * np.log1p(errors(rows, cluster_at(scaled))), dtype=np.float64)

    bounds = (low / start, high / start)
    fitted = least_squares(residuals, np.ones(len(start)), bounds=bounds, loss="soft_l1", f_scale=SOFT, diff_step=2e-3)
    return cluster_at(fitted.x)


def cross_validate(rows: Sequence[Row], cluster: Cluster) -> NDArray[np.float64]:
    """Return each row's error with constants fitted without it; each file is spread evenly over the folds."""
    draw, fold = np.random.default_rng(SEED), np.empty(len(rows), dtype=int)
    for name in FILES:
        places = np.array([place for place, row in enumerate(rows) if row.file == name])
        fold[draw.permutation(places)] = np.arange(len(places)) % FOLDS
    result = np.empty(len(rows))
    for number in range(FOLDS):
        held_out = [row for row, f in zip(rows, fold, strict=True) if f == number]
        others = [row for row, f in zip(rows, fold, strict=True) if f != number]
        result[fold == number] = errors(held_out, fit(others, cluster))
        print(f"fold {number + 1} of {FOLDS} done", file=sys.stderr)
    return result


def predict_paper(cluster: Cluster) -> tuple[Cluster, dict[str, Any]]:
    """Return Selene with its fabric's share set on 280 nodes alone, and the predictions of the paper's three points."""
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


def predict_published(selene: Cluster) -> Iterator[dict[str, Any]]:
    """Yield predicted and published seconds of a step, of runs on Selene that were not fitted."""
    program = load_software("megatron-lm")
    for name, layers, hidden, heads, pp, batch, micro, v, full, present in KORTHIKANTI:
        model, layout = _model(layers, hidden, heads), Layout(tp=8, pp=pp, dp=1)
        run = Run(model, layout, batch, micro, interleave=v, zero=0)
        both = run._replace(recompute="selective", sequence_parallel=True)
        for kind, variant, seconds in (
            ("full recomputation", run, full),
            ("selective, sequence parallel", both, present),
        ):
            yield _compared(f"Korthikanti 2022 {name}, {kind}", step.predict(variant, selene, program).seconds, seconds)
    program = load_software("megatron-lm-2021")
    for layers, hidden, heads, tp, pp, gpus, batch, rate in NARAYANAN:
        model, layout = _model(layers, hidden, heads), Layout(tp=tp, pp=pp, dp=gpus // (tp * pp))
        # Neither micro-batch nor chunks are published: take the quickest that the batch allows.
        v = next((v for v in (2, 3, 4, 5) if pp > 1 and layers % (pp * v) == 0), 1)
        runs = [Run(model, layout, batch, b, interleave=v, zero=0, precision="fp16") for b in (1, 2, 4, 8, 16)]
        allowed = [r for r in runs if batch % (layout.dp * r.micro_batch) == 0 and r.micro_batches % pp == 0]
        best = min(allowed, key=lambda r: step.predict(r, selene, program).seconds)
        seconds = hardware_flops(best) / gpus / rate / 1e12
        name = f"Narayanan 2021 {model.parameters / 1e9:.1f}B, {gpus} GPUs, micro-batch {best.micro_batch}"
        yield _compared(name, step.predict(best, selene, program).seconds, seconds)


def _compared(name: str, predicted: float, seconds: float) -> dict[str, Any]:
    return {"run": name, "predicted": predicted, "published": seconds, "error": predicted / seconds - 1}


def summary(relative: NDArray[np.float64], rows: Sequence[Row]) -> dict[str, Any]:
    """Return mean absolute, mean and largest error by file."""
    result = {}
    for name in FILES:
        part = relative[[row.file == name for row in rows]]
        largest = float(part[np.argmax(np.abs(part))])
        result[name] = {"rows": len(part), "mean_absolute": float(np.abs(part).mean()), "mean": float(part.mean())}
        result[name]["largest"] = largest
    return result


def draw(path: Path, rows: Sequence[Row], relative: NDArray[np.float64], others: Sequence[dict[str, Any]]) -> None:
    """Draw predicted against measured seconds on logarithmic axes, with the errors below."""
    import matplotlib as mpl  # noqa: PLC0415  (slow, and the fit does without)

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "planner"
    from matplotlib import pyplot as plt  # noqa: PLC0415  (after use)

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 9), height_ratios=(3, 1), sharex=True)
    measured = np.array([row.seconds for row in rows])
    series = [(name, np.array([row.file == name for row in rows])) for name in FILES]
    labels = ("one node, cross-validated", "many nodes, cross-validated")
    for (_, mask), label, marker in zip(series, labels, "o^", strict=True):
        above.plot(measured[mask], (measured * (1 + relative))[mask], marker, markersize=4, alpha=0.6, label=label)
        below.plot(measured[mask], 100 * relative[mask], marker, markersize=3, alpha=0.6)
    seconds = np.array([each["published"] for each in others])
    error = np.array([each["error"] for each in others])
    above.plot(seconds, seconds * (1 + error), "s", markersize=4, label="published runs, not fitted")
    below.plot(seconds, 100 * error, "s", markersize=3)
    line = np.array([0.05, 150.0])
    above.plot(line, line, "k-", linewidth=0.8)
    below.axhline(0, color="k", linewidth=0.8)
    above.set(xscale="log", yscale="log", ylabel="predicted, s a step")
    below.set(xlabel="measured, s a step", ylabel="error, %", ylim=(-30, 30))
    above.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Fit, cross-validate, predict, and write the results and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds dgx_a100_1_node.csv and dgx_a100_many_nodes.csv")
    folder = parser.parse_args().folder
    begin = time.perf_counter()
    rows, cluster = read_rows(folder), load_cluster("dgx-a100")
    fitted = fit(rows, cluster)
    constants = {name: float(f"{getattr(fitted.measured, name):.4g}") for name in FITTED}
    fitted = with_constants(cluster, **constants)
    inside, outside = errors(rows, fitted), cross_validate(rows, cluster)
    selene = load_cluster("selene")
    selene, points = predict_paper(selene.model_copy(update={"measured": fitted.measured}))
    others = list(predict_published(selene))
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
        "published_mean_absolute": float(np.mean([abs(each["error"]) for each in others])),
    }
    target = default_out("planner-accuracy")
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    with target.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["file", "row", "error, cross-validated", "error, fitted on all"])
        for row, out, inn in zip(rows, outside, inside, strict=True):
            writer.writerow([row.file, row.number, f"{out:+.4f}", f"{inn:+.4f}"])
        writer.writerows(["MT-NLG 530B (paper)", nodes, f"{each['error']:+.4f}", ""] for nodes, each in points.items())
        writer.writerows([each["run"], "", f"{each['error']:+.4f}", ""] for each in others)
    unseen = [*others, *(point for nodes, point in points.items() if nodes != "280")]
    draw(HERE.parent / "docs" / "planner-accuracy.svg", rows, outside, unseen)
    shown = ("constants", "selene_network", "cross_validated", "fitted", "paper", "published_mean_absolute")
    print(json.dumps({name: result[name] for name in shown}, indent=1))


if __name__ == "__main__":
    main()
