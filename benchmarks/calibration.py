"""What `mtnlg-parallel calibrate` is worth: the quickstarts' step times predicted before and after, and measured.

    python benchmarks/calibration.py [--data runs/quickstart/data] [--steps 24] [--rounds 3] [--out FILE]

Before: the machine as ``train`` takes it, its cores divided among the ranks at a stated rate. After: the cluster that
``calibrate`` has just measured with as many ranks. In every round, calibration and steps follow each other, so that
both see the same other work on the machine; the step time is the median over full batches but the first.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel"]
# ///

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from mtnlg_parallel.launch.preflight import forecast
from mtnlg_parallel.recipe import load_recipe
from mtnlg_parallel.record.metrics import read_steps, training_seconds
from record import conditions, option_parser, spread, write_result

ROOT = Path(__file__).parents[1]
RECIPES = ("quickstart", "quickstart-llama")
COMMAND = str(Path(sys.executable).with_name("mtnlg-parallel"))


def run(*words: object) -> None:
    """Run mtnlg-parallel, and show what it says only if it fails."""
    done = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def measure(name: str, data: Path, steps: int, folder: Path) -> dict[str, float]:
    """Return seconds of a full step of a recipe: measured, and predicted before and after calibration."""
    recipe = load_recipe(ROOT / "recipes" / name)
    cluster = folder / "here.toml"
    run("calibrate", "--ranks", recipe.layout.world, cluster)
    batch = recipe.train.batch
    short = {"ramp": f"{{start={batch},increment=1,samples=1}}", "samples": batch * steps, "validation_every": 0}
    changes = [word for key, value in short.items() for word in ("--set", f"train.{key}={value}")]
    run("train", ROOT / "recipes" / name, "--data", data, "--out", folder / name, "--max-restarts", 0, *changes)
    seconds = [training_seconds(step) for step in read_steps(folder / name)][1:]
    return {
        "measured": statistics.median(seconds),
        "before": forecast(recipe, None, force=True).seconds,
        "after": forecast(recipe, str(cluster), force=True).seconds,
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "quickstart" / "data", help="tokens to train on")
    parser.add_argument("--steps", type=int, default=24, help="steps of a round")
    options = parser.parse_args()
    result = conditions("mtnlg-parallel", "torch") | {"steps": options.steps}
    for name in RECIPES:
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(measure(name, options.data, options.steps, Path(folder)))
        seconds = {key: [each[key] for each in rounds] for key in rounds[0]}
        errors = {
            key: spread([100 * (each[key] / each["measured"] - 1) for each in rounds], 1) for key in ("before", "after")
        }
        result[name] = {"seconds": {key: spread(each, 3) for key, each in seconds.items()}, "error_percent": errors}
    write_result(result, options.out)


if __name__ == "__main__":
    main()
