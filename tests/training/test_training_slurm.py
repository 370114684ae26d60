"""A run as a job of a real one-node Slurm on this machine: signalled, it is requeued and resumes to its end."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtnlg_model.settings import dump
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import read_summary
from training.reference_loop import FP32, recipe_of, reference_run

SCRIPT = Path(__file__).with_name("start_slurm.sh")
STEPS = 30


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"no Slurm: needs {', '.join(missing) or 'its daemons'} (Debian: slurm-wlm, munge) and root")
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    try:
        subprocess.run([str(SCRIPT), str(folder), "start"], check=True)
        yield
    finally:
        subprocess.run([str(SCRIPT), str(folder), "stop"], check=True)


def until(condition: Callable[[], object], log: Path) -> None:
    """Wait for the condition, three minutes at most."""
    deadline = time.monotonic() + 180
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text() for path in log.parent.glob("slurm-*.log"))
            pytest.fail(f"the condition did not come true: {logs}")
        queued()  # takes long enough not to poll too often


def queued() -> str:
    """The jobs that are pending, running or completing."""
    squeue = [shutil.which("squeue") or "", "--noheader"]
    return subprocess.run(squeue, capture_output=True, text=True, check=False).stdout


@pytest.mark.usefixtures("slurm")
def test_a_job_that_is_signalled_is_requeued_and_resumes_to_its_end(data: Path, tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "train.toml"
    recipe = recipe_of((1, 1, 2), samples=8 * STEPS, ramp=None)
    path.write_text(dump(recipe))
    words = [str(path), "--data", str(data), "--out", str(out), "--launcher", "slurm", "--sbatch=--time=10"]
    command = [sys.executable, "-m", "mtnlg_parallel.cli", "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job = done.stderr.split(" as job ")[1].split(";")[0]

    until(lambda: len(list(read_steps(out))) >= 3, out / "slurm.log")
    # As Slurm does before the time limit.
    subprocess.run([shutil.which("scancel") or "", "--signal=USR1", job], check=True)
    until((out / "summary.json").exists, out / "slurm.log")
    until(lambda: not queued(), out / "slurm.log")

    log = (out / f"slurm-{job}.log").read_text()
    assert "stopped by SIGUSR1; its checkpoint is" in log
    assert log.count("rank 0 (tp 0, pp 0, dp 0) holds") == 2, "started, and resumed"
    assert log.count("; at step 0") == 2, "by both ranks"
    steps = list(read_steps(out))
    assert (len(steps), read_summary(out)["steps"]) == (STEPS, STEPS)
    reference, _, _ = reference_run(recipe, data)
    for step, expected in zip(steps, reference, strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], rel=FP32)
