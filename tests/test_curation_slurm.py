"""A curation as a job of a real Slurm of nodes on this machine, each with a Ray of the same cluster."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

import curations
from slurm_jobs import Job, lost, processes

if TYPE_CHECKING:
    from pathlib import Path

    from curations import Undisturbed

#: One core of each node, where a site gives whole ones.
SITE = [
    *("--sbatch=--exclusive=false", "--sbatch=--mem=1000", "--sbatch=--cpus-per-task=1", "--sbatch=--time=10"),
    "--interface=lo",
]
pytestmark = pytest.mark.usefixtures("slurm_daemons")


def submit(undisturbed: Undisturbed, folder: Path, nodes: int = 2) -> Job:
    """A run submitted from a folder, which it writes ``data`` and ``log`` into."""
    run = [curations.COMMAND, "run", str(undisturbed.recipe), "--out", "data", "--engine", "ray", "--launcher", "slurm"]
    return Job([*run, *SITE, f"--sbatch=--nodes={nodes}", f"--sbatch=--output={folder / 'log'}"], folder, "log")


def test_job_has_equal_bytes_and_leaves_no_token(undisturbed: Undisturbed, tmp_path: Path) -> None:
    job = submit(undisturbed, tmp_path)
    seen: set[int] = set()

    def has_ended() -> bool:
        seen.update(path.stat().st_mode & 0o777 for path in tmp_path.glob(".ray-token-*") if path.exists())
        return job.has_ended()

    job.until(has_ended)
    assert job.fact("JobState") == "COMPLETED", job.log()
    assert seen == {0o600}
    assert curations.left_by(tmp_path / "data") == undisturbed.left
    assert {path.name for path in tmp_path.iterdir()} == {"data", "log"}


def test_a_job_whose_head_cannot_start_ends_and_says_why(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)  # no path of a socket can be so long
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    job = submit(undisturbed, tmp_path)
    job.until_ended()
    assert job.fact("JobState") == "FAILED"
    assert "AF_UNIX path length" in job.log()
    assert {path.name for path in tmp_path.iterdir()} == {"data", "log", long.name}
    assert not [*(tmp_path / "data").iterdir(), *long.iterdir()]


# The first has the run: without it the job is queued again. The others go on without any other.
@pytest.mark.parametrize(
    ("nodes", "node", "restarts"),
    [(2, "n1", "1"), (2, "n2", "0"), (3, "n2", "0"), (3, "n3", "0")],
)
def test_a_lost_node_changes_no_byte(  # noqa: PLR0917  (fixtures)
    undisturbed: Undisturbed,
    slurm_daemons: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    node: str,
    restarts: str,
) -> None:
    # Until Ray gives a machine up, and until a machine gives Ray's head up.
    for name, value in (("initial_delay_ms", 0), ("period_ms", 200), ("timeout_ms", 1000)):
        monkeypatch.setenv(f"RAY_health_check_{name}", str(value))
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    job = submit(undisturbed, tmp_path, nodes)
    job.until((tmp_path / "data" / "01-extract").exists)
    (driver,) = processes("n1", line="mtnlg_data.cli run")
    os.kill(driver, signal.SIGSTOP)  # so that it cannot end before all nodes are there
    try:
        # On a busy machine the Ray of a third node may not start in time; the run goes on without it.
        job.until(lambda: len(re.findall(r"Ray runtime started\.|timed out during startup", job.log())) == nodes)
    finally:
        os.kill(driver, signal.SIGCONT)
    with lost(node, slurm_daemons):
        job.until_ended()
    assert (job.fact("JobState"), job.fact("Restarts")) == ("COMPLETED", restarts), job.log()
    assert curations.left_by(tmp_path / "data") == undisturbed.left
