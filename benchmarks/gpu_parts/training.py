"""Whole training runs on one GPU by the package's own command: MFU of wall time, the curve, a checkpoint's stall.

    first steps     350M in fp32 without dropout on the GPU and on the CPU: losses equal to 1e-4
    350m, 1.3b      recipes/dense-350m and dense-1.3b in bf16 on one GPU, with a smaller batch and a checkpoint every 10
                    steps: loss, tokens a second, MFU of the GPU's peak, the stall of a checkpoint, the prediction

The pipeline engine runs them, so no DeepSpeed is needed. Tokens are those of a folder that
``mtnlg-data run`` made and ``--pack`` copied, or random ones.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mtnlg_parallel
from mtnlg_parallel.launch.preflight import forecast
from mtnlg_parallel.record.metrics import read_steps
from training_engine import make_data

from .clock import Sampler, begin, is_left_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.recipe import Recipe
    from mtnlg_parallel.record.metrics import Step

    from .results import Results

RECIPES = Path(__file__).parents[2] / "recipes"
WITHOUT_KERNELS = ["train.kernels=false"] * is_left_out("norm")
ONE_GPU = ("layout.dp=1", 'train.schedule="zero-bubble"', "train.validation_every=0", "train.keep=1", "train.warmup=8")
TINY = ("model.layers=2", "model.hidden=64", "model.heads=4", "model.sequence=64", "train.kernels=false")
EVERY = 10
TOLERANCE = 1e-4


def train(name: str, settings: Sequence[str], data: Path, folder: Path, device: str) -> tuple[Recipe, list[Step]]:
    """Train, and return the steps. Nothing of the run stays: a checkpoint of the 1.3B has 18 GB."""
    recipe = mtnlg_parallel.load_recipe(RECIPES / name, (*ONE_GPU, *WITHOUT_KERNELS, *settings))
    options = mtnlg_parallel.RunOptions(device="cpu" if device == "cpu" else "auto")
    mtnlg_parallel.train(recipe, data, folder, options=options, force=True, max_restarts=0)
    steps = list(read_steps(folder))
    shutil.rmtree(folder)
    return recipe, steps


def first_steps(results: Results, data: Path, folder: Path, shape: Sequence[str]) -> None:
    """Compare the first steps with the CPU's."""
    settings = [
        *("train.batch=2", "train.micro_batch=1", "train.samples=8", "train.decay=8", "train.checkpoint_every=0"),
        *("model.dropout=0", "model.attention_dropout=0", 'train.precision="fp32"', "train.warmup=0"),
        *(shape or ["model.sequence=512"]),
    ]
    runs = {device: train("dense-350m", settings, data, folder / device, device)[1] for device in ("cpu", "gpu")}
    losses = {device: [step["loss"] for step in steps] for device, steps in runs.items()}
    pairs = zip(*losses.values(), strict=True)
    worst = max(abs(a - b) / a if a and b else float("inf") for a, b in pairs)
    verdict = "equal" if worst <= TOLERANCE else "NOT EQUAL"
    results.add("first steps", f"{verdict} to {worst:.1e}: {losses}", {"losses": losses, "relative_difference": worst})


def measured(results: Results, name: str, settings: Sequence[str], data: Path, folder: Path) -> None:
    """Train one size; the figures are medians over the steps after the first three."""
    settings = ["train.decay=1000", f"train.checkpoint_every={EVERY}", *settings]
    with Sampler() as sampler:
        recipe, steps = train(f"dense-{name}", settings, data, folder / name, "gpu")
    later = steps[3:]
    seconds = [step["seconds"] - step.get("checkpoint_seconds", 0.0) for step in later]
    # An update's wait is that of the step after the one that began the checkpoint.
    stalls = [
        (first.get("checkpoint_seconds", 0.0) + second.get("checkpoint_seconds", 0.0)) / statistics.median(seconds)
        for first, second in pairwise(later)
        if first["step"] % EVERY == 0
    ]
    expected = forecast(recipe, None, force=True)
    figures: dict[str, Any] = {
        "steps": len(steps),
        "step_seconds": statistics.median(seconds),
        "tokens_per_second": statistics.median(step["tokens_per_second"] for step in later),
        "model_tflops": statistics.median(step["model_tflops"] for step in later),
        "mfu_of_wall_time": statistics.median(step["mfu"] for step in later) if "mfu" in later[0] else None,
        "losses": [step["loss"] for step in steps],
        "stalls_of_a_step": stalls,
        "predicted_step_seconds": expected.seconds,
        "predicted_on": expected.cluster,
        "during": sampler.figures,
    }
    mfu = figures["mfu_of_wall_time"]
    line = (
        f"{figures['model_tflops']:.0f} TFLOP/s, {'no peak known' if mfu is None else f'MFU {mfu:.1%}'}, "
        f"step {figures['step_seconds']:.3f} s (predicted {expected.seconds:.3f}), "
        f"loss {steps[0]['loss']} to {steps[-1]['loss']}, a checkpoint's stall {max(stalls, default=0):.1%} of a step"
    )
    results.add(name, line, figures)


def main() -> None:
    """Measure."""
    tiny, results = begin(__doc__, "training")
    shape = TINY if tiny else ()
    given = os.environ.get("MTNLG_GPU_TOKENS")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = Path(given) if given else folder / "data"
        if not given:
            make_data(data, 51200, 1 << 23)
        if not results.has("first steps"):
            with results.attempt("first steps"):
                first_steps(results, data, folder, shape)
        small = ["train.batch=4", "train.micro_batch=2", 'train.precision="bf16"', f"train.samples={4 * 14}", *shape]
        if not results.has("350m"):
            settings = small if tiny else ["train.batch=64", "train.micro_batch=16", f"train.samples={64 * 50}"]
            with results.attempt("350m"):
                measured(results, "350m", settings, data, folder)
        if not tiny and not results.has("1.3b"):
            settings = ["train.batch=64", "train.micro_batch=8", f"train.samples={64 * 25}"]
            with results.attempt("1.3b"):
                measured(results, "1.3b", [*settings, "train.ramp={start=64, increment=64, samples=64}"], data, folder)


if __name__ == "__main__":
    main()
