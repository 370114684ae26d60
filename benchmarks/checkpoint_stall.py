"""How long a checkpoint holds up training, as a share of a step: the quickstart's decoder, a checkpoint every 10 steps.

The run is the command's own, over the recipe's four ranks on random tokens. A stall is ``checkpoint_seconds`` of
metrics.jsonl: beginning a checkpoint, and the wait of the next update for its copy.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import mtnlg_parallel
from mtnlg_parallel.record.metrics import read_steps, training_seconds
from record import run, spread
from training_engine import make_data

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart"
EVERY = 10
STEPS = 200
SETTINGS = (
    "train.ramp={start=12, increment=12, samples=12}",
    f"train.samples={12 * STEPS}",
    "train.validation_every=0",
    f"train.checkpoint_every={EVERY}",
)


def train_once(data: Path, out: Path) -> dict[str, float]:
    """Train once; the medians over checkpoints and steps."""
    mtnlg_parallel.train(mtnlg_parallel.load_recipe(RECIPE, SETTINGS), data, out)
    steps = list(read_steps(out))[2 * EVERY :]
    seconds = statistics.median(map(training_seconds, steps))
    # An update's wait is that of the step after the one that began the checkpoint.
    stalls = [
        first.get("checkpoint_seconds", 0.0) + second.get("checkpoint_seconds", 0.0)
        for first, second in pairwise(steps)
        if first["step"] % EVERY == 0
    ]
    return {
        "step_seconds": seconds,
        "stall_of_a_step": statistics.median(stalls) / seconds,
        "longest_stall_of_a_step": max(stalls) / seconds,
    }


def measure(rounds: int = 3) -> dict[str, Any]:
    """Train so many times."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_data(folder / "data", vocabulary=4096, tokens=1 << 20)
        runs = [train_once(folder / "data", folder / f"out-{number}") for number in range(rounds)]
    disk = {key: spread([figures[key] for figures in runs]) for key in runs[0]}
    return {"recipe": "quickstart", "checkpoint_every": EVERY, "steps": STEPS, "disk": disk, "rounds": rounds}


if __name__ == "__main__":
    run(measure, __doc__)
