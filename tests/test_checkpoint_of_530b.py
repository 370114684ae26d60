"""The checkpoint of the 530B at its real size: its manifest, and what its 2,240 ranks read to resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtnlg_model.families import preset

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "checkpoint_manifest.py"


def test_every_rank_reads_only_its_part(tmp_path: Path) -> None:
    """Of every parameter 2 bytes for each of 8 data-parallel ranks, 12 once; and the last stage's token table."""
    out = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARK), "--rounds", "1", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    result = json.loads(out.read_text())
    assert (result["writers"], result["files"], result["pieces"]) == (2240, 12404, 30516)
    config = preset("mt-nlg-530b")
    elements = config.parameters + config.vocabulary * config.hidden
    assert result["resume"]["read_terabytes"] == pytest.approx(elements * (2 * 8 + 12) / 1e12, rel=1e-3)
    assert result["resume"]["read_terabytes"] < 0.55 * result["resume"]["from_whole_boxes_terabytes"]
