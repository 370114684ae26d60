"""The command ``mtnlg-parallel conform``: train as a plain loop does, in many configurations, or name what differs."""

from __future__ import annotations

import itertools
from typing import Literal

from mtnlg_model.console import Failure, say

from .suite import drawn_cases, fixed_cases, run_cases


def conform(
    engine: str, *, minutes: float, cases: int | None, seed: int, first: int, jobs: int, device: Literal["auto", "cpu"]
) -> None:
    """Run `mtnlg_parallel.cli.conform`. Raises ``Failure`` if a case differs."""
    drawn = drawn_cases(engine, seed, first)
    chosen = itertools.chain(fixed_cases(engine), drawn) if cases is None else itertools.islice(drawn, cases)
    results = []
    for result in run_cases(engine, chosen, jobs, 60 * minutes if cases is None else float("inf"), device):
        results.append(result)
        if result.status != "held":
            say(f"{result.case.name}: {result}")
    wrong = [result for result in results if result.status != "held"]
    if wrong:
        raise Failure(f"{engine}: {len(wrong)} of {len(results)} cases differ; the first is {wrong[0].case.name}")
    worst = max(result.worst for result in results)
    say(f"{engine}: all of {len(results)} cases train as the plain loop does, to {worst:.2f} of the allowed errors")
