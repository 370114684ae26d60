"""``benchmarks/evaluation.py`` on this GPU: the paper's prompts on a 1.3B decoder in bf16, and lm-eval's hf backend.

Needs the tasks' rows and GPT-2's vocabulary: ``--rows`` and ``--gpt2`` of ``--pack``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from .clock import begin

SCRIPT: Final = Path(__file__).parents[1] / "evaluation.py"
CASES: Final = {
    "0 shots": ["--part", "whole", "--shots", "0"],
    "few shots": ["--part", "whole", "--shots", "few"],
    "fixed order": ["--part", "fixed_order"],
}
LINES: Final = {
    "whole": "{ratio:.2f} x hf, differences up to {largest_difference_nats:.1e} nats",
    "fixed_order": "{ratio:.2f} x the free order's time; {differ_fixed} of {requests} scores differ",
}
"""What is said of each part."""


def main() -> None:
    """Measure, or say why not."""
    tiny, results = begin(__doc__, "evaluation")
    rows, gpt2 = (os.environ.get(f"MTNLG_GPU_{name}") for name in ("ROWS", "GPT2"))
    lacking = [name for name in ("lm_eval", "datasets", "transformers") if find_spec(name) is None]
    if tiny or lacking or not (rows and gpt2):
        reason = "a trial" if tiny else f"needs {', '.join(lacking) or 'rows and gpt2, packed with --rows and --gpt2'}"
        results.add("hf", f"not run: {reason}", {"why_not": reason})
        return
    for key, words in CASES.items():
        if not results.has(key):
            with results.attempt(key):
                figures = measured([*words, "--data", rows, "--gpt2", gpt2])[key]
                results.add(key, LINES[words[1]].format(**figures), figures)


def measured(words: list[str]) -> dict[str, Any]:
    """Run the script, in a process that leaves the GPU's memory to the next."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        words = [*words, "--documents", "24", "--rounds", "3", "--out", str(out)]
        subprocess.run([sys.executable, str(SCRIPT), *words], check=True)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


if __name__ == "__main__":
    main()
