"""The command: a run, whatever kills it, ends as if nothing had happened; and what it says where something is wrong."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mtnlg_model.checkpoint import Checkpoint
from mtnlg_parallel.metrics import read_steps
from mtnlg_parallel.recipe import load_recipe

STEPS = 30
RECIPE = f"""
[model]
layers = 2
hidden = 32
heads = 4
sequence = 16
vocabulary = 64
dropout = 0.0
attention_dropout = 0.0

[layout]
pp = 2

[train]
samples = {8 * STEPS}
batch = 8
micro_batch = 2
lr = 1e-2
decay = 800
precision = "fp32"
checkpoint_every = 4
validation_every = 10
validation_samples = 8
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "train.toml"
    path.write_text(RECIPE)
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "mtnlg_parallel.cli", *map(str, words)]


def finished(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=240)


def under_torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [*torchrun, "-m", "mtnlg_parallel.cli", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=240)


@contextmanager
def training(*words: object) -> Iterator[subprocess.Popen[str]]:
    """The command running in a process group of its own; whatever of it is left is killed in the end."""
    with subprocess.Popen(command("train", *words), stderr=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait while the process runs, at most some minutes."""
    for _ in range(5000):
        if condition():
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    pytest.fail(f"ended with {process.returncode} before it came so far: {process.communicate()[1]}")


def steps_of(out: Path) -> list[int]:
    return [step["step"] for step in read_steps(out)]


def ranks_of(out: Path) -> list[int]:
    """Process ids of the ranks that have ``out`` open as their log."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "fd" / "2").readlink().parent == out / "logs":
                found.append(int(entry.name))
        except OSError:  # it ended while we looked
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_a_run_killed_in_every_way_ends_as_an_untouched_one(
    recipe: Path, data: Path, world: Callable[..., list[Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = (recipe, "--data", data, "--out", out)

    with training(*words) as process:  # one rank is killed: the job ends, and says which
        until(lambda: len(steps_of(out)) >= 6, process)
        os.kill(min(ranks_of(out)), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    last = said.strip().splitlines()[-1]
    assert process.returncode == 1
    assert "was killed by SIGKILL; its log is" in last
    assert last.startswith("cli.py: rank ")
    assert not ranks_of(out)

    with training(*words) as process:  # the launcher alone is asked to end, while the ranks still start
        until(lambda: ranks_of(out), process)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.strip().splitlines()[-1].startswith("cli.py: stopped by SIGTERM; the same command goes on")
    assert not ranks_of(out)

    with training(*words) as process:  # everything is killed at once
        before = max(steps_of(out))
        until(lambda: max(steps_of(out), default=0) > before + 3, process)
        os.killpg(process.pid, signal.SIGKILL)
    until_gone(out)

    done = under_torchrun("train", *words)  # the same command joins whoever has started it
    assert done.returncode == 0, done.stderr
    assert "at step 0" not in done.stderr, "it went on"
    again = finished("train", *words)
    assert (again.returncode, again.stderr.split(",", 1)[0]) == (0, f"already trained {STEPS} steps")

    untouched = tmp_path / "untouched"
    world("train", [load_recipe(recipe)], data=data, outs=[untouched])
    assert steps_of(out) == list(range(1, STEPS + 1))
    for step, other in zip(read_steps(out), read_steps(untouched), strict=True):
        assert timeless(step) == timeless(other)
    ours, theirs = (Checkpoint.open(folder / "checkpoints" / f"step-{STEPS}") for folder in (out, untouched))
    assert ours.digest == theirs.digest
    assert ours.progress == theirs.progress
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["steps"], summary["layout"]) == (STEPS, {"tp": 1, "pp": 2, "dp": 1})
    assert any(events.stat().st_size for events in (out / "tensorboard").iterdir())
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"step-28", "step-30"}


def timeless(step: Mapping[str, Any]) -> dict[str, float]:
    """A step without what a clock measured."""
    return {key: value for key, value in step.items() if "second" not in key}


def until_gone(out: Path) -> None:
    """Wait for the kernel to reap what was killed."""
    for _ in count():
        if not ranks_of(out):
            return


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--layout", "tp=3"], 2, "layout.tp = 3 does not divide model.heads = 4; use 1, 2 or 4"),
        (["--set", "train.leraning=1"], 2, "unknown key"),
        (["--set", "model.vocabulary=32"], 1, "set model.vocabulary to 64 or more"),
        (["--set", "model.sequence=100000"], 1, "fewer than one sample"),
    ],
)
def test_what_cannot_work_ends_before_any_rank_starts(  # noqa: PLR0917  (three parameters and three fixtures)
    recipe: Path, data: Path, tmp_path: Path, words: list[str], status: int, said: str
) -> None:
    done = finished("train", recipe, "--data", data, "--out", tmp_path / "out", *words)
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, said in line) == (status, True), line
    assert not (tmp_path / "out").exists()


def test_missing_data_and_a_missing_recipe_are_named(recipe: Path, tmp_path: Path) -> None:
    done = finished("train", recipe, "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert (done.returncode, "blend.json: No such file" in done.stderr) == (1, True), done.stderr
    assert "internal error" not in done.stderr
    done = finished("layout", tmp_path / "none")
    assert (done.returncode, done.stderr) == (1, f"cli.py: {tmp_path / 'none'}: no such recipe\n")


def test_the_layout_is_drawn_for_a_person_and_listed_for_a_machine(recipe: Path) -> None:
    drawn = finished("layout", recipe, "--layout", "tp=2,dp=2").stdout
    assert "tp=2,pp=2,dp=2: 8 ranks, 2 replicas of 4" in drawn
    assert "layers.1, final_norm, head" in drawn
    told = json.loads(finished("layout", recipe, "--json").stdout)
    assert told["groups"] == {"tp": [[0], [1]], "dp": [[0], [1]], "pp": [[0, 1]]}
    assert [stage["parts"] for stage in told["stages"]] == [
        ["embedding", "layers.0"],
        ["layers.1", "final_norm", "head"],
    ]


def test_the_run_of_another_recipe_is_not_gone_on_with(recipe: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "recipe.toml").write_text(RECIPE.replace("lr = 1e-2", "lr = 1e-3"))
    done = finished("train", recipe, "--data", data, "--out", out)
    assert (done.returncode, "train.lr was 0.001 and is 0.01 now" in done.stderr) == (2, True), done.stderr
