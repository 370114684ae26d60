"""Runs drawn at random train like one plain process; ``benchmarks/fuzz_layouts.py`` goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from training.random_runs import draw_run

if TYPE_CHECKING:
    from pathlib import Path

    from training.reference_loop import RunRanks

SEED, CASES = 279, 12


@pytest.mark.parametrize("number", range(CASES))
def test_a_random_run_trains_like_one_process(number: int, run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    draw_run(SEED, number, data).check(run_ranks, data, tmp_path)
