"""Nobody restarts a run: ranks that are killed or told to stop start again, locally and under torchrun's agents."""

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.statuses import Exit
from training.launched import CLI, assert_undisturbed, running
from training.reference_loop import recipe_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")

STEPS = 60
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "5"]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    recipe = recipe_of((1, 1, 2), samples=8 * STEPS, ramp=None, checkpoint_every=4)
    (tmp_path / "train.toml").write_text(dump(recipe))
    return recipe


def test_run_survives_killed_ranks_and_launcher(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*CLI, tmp_path / "train.toml", "--data", data, "--out", out, "--max-restarts", 2]
    with running(out, *command) as run:
        run.until_trained(failures=0)
        os.kill(run.rank(1), signal.SIGKILL)
        run.until_trained(failures=1)
        os.kill(run.rank(0), signal.SIGTERM)
        run.until_trained(failures=2)
        os.kill(run.process.pid, signal.SIGKILL)
        _, printed = run.process.communicate()
    assert "was killed by SIGKILL; its log is" in printed
    assert "a rank received a stop signal, and all stopped; restarting" in printed
    with running(out, *command) as run:
        run.end()
        assert run.failures == [-signal.SIGKILL, Exit.STOPPED]
    assert_undisturbed(out, recipe, data)


@pytest.mark.parametrize("ignored", [False, True], ids=["hang-up", "nohup"])
def test_hang_up_ends_a_run_with_a_checkpoint(recipe: Recipe, data: Path, tmp_path: Path, ignored: bool) -> None:
    out = tmp_path / "out"
    words = [sys.executable, *CLI, str(tmp_path / "train.toml"), "--data", str(data), "--out", str(out)]
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        os.execv(sys.executable, words)  # noqa: S606  (this interpreter)
    while max((step["step"] for step in read_steps(out)), default=0) < 5:
        os.read(terminal, 1 << 16)  # an error where the run has ended
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == (Exit.COMPLETE if ignored else Exit.STOPPED)
    assert (out / "summary.json").exists() == ignored
    reached = max(step["step"] for step in read_steps(out))
    assert latest(out / "checkpoints") == out / "checkpoints" / f"step-{reached}"
    with running(out, *words[1:]) as run:
        run.end()
    assert_undisturbed(out, recipe, data)


def test_torchrun_restarts_ranks_and_its_stop_is_no_success(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*TORCHRUN, *CLI, tmp_path / "train.toml", "--data", data, "--out", out]
    with running(out, *command) as run:
        run.until_trained(failures=0)
        os.kill(run.rank(1), signal.SIGKILL)
        run.until_trained(failures=1)
        os.kill(run.rank(0), signal.SIGTERM)
        run.until_trained(failures=2)
        assert run.failures == [-signal.SIGKILL, Exit.STOPPED]
        run.process.terminate()
        run.process.communicate(timeout=240)
        assert run.process.returncode != 0
    assert latest(out / "checkpoints") == out / "checkpoints" / f"step-{run.steps}"
    with running(out, *command) as run:
        run.end()
    assert_undisturbed(out, recipe, data)


def test_a_run_goes_on_with_fewer_ranks_and_with_all_again(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    """Each step has the samples of two ranks' steps, and their losses to fp32's rounding. Of three ranks one ends."""
    out = tmp_path / "out"
    command = ["--max-restarts", 0, *CLI, tmp_path / "train.toml", "--data", data, "--out", out, "--elastic"]
    for ranks, steps in ((3, 20), (1, 40), (2, STEPS)):
        words = ["--nproc-per-node", ranks, *command, "--set", f"train.samples={8 * steps}"]
        with running(out, *TORCHRUN[:3], *words) as run:
            run.end()
    layouts = [event["layout"] for event in read_events(out) if event["event"] == "start"]
    assert [layout.rpartition("dp")[2].strip(" =") for layout in layouts] == ["2", "1", "2"]
    assert_undisturbed(out, recipe, data)
