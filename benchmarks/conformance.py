"""Does an engine train as a plain PyTorch loop does, whatever is drawn?

    python benchmarks/conformance.py [--engine pipeline] [--seed 1] [--cases 500] [--jobs 2] [--out FILE]
    python benchmarks/conformance.py --matrix [--engine pipeline] [--strength 4]

Draws cases with `mtnlg_parallel.conformance` and checks each; with ``--matrix`` cells of its matrix instead, so many
that every combination of the values of ``--strength`` factors is in one. The result holds the cases that differ with
the options that repeat each, and the spread of the plain loop by precision: how far its roundings alone move each
figure, from which the bounds of `mtnlg_parallel.conformance.compare` are set.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mtnlg_parallel.conformance import Result, drawn_cases, fixed_cases, run_cases
from record import run

if TYPE_CHECKING:
    from collections.abc import Sequence


def measure(
    *, engine: str = "pipeline", seed: int = 1, cases: int = 500, matrix: bool = False, strength: int = 4, jobs: int = 1
) -> dict[str, Any]:
    """Check drawn cases, or cells of the matrix; ``jobs`` at a time."""
    if matrix:
        chosen, result = fixed_cases(engine, strength), {"strength": strength}
    else:
        chosen, result = list(islice(drawn_cases(engine, seed), cases)), {"seed": seed}
    began = time.monotonic()
    results = list(run_cases(engine, chosen, jobs))
    return {"engine": engine} | result | summary(results) | {"seconds": round(time.monotonic() - began)}


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """What was checked and how it went, in numbers."""
    roundings: dict[str, list[float]] = {}
    for result in results:
        for figure in result.figures:
            kind = f"{result.case.recipe.train.precision} {figure.what}"
            roundings.setdefault(kind, []).append(figure.rounding)
    spread = {kind: np.percentile(each, (50, 99, 100)) for kind, each in sorted(roundings.items())}
    return {
        "cases": len(results),
        "held": sum(each.status == "held" for each in results),
        "differ": [f"{each.case.name}: {each}" for each in results if each.status != "held"],
        "spread_of_the_plain_loop": {
            kind: {name: float(f"{value:.2g}") for name, value in zip(("p50", "p99", "largest"), each, strict=True)}
            for kind, each in spread.items()
        },
    }


if __name__ == "__main__":
    run(measure, __doc__, "deepspeed", "megatron-core")
