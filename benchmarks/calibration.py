"""What `mtnlg-parallel calibrate` is worth: the quickstarts' step times predicted before and after, and measured.

    python benchmarks/calibration.py [--data runs/quickstart/data] [--steps 24] [--rounds 3] [--out FILE]

Before: the machine as ``train`` takes it, its cores divided among the ranks at a stated rate. After: the cluster that
``calibrate`` has just measured with as many ranks. The step time is the median over full batches but the first; beside
it stands what a step takes of the processors, CPU seconds of many steps less those of few, over the cores: no step of
an idle machine is shorter, and other work on the machine does not change it.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel"]
# ///

from __future__ import annotations

import os
import resource
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
FEW = 4
"""Steps of the run whose CPU seconds are those of starting."""
COMMAND = str(Path(sys.executable).with_name("mtnlg-parallel"))


def run(*words: object) -> float:
    """Run mtnlg-parallel, and show what it says only if it fails; return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(name: str, data: Path, steps: int, folder: Path) -> dict[str, float]:
    """Return seconds of a full step of a recipe: measured, and predicted before and after calibration."""
    recipe = load_recipe(ROOT / "recipes" / name)
    cluster = folder / "here.toml"
    run("calibrate", "--ranks", recipe.layout.world, cluster)
    batch = recipe.train.batch
    processor = {}
    for number in (FEW, steps):
        short = {"ramp": f"{{start={batch},increment=1,samples=1}}", "samples": batch * number, "validation_every": 0}
        changes = [word for key, value in short.items() for word in ("--set", f"train.{key}={value}")]
        out = folder / f"{name}-{number}"
        processor[number] = run(
            "train", ROOT / "recipes" / name, "--data", data, "--out", out, "--max-restarts", 0, *changes
        )
    seconds = [training_seconds(step) for step in read_steps(folder / f"{name}-{steps}")][1:]
    cores = len(os.sched_getaffinity(0))
    return {
        "measured": statistics.median(seconds),
        "processors": (processor[steps] - processor[FEW]) / (steps - FEW) / cores,
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
            f"{key} over {of}": spread([100 * (each[key] / each[of] - 1) for each in rounds], 1)
            for key in ("before", "after")
            for of in ("measured", "processors")
        }
        result[name] = {"seconds": {key: spread(each, 3) for key, each in seconds.items()}, "error_percent": errors}
    write_result(result, options.out)


if __name__ == "__main__":
    main()
