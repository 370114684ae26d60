"""``benchmarks/evaluation.py`` on this GPU: the paper's prompts on a 1.3B decoder in bf16, and lm-eval's hf backend.

Needs the tasks' rows and GPT-2's vocabulary: ``--rows`` and ``--gpt2`` of ``--pack``. Both sides and all rounds run in
this process, on weights drawn once on the GPU; a trial has one row of each task, and a smaller decoder.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .results import Results

ROUNDS: Final = 2


def main(tiny: bool, results: Results) -> None:
    """Measure, or say why not."""
    rows, gpt2 = (os.environ.get(f"MTNLG_GPU_{name}") for name in ("ROWS", "GPT2"))
    lacking = [name for name in ("lm_eval", "datasets", "transformers") if find_spec(name) is None]
    if lacking or not (rows and gpt2):
        reason = f"needs {', '.join(lacking) or 'rows and gpt2, packed with --rows and --gpt2'}"
        results.add("few shots", f"not run: {reason}", {"why_not": reason})
        return
    if results.has("few shots, round 2"):
        return
    import evaluation  # noqa: PLC0415  (imports lm-eval, which the pack may lack)

    with results.attempt("few shots"):
        compared = evaluation.few_shots(Path(rows), Path(gpt2), 1 if tiny else 24, ROUNDS)
        for number, figures in enumerate(compared, 1):
            differ = figures["largest_difference_nats"]
            line = f"{figures['ratio']:.2f} x hf, differences up to {differ:.1e} nats"
            results.add(f"few shots, round {number}", line, figures)
