"""``benchmarks/evaluation.py`` on this GPU: the paper's prompts on a 1.3B decoder in bf16, and lm-eval's hf backend.

Then how many scores have other bits in other batches, which must be none on a GPU, and what the fixed order of sums
costs. Needs the tasks' rows and GPT-2's vocabulary: ``--rows`` and ``--gpt2`` of ``--pack``. All runs in this process,
on weights drawn once on the GPU; a trial has one row of each task, and a smaller decoder.
"""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .results import WORK

if TYPE_CHECKING:
    from .results import Results

ROWS: Final = (24, 4)
"""Of a task, for the comparison, and for the scores in other batches."""

ROUNDS: Final = 3
"""The first also loads kernels."""


def main(tiny: bool, results: Results) -> None:
    """Measure, or say why not."""
    rows, gpt2 = (os.environ.get(f"MTNLG_GPU_{name}") for name in ("ROWS", "GPT2"))
    lacking = [name for name in ("lm_eval", "datasets", "transformers") if find_spec(name) is None]
    if lacking or not (rows and gpt2):
        reason = f"needs {', '.join(lacking) or 'rows and gpt2, packed with --rows and --gpt2'}"
        results.add("few shots", f"not run: {reason}", {"why_not": reason})
        return
    import evaluation  # noqa: PLC0415  (imports lm-eval, which the pack may lack)

    compared, scored = (1, 1) if tiny else ROWS
    rounds = 1 if tiny else ROUNDS

    def compare() -> tuple[str, dict[str, Any]]:
        figures = evaluation.whole(checkpoint, hf, Path(rows), compared, rounds, "few")
        line = f"{figures['ratio']['median']:.2f} x hf, differences up to {figures['largest_difference_nats']:.1e} nats"
        from_fp32 = figures.get("largest_difference_from_fp32", {})
        return line + "".join(f"; {side} from fp32 {nats:.1e}" for side, nats in from_fp32.items()), figures

    def count_bits() -> tuple[str, dict[str, Any]]:
        figures = evaluation.fixed_order(checkpoint, Path(rows), scored, rounds)
        line = (
            f"{figures['differ_fixed']} of {figures['requests']} scores differ, {figures['differ_free']} in free order"
        )
        line += f"; {figures['ratio']['median']:.2f} x the time of free order"
        line += "".join("; {task} of {tokens} tokens by {nats:.1e}".format_map(each) for each in figures["largest"])
        return line, figures | ({"error": line} if figures["differ_fixed"] else {})

    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        checkpoint, hf = evaluation.open_models(Path(gpt2), Path(folder), 1)
        for key, measure in (("few shots", compare), ("fixed order", count_bits)):
            if not results.has(key):
                with results.attempt(key):
                    results.add(key, *measure())
