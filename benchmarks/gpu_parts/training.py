"""Training on one GPU by the package's own command, without checkpoints: MFU of wall time, loss, the prediction.

recipes/dense-350m with a smaller batch, and six layers of Llama 2 7B in bf16 and in fp8. The pipeline engine runs them,
so no DeepSpeed is needed. Tokens are random.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mtnlg_parallel
from mtnlg_parallel.launch.preflight import forecast
from mtnlg_parallel.record.metrics import read_steps
from training_engine import make_data

from .clock import Sampler
from .results import WORK

if TYPE_CHECKING:
    from mtnlg_parallel.recipe import Recipe

    from .results import Results

RECIPES = Path(__file__).parents[2] / "recipes"
SETTINGS = (
    'train.samples="14 steps"',
    *("layout.dp=1", "train.validation_every=0", "train.checkpoint_every=0", "train.warmup=8", "train.decay=1000"),
)
SEVEN_B = (
    *("model.layers=6", "model.hidden=4096", "model.heads=32", "model.kv_heads=32", "model.ffn=11008"),
    *("model.sequence=4096", "model.vocabulary=51200", "train.batch=8", "train.micro_batch=2"),
)
CASES = {
    "350m": ("dense-350m", ('train.schedule="zero-bubble"', "train.batch=64", "train.micro_batch=16")),
    "7b, 6 layers": ("llama-1b", SEVEN_B),
    "7b, 6 layers, fp8": ("llama-1b", (*SEVEN_B, 'train.precision="fp8"')),
}
"""Recipe, and what differs from it."""
TINY = (
    *("model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=4", "model.ffn=128", "model.sequence=64"),
    *("train.kernels=false", "train.batch=4", "train.micro_batch=2"),
)


def recipe_of(case: str, tiny: bool) -> Recipe:
    """The recipe that a case trains."""
    name, settings = CASES[case]
    return mtnlg_parallel.load_recipe(RECIPES / name, (*SETTINGS, *settings, *(TINY if tiny else ())))


def measured(recipe: Recipe, data: Path, folder: Path, tiny: bool) -> tuple[str, dict[str, Any]]:
    """Train; the figures are medians over the steps after the first three."""
    options = mtnlg_parallel.RunOptions(device="cpu" if tiny else "auto")
    with Sampler() as sampler:
        mtnlg_parallel.train(recipe, data, folder, options=options, force=True, max_restarts=0)
    steps = list(read_steps(folder))
    later, expected = steps[3:], forecast(recipe, None, force=True)
    figures: dict[str, Any] = {
        "steps": len(steps),
        "step_seconds": statistics.median(step["seconds"] for step in later),
        "tokens_per_second": statistics.median(step["tokens_per_second"] for step in later),
        "model_tflops": statistics.median(step["model_tflops"] for step in later),
        "mfu_of_wall_time": statistics.median(step["mfu"] for step in later) if "mfu" in later[0] else None,
        "losses": [step["loss"] for step in steps],
        "peak_bytes": max(step.get("memory_peak", 0) for step in steps),
        "predicted_bytes": expected.bytes,
        "predicted_step_seconds": expected.seconds,
        "predicted_on": expected.cluster,
        "during": sampler.figures,
    }
    mfu, predicted = figures["mfu_of_wall_time"], "nothing" if expected.seconds is None else f"{expected.seconds:.3f}"
    line = (
        f"{figures['model_tflops']:.0f} TFLOP/s, {'no peak known' if mfu is None else f'MFU {mfu:.1%}'}, "
        f"step {figures['step_seconds']:.3f} s (predicted {predicted}), "
        f"{figures['peak_bytes'] / 1e9:.1f} GB (predicted {expected.bytes / 1e9:.1f}), "
        f"loss {steps[0]['loss']} to {steps[-1]['loss']}"
    )
    return line, figures


def main(tiny: bool, results: Results) -> None:
    """Measure."""
    for key in CASES:
        if results.has(key):
            continue
        with results.attempt(key), tempfile.TemporaryDirectory(dir=WORK) as temporary:
            folder = Path(temporary)
            make_data(folder / "data", 51200, 1 << 22)
            results.add(key, *measured(recipe_of(key, tiny), folder / "data", folder / "run", tiny))
