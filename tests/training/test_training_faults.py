"""Faults in the middle of a run: it continues or ends with the cause named, and loses nothing."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_parallel.record.metrics import read_steps
from training.reference_loop import RunRanks, assert_same_steps, recipe_of, reference_run

GUARD: dict[str, Any] = {"window": 5, "deviations": 20.0, "most_skips": 3, "patience": 3.0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bad_gradient_is_skipped_by_all_ranks(run_ranks: RunRanks, data: Path, tmp_path: Path, precision: str) -> None:
    recipe = recipe_of((1, 2, 2), guard=GUARD, precision=precision)
    faults = {"nan": [3, 9], "leap": [12]}
    steps = run_ranks("train", [recipe], data=data, outs=[tmp_path], faults=faults)[0][0]["steps"]
    assert {step["step"] for step in steps if "skipped" in step} == {3, 9, 12}
    assert [steps[n]["grad_norm"] for n in (2, 8)] == [None, None]
    assert "deviations above the last 5" in steps[11]["skip_reason"]
    checkpoint = latest(tmp_path / "checkpoints")
    assert checkpoint
    assert Checkpoint.open(checkpoint).optimizer_steps == len(steps) - 3
    if precision == "fp32":
        reference, _ = reference_run(recipe, data, skipped={3, 9, 12})
        taken = [n for n, step in enumerate(steps) if "skipped" not in step]
        assert_same_steps([steps[n] for n in taken], [reference[n] for n in taken])


def test_every_rank_judges_by_the_figures_of_one(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of((1, 2, 2), guard=GUARD, engine="deepspeed")
    ranks = run_ranks("train", [recipe], data=data, outs=[tmp_path], faults={"own_bits": True})
    assert all(rank[0]["judged"] == ranks[0][0]["judged"] for rank in ranks)
    assert ranks[0][0]["judged"][0] == [step["loss"] for step in read_steps(tmp_path)][-GUARD["window"] :]


@pytest.mark.parametrize(
    ("change", "skips"),
    [([], [7, 8, 10, 11, 13, 15]), ([{"at": 72, "guard": {"deviations": 0.0}}], [7, 8])],
)
def test_resumed_run_skips_the_same_steps(
    change: list[Any], skips: list[int], run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    """Its guard needs as many steps that were taken as its window holds, however many lie between."""
    leaps = {"leap": [7, 8, 10, 11, 13, 15]}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train: dict[str, Any] = {"ramp": None, "change": change}
    parts = [recipe_of((1, 1, 2), guard=GUARD, samples=samples, **train) for samples in (128, 112, 128)]
    run_ranks("train", parts, data=data, outs=[whole, halves, halves], faults=leaps)
    runs = [[(step["loss"], "skipped" in step) for step in read_steps(out)] for out in (whole, halves)]
    assert [number for number, (_, skipped) in enumerate(runs[0], 1) if skipped] == skips
    assert runs[1] == runs[0]


def test_seconds_cover_the_whole_step(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of((1, 1, 2), samples=48, ramp=None, validation_every=2, checkpoint_every=3)
    run_ranks("train", [recipe], data=data, outs=[tmp_path], faults={"clock": 100.0})
    steps = list(read_steps(tmp_path))
    for number, expected in {
        2: 100,
        3: 100,
        4: 100,
        5: 0,
        6: 200,
    }.items():  # 2, 4, 6 validate, 3 and 6 begin a checkpoint
        step = steps[number - 1]
        beside = step.get("validation_seconds", 0.0) + step.get("checkpoint_seconds", 0.0)
        assert [step["seconds"], beside] == pytest.approx([expected] * 2, abs=0.1)
        assert step["tokens_per_second"] == 8 * recipe.model.sequence / step["seconds"]


@pytest.mark.parametrize(("first", "good"), [(7, "step-6"), (1, None)])
def test_too_many_skips_name_the_checkpoint_from_before_them(
    run_ranks: RunRanks, data: Path, tmp_path: Path, first: int, good: str | None
) -> None:
    """Also where a newer one was written among them, no other is to be kept, and the command is run again."""
    recipe, checkpoints = recipe_of((1, 1, 2), guard=GUARD, checkpoint_every=2, keep=1), tmp_path / "checkpoints"
    faults = {"nan": list(range(first, 20))}
    for _ in range(2):
        for error in run_ranks("train", [recipe], data=data, outs=[tmp_path], faults=faults, fails=True):
            line = error.strip().splitlines()[-1]
            assert "guard.TooManySkips: " in line
            assert f"step {first + 2}: 3 steps in a row were skipped" in line
            if good:
                assert f"rollback {tmp_path} --to {good} --skip last" in line
                Checkpoint.open(checkpoints / good).verify()
            else:
                assert "no checkpoint is from before them" in line


def test_unreadable_validation_costs_only_validation(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "whole", tmp_path / "damaged"]
    recipe = recipe_of((1, 2, 2), samples=48, ramp=None, validation_every=3, checkpoint_every=3)
    whole = run_ranks("train", [recipe], data=data, outs=outs[:1])[0][0]["steps"]
    damaged = run_ranks("train", [recipe], data=data, outs=outs[1:], cannot_validate=3)[0][0]["steps"]
    assert [step["loss"] for step in damaged] == [step["loss"] for step in whole]
    for steps, key in ((whole, "validation_loss"), (damaged, "validation_error")):
        assert [step["step"] for step in steps if key in step] == [3, 6]
    assert damaged[2]["validation_error"] == "prose.bin: damaged"
    for out, losses in zip(outs, ([whole[n]["validation_loss"] for n in (2, 5)], [None, None]), strict=True):
        progress = [Checkpoint.open(out / "checkpoints" / f"step-{step}").progress for step in (3, 6)]
        assert [each.validation_loss for each in progress] == losses


@pytest.mark.parametrize(
    ("layout", "last", "waiting"),
    [
        ((1, 1, 2), "rank 1 (tp 0, pp 0, dp 1) is in data", 0),
        # Ranks 0 and 2 wait for 1 and 3; rank 1, which receives from it, for 3 alone.
        ((1, 2, 2), "rank 3 (tp 0, pp 1, dp 1) is in data", 2),
    ],
)
def test_rank_hanging_in_its_data_is_named(  # noqa: PLR0917  (two are what is expected)
    run_ranks: RunRanks, data: Path, tmp_path: Path, layout: tuple[int, int, int], last: str, waiting: int
) -> None:
    recipe = recipe_of(layout, guard=GUARD)
    errors = run_ranks("train", [recipe], data=data, outs=[tmp_path], faults={"hang": 4, "ahead": 3600}, fails=True)
    # A rank may notice that another has gone before it reads the line.
    lines = {re.sub(r"scatter \d+", "scatter N", error) for error in errors if not error.startswith("Traceback")}
    missed = f"has not entered reduce_scatter N, which ranks wait for: {waiting}"
    assert lines == {f"step 4 has not ended within 3 s: {last} and {missed}"}


def test_a_rank_that_stops_answering_is_named(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of((1, 1, 2), guard=GUARD)
    errors = run_ranks("train", [recipe], data=data, outs=[tmp_path], faults={"stop": 4}, fails=True)
    assert errors[0].startswith("rank 1 (tp 0, pp 0, dp 1) has answered nothing for")


def test_truncated_store_is_named_and_run_resumes(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(data, own)
    recipe = recipe_of((1, 1, 2), samples=2000, checkpoint_every=4, ramp=None, validation_every=0)
    file = own / "tokens" / "prose.bin"
    errors = run_ranks("train", [recipe], data=own, outs=[out], faults={"truncate": 6, "file": str(file)}, fails=True)
    assert any(str(file) in error and "Failure" in error for error in errors), errors
    shutil.copy(data / "tokens" / "prose.bin", file)
    assert_resumes(run_ranks, data, own, out)


def assert_resumes(run_ranks: RunRanks, data: Path, own: Path, out: Path) -> None:
    """The run resumes from the newest whole checkpoint, with the losses of a run without the fault."""
    checkpoint = latest(out / "checkpoints")
    assert checkpoint
    Checkpoint.open(checkpoint).verify()
    done = Checkpoint.open(checkpoint).progress.step
    recipe = recipe_of((1, 1, 2), samples=8 * (done + 4), ramp=None, validation_every=0)
    steps = run_ranks("train", [recipe], data=own, outs=[out])[0][0]["steps"]
    reference, _ = reference_run(recipe_of(samples=8 * (done + 4), ramp=None), data)
    assert_same_steps(steps, reference[done:])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system so small that one checkpoint fits and two do not."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or status_of("mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)):
        pytest.skip("only root can mount a file system of a few kilobytes")
    yield folder
    assert status_of("umount", "--lazy", str(folder)) == 0


def status_of(*command: str) -> int:
    return subprocess.run([*command], capture_output=True, check=False).returncode


def test_a_full_disk_while_checkpointing_loses_nothing(run_ranks: RunRanks, data: Path, small_disk: Path) -> None:
    out = small_disk / "out"
    recipe = recipe_of((1, 1, 2), samples=8 * 12, checkpoint_every=4, ramp=None, validation_every=0)
    errors = run_ranks("train", [recipe], data=data, outs=[out], fails=True)
    lines = [error.strip().splitlines()[-1] for error in errors]
    assert any("No space left on device" in line and "make room" in line for line in lines), lines
    assert latest(out / "checkpoints") == out / "checkpoints" / "step-4"
    assert not status_of("mount", "-o", "remount,size=4m", str(small_disk))
    assert_resumes(run_ranks, data, data, out)
    assert [step["step"] for step in read_steps(out)] == list(range(1, 9))
