"""Runs parts of the GPU benchmark in one process: ``python -m gpu_parts PART ... --out DIR [--tiny]``."""

from __future__ import annotations

import importlib
import os
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

from .results import Results


def main() -> None:
    """Run the parts in order; each that ends gets a row, with its seconds and how many kernels Triton compiled."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    from .clock import GPU  # noqa: PLC0415  (imports torch, whose time is the first part's)

    if not GPU and not options.tiny:
        sys.exit("no GPU here, and times on a CPU say nothing; --tiny tries the script")
    for part in options.parts:
        results, before = Results(options.out, part), cached_kernels()
        importlib.import_module(f"gpu_parts.{part}").main(options.tiny, results)
        seconds, compiled = time.perf_counter() - began, cached_kernels() - before
        figures = {"seconds": seconds, "compiled": compiled}
        results.add("ended", f"after {seconds:.0f} s, {compiled} kernels compiled", figures)
        began = time.perf_counter()


def cached_kernels() -> int:
    """How many kernels Triton's cache has."""
    folder = os.environ.get("TRITON_CACHE_DIR", "")
    return len(list(Path(folder).glob("*/*.cubin"))) if folder else 0


if __name__ == "__main__":
    main()
