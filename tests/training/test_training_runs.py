"""Whole runs of the command with the faults of a cluster: they end with the losses of an undisturbed run."""

import os
import signal
import socket
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.settings import dump
from mtnlg_parallel.record.run_dir import read_summary
from mtnlg_parallel.statuses import Exit
from training.launched import CLI, MINUTES, assert_undisturbed, running, steps_of
from training.reference_loop import recipe_of

STEPS = 40


def ranks_of(out: Path) -> list[int]:
    """Process ids of the ranks that log into ``out``."""
    process_ids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "fd" / "2").readlink().parent == out / "logs":
                process_ids.append(int(entry.name))
        except OSError:  # it ended meanwhile
            continue
    return process_ids


def until_gone(out: Path) -> None:
    """Wait until the kernel has reaped the killed ranks."""
    for _ in count():
        if not ranks_of(out):
            return


SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}


@pytest.mark.parametrize(
    ("names", "common"),
    [(["SLURM_PROCID", "SLURM_LOCALID"], SRUN), (["RANK"], {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"})],
    ids=["srun", "kubeflow"],
)
def test_ranks_join_by_their_launchers_variables(
    data: Path, tmp_path: Path, names: list[str], common: dict[str, str]
) -> None:
    (tmp_path / "train.toml").write_text(dump(recipe_of((1, 1, 2), samples=24)))
    with socket.create_server(("localhost", 0)) as free:
        common = {**os.environ, **common, "MASTER_PORT": str(free.getsockname()[1])}
    words = [*CLI, tmp_path / "train.toml", "--data", data, "--out", tmp_path / "out", "--device", "cpu"]
    line = [sys.executable, *map(str, words)]
    ranks = [
        subprocess.Popen(line, env={**common, **dict.fromkeys(names, str(rank))}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    ends = [rank.communicate(timeout=MINUTES) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    assert steps_of(tmp_path / "out")


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_kills_and_lost_rank_in_three_layouts_preserve_losses(data: Path, tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "train.toml"
    recipe = recipe_of(samples=8 * STEPS, ramp=None, checkpoint_every=4)
    path.write_text(dump(recipe))
    words: tuple[object, ...] = (*CLI, path, "--data", data, "--out", out)

    with running(out, *words, "--layout", "tp=2,pp=2,dp=1") as run:  # launcher and ranks are killed at once
        run.until(lambda: run.steps > 5)
        os.killpg(run.process.pid, signal.SIGKILL)
    until_gone(out)
    before = run.steps

    with running(out, *words, "--layout", "tp=1,pp=1,dp=2") as run:  # on SIGTERM it writes a checkpoint
        run.until(lambda: run.steps > before)
        run.process.terminate()
        stderr = run.end(Exit.STOPPED)
    before = run.steps
    newest = out / "checkpoints" / f"step-{before}"
    stopped = f"stopped by SIGTERM; its checkpoint is {newest}; the same command"
    assert any(line.startswith(stopped) for line in stderr.splitlines())
    assert not ranks_of(out)

    words = (*words, "--layout", "tp=1,pp=2,dp=2")
    with running(out, *words, "--max-restarts", 0) as run:  # one rank is killed: the job ends and names it
        run.until(lambda: run.steps > before)
        os.kill(min(ranks_of(out)), signal.SIGKILL)
        last = run.end(1).strip().splitlines()[-1]
    assert last.startswith("cli.py: rank ")
    assert "was killed by SIGKILL; its log is" in last
    assert not ranks_of(out)
    assert min(steps_of(out)[before:]) == before + 1, "it resumed where it was stopped"

    with running(out, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4, *words) as run:
        assert "at step 0" not in run.end(), "it resumed"
    with running(out, *words) as run:
        assert run.end().splitlines()[-1].split(",", 1)[0] == f"already trained {STEPS} steps"
    assert_undisturbed(out, recipe, data)
    progress = Checkpoint.open(out / "checkpoints" / f"step-{STEPS}").progress
    assert (progress.step, progress.layout.model_dump()) == (STEPS, {"tp": 1, "pp": 2, "dp": 2})
    assert (read_summary(out)["steps"], read_summary(out)["skipped"]) == (STEPS, 0)
    assert any(events.stat().st_size for events in (out / "tensorboard").iterdir())
    assert len(list((out / "checkpoints").iterdir())) == recipe.train.keep
