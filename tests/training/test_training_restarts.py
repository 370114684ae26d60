"""Nobody restarts a run: ranks that are killed or told to stop start again, locally and under torchrun's agents."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.statuses import Exit
from training.reference_loop import FP32, recipe_of, reference_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")

STEPS = 60
CLI = ["-m", "mtnlg_parallel.cli", "train"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "5"]


class Run:
    """A command that trains `recipe` into ``out``, in a process group of its own."""

    def __init__(self, command: list[str], out: Path) -> None:
        self.out = out
        self.lines: list[str] = []
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0)

    @property
    def steps(self) -> int:
        """The last step recorded."""
        return max((step["step"] for step in read_steps(self.out)), default=0)

    @property
    def failures(self) -> list[int]:
        """Statuses of the failures recorded."""
        return [event["status"] for event in read_events(self.out) if event["event"] == "failed"]

    def until_trained(self, failures: int) -> None:
        """Wait until so many failures are recorded, and five new steps after them."""
        self.until(lambda: len(self.failures) == failures)
        before = self.steps
        self.until(lambda: self.steps > before + 5)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, some minutes at most."""
        for _ in range(5000):
            if condition():
                return
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        pytest.fail(f"ended with {self.process.returncode} at step {self.steps}: {self.process.communicate()[1]}")

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        variables = {child: Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children}
        return next(int(child) for child, found in variables.items() if f"RANK={number}".encode() in found)

    def end(self) -> str:
        """Wait for the run's end, and return what it printed."""
        _, stderr = self.process.communicate(timeout=240)
        assert self.process.returncode == 0, stderr
        return stderr


@contextmanager
def running(out: Path, *command: object) -> Iterator[Run]:
    run = Run([sys.executable, *map(str, command)], out)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.communicate()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    recipe = recipe_of((1, 1, 2), samples=8 * STEPS, ramp=None, checkpoint_every=4)
    (tmp_path / "train.toml").write_text(dump(recipe))
    return recipe


def assert_undisturbed(out: Path, recipe: Recipe, data: Path) -> None:
    """Every step is there once, with the loss of a run without failures."""
    reference, _ = reference_run(recipe, data)
    steps = list(read_steps(out))
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for step, expected in zip(steps, reference, strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], rel=FP32)


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
    assert "a rank was told to stop, and all stopped; restarting" in printed
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


def test_torchrun_restarts_after_a_kill_or_stop(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running(out, *TORCHRUN, *CLI, tmp_path / "train.toml", "--data", data, "--out", out) as run:
        run.until_trained(failures=0)
        os.kill(run.rank(1), signal.SIGKILL)
        run.until_trained(failures=1)
        os.kill(run.rank(0), signal.SIGTERM)
        run.end()
        assert run.failures == [-signal.SIGKILL, Exit.STOPPED]
    assert_undisturbed(out, recipe, data)


def test_torchrun_stop_is_not_a_success(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*TORCHRUN, *CLI, tmp_path / "train.toml", "--data", data, "--out", out]
    with running(out, *command) as run:
        run.until_trained(failures=0)
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
