"""Does an engine train as a plain PyTorch loop does, whatever is drawn?

    python benchmarks/conformance.py [--engine pipeline] [--seed 1] [--cases 500] [--jobs 2] [--out FILE]
    python benchmarks/conformance.py --matrix [--engine pipeline] [--strength 4]

Draws cases with `mtnlg_parallel.conformance` and checks each; with ``--matrix`` cells of its matrix instead, so many
that every combination of the values of ``--strength`` factors is in one. The result holds what was checked, the cases
that differ with the options that repeat each, the largest error of every figure as a share of what is allowed, and the
spread of the plain loop by precision: how far its roundings alone move each figure, from which the bounds of
`mtnlg_parallel.conformance.compare` are set.
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
from mtnlg_parallel.conformance import matrix as all_cells
from mtnlg_parallel.engine.build import engine_class
from record import run

if TYPE_CHECKING:
    from collections.abc import Sequence


def measure(
    *, engine: str = "pipeline", seed: int = 1, cases: int = 500, matrix: bool = False, strength: int = 4, jobs: int = 1
) -> dict[str, Any]:
    """Check drawn cases, or cells of the matrix; ``jobs`` at a time."""
    cells, unsupported = list(all_cells()), engine_class(engine).unsupported
    reasons = [reason for cell in cells if (reason := unsupported(cell.recipe))]
    if matrix:
        chosen = fixed_cases(engine, strength)
        result: dict[str, Any] = {"strength": strength, "cells": len(cells) - len(reasons)}
        result |= {"not_supported": {reason: reasons.count(reason) for reason in sorted(set(reasons))}}
    else:
        chosen, result = list(islice(drawn_cases(engine, seed), cases)), {"seed": seed}
    began = time.monotonic()
    results = list(run_cases(engine, chosen, jobs))
    return {"engine": engine} | result | summary(results) | {"seconds": round(time.monotonic() - began)}


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """What was checked and how it went, in numbers."""
    figures = [(each.case.recipe.train.precision, figure) for each in results for figure in each.figures]
    kinds = sorted({(precision, figure.what) for precision, figure in figures})
    errors, spread = dict[str, Any](), dict[str, Any]()
    for kind in kinds:
        those = [figure for precision, figure in figures if (precision, figure.what) == kind]
        shares = [figure.error / figure.allowed(kind[0]) for figure in those]
        name = " ".join(kind)
        errors[name] = {"figures": len(those), "largest_share_of_allowed": round(max(shares), 3)}
        errors[name] |= {"largest": _digits(max(f.error for f in those))}
        percentiles = np.percentile([figure.rounding for figure in those], (50, 99, 100))
        spread[name] = dict(zip(("p50", "p99", "largest"), map(_digits, percentiles), strict=True))
    return {
        "cases": len(results),
        "held": sum(each.status == "held" for each in results),
        "differ": [f"{each.case.name}: {each}" for each in results if each.status != "held"],
        "errors": errors,
        "spread_of_the_plain_loop": spread,
    }


def _digits(value: float) -> float:
    return float(f"{value:.2g}")


if __name__ == "__main__":
    run(measure, __doc__, "deepspeed", "megatron-core")
