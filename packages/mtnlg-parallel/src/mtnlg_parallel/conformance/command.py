"""The command ``mtnlg-parallel conform``: train as a plain loop does, in many configurations, or name what differs."""

from __future__ import annotations

import itertools
from typing import Literal

from rich.table import Table

from mtnlg_model.console import Failure, output, say

from .suite import counts, drawn_cases, fixed_cases, run_cases


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
    table = Table("", "value", "cases", "held", "largest error / allowed", box=None)
    previous = ""
    for count in counts(results):
        table.add_row(
            "" if count.factor == previous else count.factor,
            count.value,
            str(count.cases),
            str(count.held),
            f"{count.worst:.2f}",
        )
        previous = count.factor
    output().print(table)
    wrong = [result for result in results if result.status != "held"]
    if wrong:
        raise Failure(f"{engine}: {len(wrong)} of {len(results)} cases differ; the first is {wrong[0].case.name}")
    say(f"{engine}: all of {len(results)} cases train as the plain loop does")
