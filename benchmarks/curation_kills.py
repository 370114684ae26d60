# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""Kill a curation at random steps, by kill -9 and power loss, until it completes: again and again, and compare bytes.

    python benchmarks/curation_kills.py [--kills 1000] [--seed 0] [--out FILE]

Each run is tests/crashing.py on the small corpus of tests/curations.py, with every step on: processes die at moments
before or after a sync, a rename or a removal, a power loss reverts what was not synced, and after each death every
manifest must match its files. Meanwhile each process has one kind of trouble with its files (trouble.py): none, short
reads and writes with EINTR, ENOSPC from a drawn operation on, EIO at one, or a clock eleven days off.
The end must have the bytes of a run that nothing disturbed. A seed repeats its run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from record import run
from trouble import preload

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))


def measure(kills: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Run seed after seed from this one until there were as many kills; return differences."""
    import curations  # noqa: PLC0415  (of the tests)

    runs: dict[str, dict[str, int]] = {}
    failures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        recipe, left = curations.undisturbed(Path(folder))
        for number in count(seed):
            out = Path(folder, str(number))
            words = [sys.executable, str(TESTS / "crashing.py"), str(recipe), str(out), str(number)]
            ended = subprocess.run(words, capture_output=True, text=True, check=False)
            ends = runs[str(number)] = json.loads(ended.stdout or "{}")
            if ended.returncode or curations.left_by(out) != left:
                failures.append({"seed": number, "said": ended.stderr[-2000:]})
            done = sum(run.get("deaths", 0) for run in runs.values())
            print(f"seed {number}: {ends}; {done} deaths, {len(failures)} runs differ", flush=True)
            if done >= kills:
                return {
                    "kills": done,
                    "runs": len(runs),
                    "differ": len(failures),
                    "ends_by_seed": runs,
                    "failures": failures,
                }
    raise AssertionError


if __name__ == "__main__":
    if "LD_PRELOAD" not in os.environ:
        sys.exit(preload())
    run(measure, __doc__)
