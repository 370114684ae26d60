"""Runs as jobs of a real Slurm of three nodes on this machine, which no person restarts."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import Slurm
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from slurm_jobs import Job, lost, output, processes
from training.reference_loop import assert_same_steps, recipe_of, reference_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = 120
# The names of these nodes are no host names.
SITE = Slurm(sbatch={"cpus-per-task": 1, "time": "10"}, setup=("export MASTER_ADDR=127.0.0.1",))
RECIPE = recipe_of((1, 1, 2), samples=8 * STEPS, ramp=None, checkpoint_every=10).model_copy(update={"slurm": SITE})


@pytest.fixture
def slurm(slurm_daemons: Path) -> Iterator[Path]:
    """Slurm's daemons for one test; ends its jobs if it fails."""
    yield slurm_daemons
    output("scancel", "--full", "--signal=KILL", "--user=root")


@pytest.fixture(scope="module")
def undisturbed(data: Path) -> list[dict[str, Any]]:
    """The steps of a run that nothing disturbs."""
    return reference_run(RECIPE, data)[0]


class Run(Job):
    """A run of two ranks, on a node each, submitted as a job."""

    def __init__(self, data: Path, folder: Path, *words: str) -> None:
        self.out, recipe = folder / "out", folder / "train.toml"
        recipe.write_text(dump(RECIPE))
        options = ["--data", str(data), "--out", str(self.out), "--launcher", "slurm", "--ranks-per-node=1", *words]
        train = [sys.executable, "-m", "mtnlg_parallel.cli", "train", str(recipe), *options]
        super().__init__(train, folder, "out/slurm-*.log")

    def until_trained(self, steps: int, attempt: int = 1) -> None:
        """Wait until the ranks, started for the given time, have recorded so many steps."""
        self.until(lambda: len(self.starts()) == attempt and self.steps()[steps - 1 :])

    def starts(self) -> list[int]:
        """The steps from which rank 0 has trained."""
        return [event["step"] for event in read_events(self.out) if event["event"] == "resumed"]

    def steps(self) -> list[dict[str, Any]]:
        """The steps recorded so far."""
        return [dict(step) for step in read_steps(self.out)]


def rank_on(node: str) -> int:
    """The process of the rank on a node; others that have its variable are its own."""
    return processes(node, "LOCAL_RANK=0")[0]


@pytest.mark.usefixtures("slurm")
def test_signalled_job_is_requeued_and_completes(data: Path, tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    job = Run(data, tmp_path, "--device=cpu")
    second = Run(data, tmp_path, "--device=cpu")
    job.until_trained(3)
    # As Slurm does before the time limit.
    output("scancel", "--signal=USR1", job.number)
    job.until_ended()
    assert "stopped by SIGUSR1; its checkpoint is" in job.log()
    _, resumed, behind = job.starts()
    assert resumed >= 3, "from its last checkpoint"
    assert behind == STEPS, "the second job's"
    assert_same_steps(job.steps(), undisturbed)
    assert "Warning" not in job.log()
    assert second.fact("StartTime") >= job.fact("EndTime")
    assert second.fact("JobState") == "COMPLETED"


@pytest.mark.usefixtures("slurm")
def test_killed_rank_restarts_then_moves_node(data: Path, tmp_path: Path, undisturbed: list[dict[str, Any]]) -> None:
    job = Run(data, tmp_path, "--device=cpu")
    for attempt in (1, 2):
        job.until_trained(20 * attempt, attempt)
        os.kill(rank_on("n2"), signal.SIGKILL)
    job.until_ended()
    assert_same_steps(job.steps(), undisturbed)
    failed = [event for event in read_events(job.out) if event["event"] == "failed"]
    assert [(event["node"], event["status"]) for event in failed] == [("n2", -signal.SIGKILL)] * 2
    assert len(job.starts()) == 3
    last = output("scontrol", "show", "job", str(int(job.number) + 1))
    assert "ExcNodeList=n2" in last
    assert "NodeList=n[1,3]" in last


@pytest.mark.usefixtures("slurm")
def test_missing_gpu_ends_the_run_naming_the_node(data: Path, tmp_path: Path) -> None:
    job = Run(data, tmp_path, "--max-restarts=0")
    assert re.search(r"TresPerNode=gres.gpu:1\b", output("scontrol", "show", "job", job.number))
    job.until_ended()
    # Whichever is first; srun ends the other.
    assert re.search(
        r"(rank 0 .* on n1|rank 1 .* on n2): torch sees no GPU; .* or train with --device cpu\n", job.log()
    )
    assert not job.starts()


def test_elastic_job_goes_on_with_fewer_nodes_and_grows_back(
    slurm: Path, data: Path, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    """Of three nodes one is drained and one is lost; then both are back, and the job is moved."""
    output("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    try:
        job = Run(data, tmp_path, "--device=cpu", "--elastic")
        second = Run(data, tmp_path, "--device=cpu", "--elastic")
        job.until_trained(20)
        with lost("n2", slurm):
            job.until_trained(1, attempt=2)
            rank = rank_on("n1")
            os.kill(rank, signal.SIGSTOP)  # so that it does not complete before
    finally:
        output("scontrol", "update", "nodename=n3", "state=resume")
    job.until(lambda: output("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == "2")
    output("scancel", "--signal=USR1", job.number)
    os.kill(rank, signal.SIGCONT)
    job.until_ended()
    assert_same_steps(job.steps(), undisturbed)
    layouts = [event["layout"] for event in read_events(job.out) if event["event"] == "start"]
    assert layouts[:3] == [f"tp=1,pp=1,dp={dp}" for dp in (2, 1, 2)]
    assert sorted({*job.starts()}) == job.starts()[:4], "each has trained"
    assert second.fact("JobState") == "COMPLETED"


@pytest.mark.parametrize(("node", "left"), [("n1", "n[2-3]"), ("n2", "n[1,3]"), ("n3", "n[1-2]")])
def test_lost_node_is_requeued_without_it(  # noqa: PLR0917  (fixtures)
    slurm: Path, data: Path, tmp_path: Path, undisturbed: list[dict[str, Any]], node: str, left: str
) -> None:
    job = Run(data, tmp_path, "--device=cpu")
    job.until_trained(20)
    with lost(node, slurm):
        job.until_ended()
    assert_same_steps(job.steps(), undisturbed)
    assert len(job.starts()) == (1 if node == "n3" else 2)  # which has no rank
    assert f"NodeList={left}" in output("scontrol", "show", "job", job.number)
