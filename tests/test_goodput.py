"""docs/goodput.md is what its script writes, and the simulation behind it agrees with theory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from failures import LLAMA, STEP_SECONDS, Policy, Site, simulate  # noqa: E402

NOTHING = Site(
    notice=0.0,
    hang=0.0,
    processes=0.0,
    groups=0.0,
    load=0.0,
    stall=0.0,
    write=0.0,
    queue=0.0,
)
BETWEEN = 1 / LLAMA.per_second


def test_the_document_is_what_the_script_writes(tmp_path: Path) -> None:
    out = tmp_path / "goodput.md"
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "failures.py"), "--out", str(out)], check=True)
    assert out.read_text() == (ROOT / "docs" / "goodput.md").read_text(), "run benchmarks/failures.py"


def test_cost_of_a_failure_is_half_an_interval_or_a_restart() -> None:
    """To 3 %: the simulation has some ten thousand failures, whose losses deviate by 60 % of their mean."""
    shares = simulate(Policy(100), NOTHING, LLAMA.per_second)
    assert shares.lost == pytest.approx(50 * STEP_SECONDS / BETWEEN, rel=0.03)
    assert sum(shares) == pytest.approx(1.0)
    shares = simulate(Policy(1, person=1800.0), NOTHING, LLAMA.per_second)
    assert shares.waiting == pytest.approx(1800 / (BETWEEN + 1800), rel=0.03)
    shares = simulate(Policy(1), NOTHING._replace(load=600.0), LLAMA.per_second)
    assert shares.starting == pytest.approx(600 / BETWEEN, rel=0.03)
