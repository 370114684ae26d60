"""A sharded scoring as a job of a real Slurm on this machine, over two nodes of two ranks each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from slurm_jobs import Job, lost, processes
from test_sharded_evaluation import EXACT, ROWS, checkpoint, results, samples, tokenizer, whole

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["checkpoint", "tokenizer", "whole"]

TASKS = ("--data", str(ROWS), "--tasks", "hellaswag,lambada,hans", "--shots", "0,2", "--layout", EXACT)
SLURM = """
model = { layers = 1, hidden = 8, heads = 1, sequence = 8, vocabulary = 64 }
train = { samples = 8, batch = 8, lr = 1e-3 }

[slurm]
sbatch = { cpus-per-task = 1, gpus-per-node = false, time = 10 }
setup = ["export MASTER_ADDR=127.0.0.1"]
"""


def job_words(folder: Path) -> list[str]:
    """Options by which a scoring is a job of two nodes with two ranks each."""
    (folder / "train.toml").write_text(SLURM)
    return [
        "--launcher",
        "slurm",
        "--slurm",
        "train.toml",
        "--ranks-per-node",
        "2",
        "--setup",
        "export HF_HUB_OFFLINE=1",
    ]


def test_of_a_recipe_a_scoring_needs_its_slurm_table_alone(tmp_path: Path) -> None:
    """The rest may need what a training has: the data of its epochs, the model that it starts from."""
    words = ["run", "model", "--out", "out", "--dry-run", *job_words(tmp_path)]
    (tmp_path / "train.toml").write_text("[train]\nsamples = '3 epochs'\n[slurm]\nsbatch = { time = 10 }\n")
    run = [sys.executable, "-m", "mtnlg_eval.cli", *words]
    script = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "#SBATCH --time=10\n" in script


def test_a_layout_that_does_not_fit_is_no_job(checkpoint: Path, tmp_path: Path) -> None:
    words = ["run", str(checkpoint), "--out", "out", "--layout", "pp=64", "--ranks-per-node", "64"]
    run = [sys.executable, "-m", "mtnlg_eval.cli", *words, "--launcher", "slurm", "--dry-run"]
    ended = subprocess.run(run, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ended.returncode
    assert "--layout pp=64: layout.pp = 64 stages for model.layers = " in ended.stderr


def scoring(checkpoint: Path, folder: Path) -> Job:
    """A scoring of two nodes, submitted."""
    words = ["run", str(checkpoint), "--out", "out", "--batch-tokens", "60", *TASKS, *job_words(folder)]
    return Job([sys.executable, "-m", "mtnlg_eval.cli", *words], folder, "out/slurm-*.log")


def ranks(node: str) -> list[int]:
    """The ranks on a node."""
    return processes(node, line="mtnlg_eval.cli run")


@pytest.mark.usefixtures("slurm_daemons")
def test_killed_rank_ends_the_job_and_the_same_command_resumes(checkpoint: Path, whole: Path, tmp_path: Path) -> None:
    first = scoring(checkpoint, tmp_path)
    first.until(lambda: ranks("n2"))
    os.kill(ranks("n2")[0], signal.SIGKILL)
    first.until_ended()
    assert first.fact("JobState") == "FAILED"
    second = scoring(checkpoint, tmp_path)
    second.until_ended()
    assert second.fact("JobState") == "COMPLETED", second.log()
    assert (samples(tmp_path / "out"), results(tmp_path / "out")) == (samples(whole), results(whole))


@pytest.mark.parametrize(("node", "rest"), [("n1", "n[2-3]"), ("n2", "n[1,3]"), ("n3", "n[1-2]")])
def test_lost_node_requeues_the_job_without_it(  # noqa: PLR0917  (fixtures)
    slurm_daemons: Path, checkpoint: Path, whole: Path, tmp_path: Path, node: str, rest: str
) -> None:
    job = scoring(checkpoint, tmp_path)
    job.until(lambda: (tmp_path / "out" / "scores.sqlite").exists() and ranks("n2"))
    for rank in ranks("n2"):
        os.kill(rank, signal.SIGSTOP)  # so that it cannot complete before
    with lost(node, slurm_daemons):
        for rank in ranks("n2") if node == "n3" else ():  # which has no rank
            os.kill(rank, signal.SIGCONT)
        job.until_ended()
    assert (job.fact("JobState"), job.fact("NodeList")) == ("COMPLETED", rest), job.log()
    assert job.fact("Restarts") == ("0" if node == "n3" else "1")
    assert (samples(tmp_path / "out"), results(tmp_path / "out")) == (samples(whole), results(whole))


@pytest.mark.usefixtures("slurm_daemons")
def test_watch_scores_as_slurm_jobs(checkpoint: Path, whole: Path, tmp_path: Path) -> None:
    """It waits for each, and names a checkpoint whose job has failed."""
    words = ["watch", str(checkpoint.parent), "--out", "out", "--once", *TASKS, *job_words(tmp_path)]
    for status, more in ((1, ["--shots", "0", "--style", "gpt3", "--srun=--ntasks=3"]), (0, [])):
        done = subprocess.run([sys.executable, "-m", "mtnlg_eval.cli", *words, *more], cwd=tmp_path, check=False)
        assert done.returncode == status
    assert samples(tmp_path / "out") == samples(whole)
    assert (tmp_path / "out" / "report.html").exists()
