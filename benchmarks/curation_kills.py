# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""Kill a curation at random steps, by kill -9 and power loss, until it completes: again and again, and compare bytes.

    python benchmarks/curation_kills.py [--kills 1000] [--seed 0] [--out FILE]

Each run is tests/crashing.py on the small corpus of tests/curations.py, with every step on: processes die at moments
before or after a sync, a rename or a removal, a power loss reverts what was not synced, and after each death every
manifest must match its files. The end must have the bytes of a run that nothing disturbed. A seed repeats its run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from record import run

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))


def measure(kills: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Run seed after seed from this one until there were as many kills; return differences."""
    import curations  # noqa: PLC0415  (of the tests)

    failures, kills_made = list[dict[str, Any]](), 0
    with tempfile.TemporaryDirectory() as folder:
        recipe, left = curations.undisturbed(Path(folder))
        for runs in count(1):
            number = seed + runs - 1
            out = Path(folder, str(number))
            words = [sys.executable, str(TESTS / "crashing.py"), str(recipe), str(out), str(number)]
            ended = subprocess.run(words, capture_output=True, text=True, check=False)
            kills_made += int(ended.stdout or 0)
            if ended.returncode or curations.left_by(out) != left:
                failures.append({"seed": number, "said": ended.stderr[-2000:]})
            print(f"seed {number}: {kills_made} deaths in all, {len(failures)} of {runs} runs differ", flush=True)
            if kills_made >= kills:
                return {"kills": kills_made, "runs": runs, "differ": len(failures), "failures": failures}
    raise AssertionError


if __name__ == "__main__":
    run(measure, __doc__)
