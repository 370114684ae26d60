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

from record import conditions, option_parser, write_result

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))


def main() -> int:
    """Print and write kills, seeds and differences; 1 where there is one."""
    import curations  # noqa: PLC0415  (of the tests)

    parser = option_parser(__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    options = parser.parse_args()
    about = conditions("mtnlg-data")
    runs: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        recipe, left = curations.undisturbed(Path(folder))
        for seed in count(options.seed):
            out = Path(folder, str(seed))
            words = [sys.executable, str(TESTS / "crashing.py"), str(recipe), str(out), str(seed)]
            ended = subprocess.run(words, capture_output=True, text=True, check=False)
            runs[str(seed)] = int(ended.stdout or 0)
            if ended.returncode or curations.left_by(out) != left:
                failures.append({"seed": seed, "said": ended.stderr[-2000:]})
            print(f"seed {seed}: {runs[str(seed)]} deaths; {sum(runs.values())} in all, {len(failures)} runs differ")
            if sum(runs.values()) >= options.kills:
                break
    result = {"kills": sum(runs.values()), "runs": len(runs), "differ": len(failures)}
    write_result({"conditions": about, **result, "deaths_by_seed": runs, "failures": failures}, options.out)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
