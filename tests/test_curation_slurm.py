"""A curation as a job of a real Slurm of nodes on this machine, each with a Ray of the same cluster."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

import curations

if TYPE_CHECKING:
    from pathlib import Path

    from curations import Undisturbed

#: Two nodes of one core each, where a site gives whole ones.
SITE = [
    *("--sbatch=--nodes=2", "--sbatch=--exclusive=false", "--sbatch=--mem=1000", "--sbatch=--cpus-per-task=1"),
    *("--sbatch=--time=10", "--interface=lo"),
]
pytestmark = pytest.mark.usefixtures("slurm_daemons")


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


class Job:
    """A run submitted from a folder, which it writes ``data`` and ``log`` into."""

    def __init__(self, recipe: Path, folder: Path) -> None:
        self.log = folder / "log"
        run = [curations.COMMAND, "run", str(recipe), "--out", "data", "--engine", "ray", "--launcher", "slurm"]
        words = [*run, *SITE, f"--sbatch=--output={self.log}"]
        submitted = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder).stderr
        assert "data: submitted as job " in submitted
        self.number = submitted.split(" as job ")[1].split(";")[0]

    def is_there(self) -> bool:
        """Whether it is pending, running or completing."""
        return bool(output("squeue", "--noheader"))

    def state(self) -> str:
        """Slurm's word for how it is or ended."""
        return output("scontrol", "show", "job", self.number).split("JobState=")[1].split()[0]


def test_a_job_runs_on_a_ray_of_its_nodes_with_the_same_bytes_and_leaves_no_token(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    job = Job(undisturbed.recipe, tmp_path)
    deadline = time.monotonic() + 240
    seen: set[int] = set()
    while job.is_there():
        seen |= {path.stat().st_mode & 0o777 for path in tmp_path.glob(".ray-token-*") if path.exists()}
        assert time.monotonic() < deadline, output("squeue") + job.log.read_text()
        time.sleep(0.1)
    assert job.state() == "COMPLETED", job.log.read_text()
    assert seen == {0o600}
    assert curations.left_by(tmp_path / "data") == undisturbed.left
    assert {path.name for path in tmp_path.iterdir()} == {"data", "log"}


def test_a_job_whose_head_cannot_start_ends_and_says_why(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)  # no path of a socket can be so long
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    job = Job(undisturbed.recipe, tmp_path)
    deadline = time.monotonic() + 120
    while job.is_there():
        assert time.monotonic() < deadline, output("squeue") + job.log.read_text()
        time.sleep(0.1)
    assert job.state() == "FAILED"
    assert "AF_UNIX path length" in job.log.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"log", long.name}
    assert not list(long.iterdir())
