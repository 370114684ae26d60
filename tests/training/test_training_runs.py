"""Whole runs of the command with the faults of a cluster: they end with the losses of an undisturbed run."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.settings import dump
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import read_summary
from mtnlg_parallel.statuses import Exit
from training.reference_loop import FP32, recipe_of, reference_run

STEPS = 40
MINUTES = 4 * 60


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "mtnlg_parallel.cli", "train", *map(str, words)]


@contextmanager
def training(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process group of its own, and kill what is left of it at the end."""
    with subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for the condition while the process runs, some minutes at most."""
    for _ in range(5000):
        if condition():
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"ended with {process.returncode} before the condition held: {process.communicate()[1]}")


def steps_of(out: Path) -> list[int]:
    return [step["step"] for step in read_steps(out)]


def has_passed(step: int, out: Path) -> Callable[[], bool]:
    return lambda: max(steps_of(out), default=0) > step


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
    words = (tmp_path / "train.toml", "--data", data, "--out", tmp_path / "out", "--device", "cpu")
    ranks = [
        subprocess.Popen(command(*words), env={**common, **dict.fromkeys(names, str(rank))}, stderr=subprocess.PIPE)
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
    words: tuple[object, ...] = (path, "--data", data, "--out", out)

    with training(*words, "--layout", "tp=2,pp=2,dp=1") as process:  # launcher and ranks are killed at once
        until(has_passed(5, out), process)
        os.killpg(process.pid, signal.SIGKILL)
    until_gone(out)
    before = max(steps_of(out))

    with training(*words, "--layout", "tp=1,pp=1,dp=2") as process:  # on SIGTERM it writes a checkpoint
        until(has_passed(before, out), process)
        process.terminate()
        _, stderr = process.communicate(timeout=MINUTES)
    before = max(steps_of(out))
    assert process.returncode == Exit.STOPPED, stderr
    newest = out / "checkpoints" / f"step-{before}"
    stopped = f"stopped by SIGTERM; its checkpoint is {newest}; the same command"
    assert any(line.startswith(stopped) for line in stderr.splitlines())
    assert not ranks_of(out)

    words = (*words, "--layout", "tp=1,pp=2,dp=2")
    with training(*words, "--max-restarts", 0) as process:  # one rank is killed: the job ends and names it
        until(has_passed(before, out), process)
        os.kill(min(ranks_of(out)), signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
    last = stderr.strip().splitlines()[-1]
    assert process.returncode == 1
    assert last.startswith("cli.py: rank ")
    assert "was killed by SIGKILL; its log is" in last
    assert not ranks_of(out)
    assert min(steps_of(out)[before:]) == before + 1, "it resumed where it was stopped"

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    line = [*torchrun, "-m", "mtnlg_parallel.cli", "train", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=MINUTES)
    assert done.returncode == 0, done.stderr
    assert "at step 0" not in done.stderr, "it resumed"
    again = subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=MINUTES)
    last = again.stderr.splitlines()[-1].split(",", 1)[0]
    assert (again.returncode, last) == (0, f"already trained {STEPS} steps")

    reference, _ = reference_run(recipe, data)
    steps = list(read_steps(out))
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step, expected in zip(steps, reference, strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], rel=FP32)
        assert step["grad_norm"] == pytest.approx(expected["grad_norm"], rel=FP32)
    progress = Checkpoint.open(out / "checkpoints" / f"step-{STEPS}").progress
    assert (progress.step, progress.layout.model_dump()) == (STEPS, {"tp": 1, "pp": 2, "dp": 2})
    assert (read_summary(out)["steps"], read_summary(out)["skipped"]) == (STEPS, 0)
    assert any(events.stat().st_size for events in (out / "tensorboard").iterdir())
    assert len(list((out / "checkpoints").iterdir())) == recipe.train.keep
