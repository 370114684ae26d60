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

from .clock import begin


def main() -> None:
    """Measure, or say why not."""
    tiny, results = begin(__doc__, "evaluation")
    rows, gpt2 = (os.environ.get(f"MTNLG_GPU_{name}") for name in ("ROWS", "GPT2"))
    lacking = [name for name in ("lm_eval", "datasets", "transformers") if find_spec(name) is None]
    if tiny or lacking or not (rows and gpt2):
        reason = "a trial" if tiny else f"needs {', '.join(lacking) or 'rows and gpt2, packed with --rows and --gpt2'}"
        results.add("hf", f"not run: {reason}", {"why_not": reason})
        return
    script = Path(__file__).parents[1] / "evaluation.py"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        words = ["--data", rows, "--gpt2", gpt2, "--documents", "24", "--rounds", "3", "--out", str(out)]
        words += ["--part", "whole", "--part", "fixed_order"]
        subprocess.run([sys.executable, str(script), *words], check=True)
        result = json.loads(out.read_text())
    for shots in ("0 shots", "few shots"):
        line = (
            f"{result[shots]['ratio']:.2f} x hf, differences up to {result[shots]['largest_difference_nats']:.1e} nats"
        )
        results.add(shots, line, result[shots])
    order = result["fixed order"]
    line = f"{order['ratio']:.2f} x the free order's time; {order['differ_fixed']} of {order['requests']} scores differ"
    results.add("fixed order", line, order)


if __name__ == "__main__":
    main()
