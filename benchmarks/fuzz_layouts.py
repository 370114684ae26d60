"""Random runs against one plain process: does every layout, schedule and resume train alike?

    python benchmarks/fuzz_layouts.py --minutes 30 --seed 1 [--cases 500] [--jobs 3] [--out FILE]
    python benchmarks/fuzz_layouts.py --seed 1 --first 37 --cases 1

Each case draws a shape, layouts of up to four ranks (rarely eight), schedules, chunks, recomputation, offloading,
sequence parallelism, micro-batches, a ramp, clipping, sizes of gradient buckets, a step that must be skipped, and
resumes into another layout, schedule and engine (`tests/training/random_runs.py`). Losses and norms must be those of a
plain process within 1e-5 in fp32, and the last checkpoint must hold its weights and moments; runs with dropout must
resume to the last bit. A rank that hangs is ended after a minute. Each failure is a line with what reproduces it.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import itertools
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from record import conditions, write_result

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from training.conftest import make_data, serving_ranks
from training.random_runs import draw_run, overrides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from training.random_runs import Agreement, RandomRun


def main() -> int:
    """Run cases until time or their number is up; returns whether any failed."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="most cases")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = conditions("mtnlg-parallel", "torch", "deepspeed", "megatron-core")
    first = options.first
    numbers = iter(range(first, first + options.cases)) if options.cases else itertools.count(first)
    result = (
        before
        | {"seed": options.seed, "first": first}
        | fuzz(options.seed, numbers, 60 * options.minutes, options.jobs)
    )
    write_result(result, options.out)
    return bool(result["failures"])


class Case(NamedTuple):
    """One case and how it went: an agreement, or the line of a failure."""

    run: RandomRun
    agreement: Agreement | None
    failure: str


def fuzz(seed: int, numbers: Iterator[int], seconds: float, jobs: int) -> dict[str, Any]:
    """Check the cases, each job at least one, and count what was drawn."""
    began = time.monotonic()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        make_data(Path(folder), seed=1)
        running = [pool.submit(check_cases, seed, numbers, Path(folder), began + seconds) for _ in range(jobs)]
        cases = [case for job in running for case in job.result()]
    agreements = [case.agreement for case in cases if case.agreement]
    return {
        "cases": len(cases),
        "failures": [case.failure for case in cases if case.failure],
        "largest_relative_difference": max((each.difference for each in agreements), default=None),
        "within_ten_times_the_rounding_error_alone": sum(each.within_rounding for each in agreements),
        "seconds": round(time.monotonic() - began),
        "steps": sum(len(case.run.batches) for case in cases),
        "layouts": len({part.layout for case in cases for part in case.run.parts}),
    } | drawn([case.run for case in cases])


def check_cases(seed: int, numbers: Iterator[int], data: Path, end: float) -> list[Case]:
    """Check one case after the other until there is no more, or no time."""
    cases: list[Case] = []
    with serving_ranks() as run_ranks:
        while (not cases or time.monotonic() < end) and (number := next(numbers, None)) is not None:
            run = draw_run(seed, number, data)
            try:
                with TemporaryDirectory() as out:
                    cases.append(Case(run, run.check(run_ranks, data, Path(out)), ""))
            except Exception as error:  # noqa: BLE001  (whatever it is, the case has failed)
                cases.append(Case(run, None, describe(seed, number, run, error)))
                print(cases[-1].failure, file=sys.stderr, flush=True)
    return cases


def drawn(runs: list[RandomRun]) -> dict[str, dict[str, int]]:
    """Number of runs by kind, and of their parts by schedule, ranks and recomputation."""
    parts = [part for run in runs for part in run.parts]
    chunks = {1: "", 2: ", 2 chunks", 3: ", 3 chunks"}
    counts: dict[str, Counter[str]] = {
        "runs": Counter("dropout, to the bit" if run.drops else f"{len(run.parts) - 1} resumes" for run in runs),
        "schedules": Counter(part.train.schedule + chunks[part.train.chunks] for part in parts),
        "ranks": Counter(str(part.layout.world) for part in parts),
        "recompute": Counter(part.train.recompute for part in parts),
    }
    return {name: dict(sorted(count.items())) for name, count in counts.items()}


def describe(seed: int, number: int, run: RandomRun, error: Exception) -> str:
    """One line: the case, what went wrong, and the recipes."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    recipes = " then ".join(overrides(part) for part in run.parts)
    return (
        f"FAILED --seed {seed} --first {number} --cases 1: {reason[-600:]}: skips {run.skipped}, buckets of "
        f"{run.bucket_elements}: {recipes}"
    )


if __name__ == "__main__":
    sys.exit(main())
