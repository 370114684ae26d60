"""Copies of the state in memory: after lost processes or a lost node a run goes on from them, to the same losses."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps, truncate_after
from training.reference_loop import RunRanks, assert_same_steps, recipe_of

RECIPE: dict[str, Any] = {"ramp": None, "validation_every": 0, "samples": 8 * 10, "memory_checkpoint_every": 2}
LAYOUT = (1, 2, 2)


def nodes(folder: Path, count: int = 2) -> Path:
    """``folder`` with the memory of so many nodes in it."""
    for node in range(count):
        (folder / str(node)).mkdir(parents=True)
    return folder


def complete_in(memory: Path, step: int) -> list[str]:
    """Node and rank of the complete files of a copy."""
    paths = memory.glob(f"*/*/*/step-{step}.tmp/*.copy.json")
    return sorted(f"{path.relative_to(memory).parts[0]} {path.name}" for path in paths)


@pytest.fixture(scope="module")
def undisturbed(run_ranks: RunRanks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The steps of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("undisturbed")
    recipe = recipe_of(LAYOUT, **RECIPE | {"memory_checkpoint_every": 0})
    steps: list[Any] = run_ranks("run_until_death", [recipe], data=data, outs=[out])[0]["steps"]
    return steps


@pytest.fixture(scope="module")
def died(run_ranks: RunRanks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run on two nodes left that died before step 8: copies of step 6 in memory, nothing on disk."""
    out = tmp_path_factory.mktemp("died")
    memory = nodes(out / "memory")
    recipe = recipe_of(LAYOUT, **RECIPE)
    request = {"data": data, "outs": [out], "memory": memory, "per_node": 2, "die": 8}
    assert set(run_ranks("run_until_death", [recipe], **request, fails=True)) == {"died"}
    assert complete_in(memory, 6) == [f"{node} rank-{rank}.copy.json" for node in (0, 1) for rank in range(4)]
    shutil.copytree(out, out.with_suffix(".saved"))
    return out


def test_three_nodes_copy_in_a_circle(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """One pipeline stage each: the middle one has no share of the token table, and one process group less."""
    memory = nodes(tmp_path / "memory", 3)
    recipe = recipe_of((1, 3, 1), {"layers": 3}, **RECIPE)
    request = {"data": data, "outs": [tmp_path / "out"], "memory": memory, "per_node": 1, "die": 8}
    assert set(run_ranks("run_until_death", [recipe], **request, fails=True)) == {"died"}
    held = [f"{(rank + step) % 3} rank-{rank}.copy.json" for rank in range(3) for step in range(2)]
    assert complete_in(memory, 6) == sorted(held)


@pytest.fixture
def out(died: Path) -> Path:
    """The run that died, at the path by which its copies in memory are known."""
    shutil.rmtree(died)
    return shutil.copytree(died.with_suffix(".saved"), died)


@pytest.mark.parametrize(("layout", "per_node", "equal"), [(LAYOUT, 2, True), ((2, 1, 1), 1, False)])
def test_after_the_loss_of_a_node_a_run_goes_on_from_the_other_nodes_copies_in_any_layout(  # noqa: PLR0917
    run_ranks: RunRanks,
    data: Path,
    out: Path,
    undisturbed: list[Any],
    layout: tuple[int, int, int],
    per_node: int,
    equal: bool,
) -> None:
    memory = out / "memory"
    shutil.rmtree(next((memory / "1").iterdir()))
    recipe = recipe_of(layout, **RECIPE)
    ranks = run_ranks("run_until_death", [recipe], data=data, outs=[out], memory=memory, per_node=per_node)
    assert {rank["resumed"] for rank in ranks} == {6}
    steps: list[Any] = list(read_steps(out))
    keys = ("step", "samples", "loss", "grad_norm", "lr")
    assert_same_steps(steps, [{key: step[key] for key in keys} for step in undisturbed])
    if equal:
        assert [step["loss"] for step in steps] == [step["loss"] for step in undisturbed]
    resumed = [event for event in read_events(out) if event["event"] == "resumed"][-1]
    assert (resumed["step"], resumed["source"], resumed["lost_steps"]) == (6, "memory", 1)
    assert not [*(memory / "0").iterdir(), *(memory / "1").iterdir()], "a clean end removes the copies"
    Checkpoint.open(out / "checkpoints").verify()


def test_a_damaged_copy_ends_the_run_and_another_nodes_is_used_when_it_starts_again(
    run_ranks: RunRanks, data: Path, out: Path
) -> None:
    memory, recipe = out / "memory", recipe_of(LAYOUT, **RECIPE | {"samples": 8 * 7})
    request = {"data": data, "outs": [out], "memory": memory, "per_node": 2}
    (damaged,) = memory.glob("0/*/*/step-6.tmp/rank-0.weights-0.safetensors")
    damaged.write_bytes(damaged.read_bytes()[::-1])
    errors = run_ranks("run_until_death", [recipe], **request, fails=True)
    assert any(f"{damaged}: " in error and "this node's copies in memory are removed" in error for error in errors)
    assert {rank["resumed"] for rank in run_ranks("run_until_death", [recipe], **request)} == {6}


@pytest.mark.parametrize("lost", ["bytes", "metrics"])
def test_a_copy_is_not_used_where_files_or_the_steps_before_it_were_lost(
    run_ranks: RunRanks, data: Path, out: Path, undisturbed: list[Any], lost: str
) -> None:
    memory, recipe = out / "memory", recipe_of(LAYOUT, **RECIPE | {"samples": 8})
    if lost == "bytes":
        for path in memory.glob("*/*/*/*/rank-3.weights-0.safetensors"):
            os.truncate(path, path.stat().st_size - 1)
    else:  # written through a cache that the node took with it
        truncate_after(out, 5)
    ranks = run_ranks("run_until_death", [recipe], data=data, outs=[out], memory=memory, per_node=2)
    assert {rank["resumed"] for rank in ranks} == {0}
    assert ranks[0]["steps"][0]["loss"] == undisturbed[0]["loss"]


def test_a_full_memory_ends_the_copies_with_a_line_and_not_the_run(
    run_ranks: RunRanks, data: Path, tmp_path: Path, undisturbed: list[Any]
) -> None:
    memory, recipe = nodes(tmp_path / "memory"), recipe_of(LAYOUT, guard={"patience": 30.0}, **RECIPE)
    request = {"data": data, "outs": [tmp_path / "out"], "memory": memory, "per_node": 2}
    ranks = run_ranks("run_until_death", [recipe], **request, fault="full memory")
    assert [step["loss"] for step in read_steps(tmp_path / "out")] == [step["loss"] for step in undisturbed]
    reason = "no more copies in memory, training goes on without: [Errno 28] No space left on device"
    assert [rank["lines"] for rank in ranks] == [[], [f"rank 1: {reason}"], [f"rank 2: {reason}"], []]
