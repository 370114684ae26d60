"""A run under every kind of fault, restarted without a person, by the benchmark and a fixed seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
KINDS = {"kill-rank", "kill-ranks", "kill-starting", "stop-rank", "signal-rank", "kill-launcher", "signal-launcher"}


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_every_fault_preserves_samples_and_losses(
    tmp_path: Path,
) -> None:
    words = [str(CHAOS), "--minutes", "0", "--seed", "1", "--out", str(tmp_path / "result.json")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    kinds = KINDS | ({"full-disk"} if not os.geteuid() else set())
    assert {kind for kind, figures in result["by_kind_medians"].items() if figures["count"] == 1} == kinds
    assert result["samples_each_once"] == 8 * result["steps"]
    assert 0 < result["goodput"] < 1
