"""How the quickstart learns in bf16 and in 8-bit products, beside fp32: the same weights, samples and steps.

On a CPU 8-bit factors are multiplied in fp32, where their products are exact: its losses are those of a GPU within the
rounding of sums, its seconds say nothing. Needs the tokens of a quickstart (``nox -s quickstart``).

    python benchmarks/precision.py --data runs/quickstart/data [--steps 508]
"""

from __future__ import annotations

from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mtnlg_parallel
from mtnlg_parallel.record.metrics import read_steps
from record import run

QUICKSTART = Path(__file__).parents[1] / "recipes" / "quickstart"
WINDOW = 20  # steps of which the mean loss is compared: single steps are of other samples each


def train(precision: str, data: Path, steps: int, out: Path) -> list[float]:
    """Train in one process, ``dropout`` and all else as the quickstart; returns mean losses of consecutive windows."""
    changes = [f'train.precision="{precision}"', f'train.samples="{steps} steps"', "train.checkpoint_every=0"]
    changes += ['train.engine="pipeline"', 'train.schedule="zero-bubble"', "layout.tp=1", "layout.pp=1"]
    mtnlg_parallel.train(mtnlg_parallel.load_recipe(QUICKSTART, changes), data, out)
    losses = [step["loss"] or nan for step in read_steps(out)]
    return [sum(losses[first : first + WINDOW]) / WINDOW for first in range(0, len(losses) - WINDOW + 1, WINDOW)]


def measure(data: Path = Path("runs/quickstart/data"), steps: int = 508) -> dict[str, Any]:
    """Train in three precisions and compare the losses."""
    with TemporaryDirectory() as folder:
        means = {each: train(each, data, steps, Path(folder, each)) for each in ("fp32", "bf16", "fp8")}
    difference = {
        name: max(abs(ours / bf16 - 1) for ours, bf16 in zip(means[name], means["bf16"], strict=True))
        for name in ("fp32", "fp8")
    }
    final = {name: losses[-1] for name, losses in means.items()}
    result = {"steps": steps, "window": WINDOW, "final_loss": final, "largest_difference_from_bf16": difference}
    return {**result, "mean_losses": means}


if __name__ == "__main__":
    run(measure, __doc__)
