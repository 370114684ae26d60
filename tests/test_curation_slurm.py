"""A curation as a job of a real Slurm of nodes on this machine, each with a Ray of the same cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import curations

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for the condition, five minutes at most."""
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, output("squeue") + self.log.read_text()
            time.sleep(0.05)

    def state(self) -> str:
        """Slurm's word for how it is or ended."""
        return output("scontrol", "show", "job", self.number).split("JobState=")[1].split()[0]


def test_a_job_runs_on_a_ray_of_its_nodes_with_the_same_bytes_and_leaves_no_token(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    job = Job(undisturbed.recipe, tmp_path)
    seen: set[int] = set()

    def has_ended() -> bool:
        seen.update(path.stat().st_mode & 0o777 for path in tmp_path.glob(".ray-token-*") if path.exists())
        return not job.is_there()

    job.until(has_ended)
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
    job.until(lambda: not job.is_there())
    assert job.state() == "FAILED"
    assert "AF_UNIX path length" in job.log.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"log", long.name}
    assert not list(long.iterdir())


def processes(node: str, words: str = "") -> list[int]:
    """The processes of this Slurm's jobs on a node with these words in their command lines."""
    wanted, found = {f"SLURMD_NODENAME={node}", f"SLURM_CONF={os.environ['SLURM_CONF']}"}, []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = set((folder / "environ").read_text(errors="replace").split("\0"))
            line = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
            if wanted <= environment and words in line:
                found.append(int(folder.name))
    return found


# Last, since n2 stays down.
def test_a_lost_node_changes_no_byte_and_does_not_end_the_job(
    undisturbed: Undisturbed, slurm_daemons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("initial_delay", 0), ("period", 200), ("timeout", 1000)):  # until Ray gives a machine up
        monkeypatch.setenv(f"RAY_health_check_{name}_ms", str(value))
    job = Job(undisturbed.recipe, tmp_path)
    job.until((tmp_path / "data" / "01-extract").exists)
    (driver,) = processes("n1", "mtnlg_data.cli run")
    os.kill(driver, signal.SIGSTOP)  # so that it cannot end before its second node is there
    try:
        job.until(lambda: processes("n2", "ray::"))
        for pid in (int((slurm_daemons / "slurmd-n2.pid").read_text()), *processes("n2")):
            os.kill(pid, signal.SIGKILL)
        # As slurmctld does when a node has not answered for SlurmdTimeout.
        output("scontrol", "update", "nodename=n2", "state=down", "reason=lost")
    finally:
        os.kill(driver, signal.SIGCONT)
    job.until(lambda: not job.is_there())
    assert job.state() == "COMPLETED", job.log.read_text()
    assert curations.left_by(tmp_path / "data") == undisturbed.left
