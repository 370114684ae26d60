"""The paper's recipe, cut to four narrow layers, beside the plain loop: bf16, 1F1B, tensor 2 x pipeline 2, 100 steps.

    python benchmarks/paper_in_small.py runs/quickstart/data [--out FILE] [--chart FILE.svg]

Everything that recipes/mt-nlg-530b says of precision, schedule, recomputation, optimizer and kind of batch ramp stays;
width, vocabulary, lengths and learning rate are those of a model that a CPU can train, and dropout is 0, since no two
layouts draw the same masks. `mtnlg_parallel.train` runs it; the plain loop of `mtnlg_parallel.conformance` takes the
same samples in bf16 and in fp32, whose distance is what rounding alone does.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "matplotlib", "torch==2.13.0"]
# ///

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mtnlg_parallel import RunOptions, load_recipe, train
from mtnlg_parallel.conformance.reference import PlainLoop
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.training.samples import open_data
from record import picture
from record import run as benchmark

if TYPE_CHECKING:
    from mtnlg_parallel import Recipe

STEPS, BATCH = 100, 8
CUT: dict[str, dict[str, Any]] = {
    "model": {"layers": 4, "hidden": 64, "heads": 4, "sequence": 64, "init_std": 0.07, "vocabulary": 4096}
    | {"dropout": 0.0, "attention_dropout": 0.0},
    "layout": {"tp": 2, "pp": 2, "dp": 1},
    "train": {"batch": BATCH, "ramp.start": 2, "ramp.increment": 2, "ramp.samples": 120, "lr": 3e-3, "min_lr": 3e-4}
    | {"samples": 626, "warmup": 64, "decay": 4096, "checkpoint_every": 0, "validation_every": 0}
    | {"validation_samples": BATCH},
}


def measure(data: Path, chart: Path | None = None) -> dict[str, Any]:
    """Train three times and compare; ``chart`` is an SVG of the curves."""
    overrides = [f"{table}.{key}={value}" for table, keys in CUT.items() for key, value in keys.items()]
    recipe = load_recipe(Path(__file__).parents[1] / "recipes" / "mt-nlg-530b", overrides)
    with TemporaryDirectory() as out:
        train(recipe, data, Path(out), options=RunOptions(device="cpu"))
        steps = list(read_steps(Path(out)))
    runs: dict[str, list[Any]] = {"tensor 2 x pipeline 2": [(step["loss"], step["grad_norm"]) for step in steps]}
    runs |= {f"plain loop, {precision}": plain(recipe, data, precision) for precision in ("bf16", "fp32")}
    ours, rounded, exact = runs.values()
    if chart:
        draw(runs, chart)
    return {
        "changed": overrides,
        "steps": len(steps),
        "relative_difference_to_the_plain_loop_in_bf16": differences(ours, rounded),
        "of_the_plain_loop_in_bf16_to_fp32": differences(rounded, exact),
        "losses_and_norms": {name: [[round(x, 5) for x in pair] for pair in each] for name, each in runs.items()},
    }


def plain(recipe: Recipe, data: Path, precision: Literal["bf16", "fp32"]) -> list[Any]:
    """Loss and gradient norm of every step of the plain loop."""
    loop = PlainLoop(recipe, precision, stream=open_data(data, recipe).train)
    return [loop.step(before, batch, update=True) for before, batch in recipe.batch_size.steps(recipe.train.samples)]


def differences(run: list[Any], reference: list[Any]) -> dict[str, dict[str, float]]:
    """Relative differences of losses and norms: the median of the steps, and the largest."""
    found = np.abs(np.array(run) / np.array(reference) - 1)
    return {
        name: {"median": float(f"{np.median(column):.2g}"), "largest": float(f"{column.max():.2g}")}
        for name, column in zip(("loss", "grad_norm"), found.T, strict=True)
    }


def draw(runs: dict[str, list[Any]], path: Path) -> None:
    """Losses and norms of the runs over their steps."""
    with picture(path, 8, 3.2) as figure:
        names = ("loss, nats per token", "gradient norm")
        for n, (axes, name) in enumerate(zip(figure.subplots(1, 2), names, strict=True)):
            for (label, run), style in zip(runs.items(), ("-", "--", ":"), strict=True):
                axes.plot(range(1, len(run) + 1), [pair[n] for pair in run], style, label=label, linewidth=1.4)
            axes.set(xlabel="step", title=name)
        axes.legend(frameon=False)


if __name__ == "__main__":
    benchmark(measure, __doc__)
