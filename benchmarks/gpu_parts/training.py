"""recipes/dense-350m trained in bf16 on one GPU by the package's own command: MFU of wall time, loss, the prediction.

With a smaller batch and no checkpoint. The pipeline engine runs it, so no DeepSpeed is needed. Tokens are those of a
folder that ``mtnlg-data run`` made and ``--pack`` copied, or random ones.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mtnlg_parallel
from mtnlg_parallel.launch.preflight import forecast
from mtnlg_parallel.record.metrics import read_steps
from training_engine import make_data

from .clock import Sampler, is_left_out
from .results import WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import Results

RECIPE = Path(__file__).parents[2] / "recipes" / "dense-350m"
SETTINGS = (
    *("layout.dp=1", 'train.schedule="zero-bubble"', "train.validation_every=0", "train.checkpoint_every=0"),
    *("train.warmup=8", "train.decay=1000", "train.batch=64", "train.micro_batch=16", f"train.samples={64 * 30}"),
    *["train.kernels=false"] * is_left_out("norm"),
)
TINY = (
    *("model.layers=2", "model.hidden=64", "model.heads=4", "model.sequence=64", "train.kernels=false"),
    *("train.batch=4", "train.micro_batch=2", f"train.samples={4 * 14}"),
)


def measured(settings: Sequence[str], data: Path, folder: Path, tiny: bool) -> tuple[str, dict[str, Any]]:
    """Train; the figures are medians over the steps after the first three."""
    recipe = mtnlg_parallel.load_recipe(RECIPE, settings)
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
        "predicted_step_seconds": expected.seconds,
        "predicted_on": expected.cluster,
        "during": sampler.figures,
    }
    mfu = figures["mfu_of_wall_time"]
    line = (
        f"{figures['model_tflops']:.0f} TFLOP/s, {'no peak known' if mfu is None else f'MFU {mfu:.1%}'}, "
        f"step {figures['step_seconds']:.3f} s (predicted {expected.seconds:.3f}), "
        f"loss {steps[0]['loss']} to {steps[-1]['loss']}"
    )
    return line, figures


def main(tiny: bool, results: Results) -> None:
    """Measure."""
    given = os.environ.get("MTNLG_GPU_TOKENS")
    if not results.has("350m"):
        with results.attempt("350m"), tempfile.TemporaryDirectory(dir=WORK) as name:
            folder = Path(name)
            data = Path(given) if given else folder / "data"
            if not given:
                make_data(data, 51200, 1 << 22)
            settings = (*SETTINGS, *(TINY if tiny else ()))
            results.add("350m", *measured(settings, data, folder / "run", tiny))
