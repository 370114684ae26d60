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

import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mtnlg_parallel.conformance import Result, drawn_cases, fixed_cases, matrix, run_cases
from mtnlg_parallel.conformance.suite import counts
from mtnlg_parallel.engine.build import engine_class
from record import conditions, write_result

if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> int:
    """Check the cases; returns whether any differs."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="pipeline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--matrix", action="store_true", help="cells of the matrix instead of drawn cases")
    parser.add_argument(
        "--strength", type=int, default=4, help="factors of which every combination of values is checked"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    result = conditions("mtnlg-parallel", "torch", "deepspeed", "megatron-core") | {"engine": options.engine}
    cells, unsupported = list(matrix()), engine_class(options.engine).unsupported
    reasons = [reason for cell in cells if (reason := unsupported(cell.recipe))]
    if options.matrix:
        cases = fixed_cases(options.engine, options.strength)
        result |= {"strength": options.strength, "cells": len(cells) - len(reasons)}
        result |= {"not_supported": {reason: reasons.count(reason) for reason in sorted(set(reasons))}}
    else:
        cases = list(islice(drawn_cases(options.engine, options.seed), options.cases))
        result |= {"seed": options.seed}
    began = time.monotonic()
    results = list(run_cases(options.engine, cases, options.jobs))
    write_result(result | summary(results) | {"seconds": round(time.monotonic() - began)}, options.out)
    return any(each.status != "held" for each in results)


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
        "counts": [list(count[:4]) for count in counts(results)],
    }


def _digits(value: float) -> float:
    return float(f"{value:.2g}")


if __name__ == "__main__":
    sys.exit(main())
