"""A curation as a job of a real Slurm of two nodes on this machine, each with a Ray of the same cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import curations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from curations import Undisturbed

SCRIPT = Path(__file__).with_name("training") / "start_slurm.sh"
#: Two nodes of one core each, where a site gives whole ones.
SITE = [
    *("--sbatch=--nodes=2", "--sbatch=--exclusive=false", "--sbatch=--mem=1000", "--sbatch=--cpus-per-task=1"),
    *("--sbatch=--time=10", "--interface=lo"),
]


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Slurm's daemons, for this test's environment."""
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"no Slurm: needs {', '.join(missing) or 'its daemons'} (Debian: slurm-wlm, munge) and root")
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            subprocess.run([SCRIPT, folder, "start", "2"], check=True)
            yield
        finally:
            subprocess.run([SCRIPT, folder, "stop"], check=True)


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.usefixtures("slurm")
def test_a_job_runs_on_a_ray_of_its_nodes_with_the_same_bytes_and_leaves_no_token(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [curations.COMMAND, "run", str(undisturbed.recipe), "--out", "data"]
    log = f"--sbatch=--output={tmp_path}/log"
    submitted = subprocess.run(
        [*words, "--engine", "ray", "--launcher", "slurm", *SITE, log], capture_output=True, text=True, check=True
    )
    assert "data: submitted as job 1;" in submitted.stderr
    deadline = time.monotonic() + 240
    seen: set[int] = set()
    while output("squeue", "--noheader"):
        seen |= {path.stat().st_mode & 0o777 for path in tmp_path.glob(".ray-token-1") if path.exists()}
        assert time.monotonic() < deadline, output("squeue") + (tmp_path / "log").read_text()
        time.sleep(0.1)
    assert "JobState=COMPLETED" in output("scontrol", "show", "job", "1"), (tmp_path / "log").read_text()
    assert seen == {0o600}
    assert curations.left_by(tmp_path / "data") == undisturbed.left
    assert {path.name for path in tmp_path.iterdir()} == {"data", "log"}
