"""Every rank goes on from the state that rank 0 names, and a checkpoint is all ranks' state of one step."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mtnlg_data.stream import open_stream
from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import UsageFailure
from mtnlg_model.functional import cross_entropy
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import prepare_run_dir
from mtnlg_parallel.training.samples import micro_batches, open_data
from training.conftest import make_data
from training.reference_loop import FP32, RunRanks, recipe_of

RECIPE: dict[str, Any] = {"ramp": None, "validation_every": 0, "samples": 8 * 10, "checkpoint_every": 4}


@pytest.fixture(scope="module")
def died(run_ranks: RunRanks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run left that died before step 10, with checkpoints of steps 4 and 8. Copy it."""
    out = tmp_path_factory.mktemp("died")
    recipe = recipe_of((1, 1, 2), **RECIPE)
    assert set(run_ranks("run_until_death", [recipe], data=data, outs=[out], die=10, fails=True)) == {"died"}
    return out


def test_ranks_resume_the_checkpoint_of_rank_0(run_ranks: RunRanks, data: Path, died: Path, tmp_path: Path) -> None:
    out = shutil.copytree(died, tmp_path / "out")
    before = list(read_steps(out))
    recipe = recipe_of((1, 1, 2), **RECIPE)
    ranks = run_ranks("run_until_death", [recipe], data=data, outs=[out], fault="stale listing", stale="step-4")
    assert [rank["resumed"] for rank in ranks] == [8, 8]
    steps = list(read_steps(out))
    assert [step["step"] for step in steps] == list(range(1, 11))
    assert [step["loss"] for step in steps[:9]] == [step["loss"] for step in before], "to the last bit"
    first, second = (event for event in read_events(out) if event["event"] == "resumed")
    assert (first["step"], first["source"], first["lost_steps"]) == (0, "initial", 0)
    assert (second["step"], second["source"], second["lost_steps"]) == (8, "disk", 1)
    assert second["lost_seconds"] == before[8]["seconds"]


def test_a_refusal_by_rank_0_ends_all_ranks_with_the_same_line(run_ranks: RunRanks, died: Path, tmp_path: Path) -> None:
    out = shutil.copytree(died, tmp_path / "out")
    make_data(tmp_path, seed=2)
    recipe = recipe_of((1, 1, 2), **RECIPE)
    errors = run_ranks("run_until_death", [recipe], data=tmp_path, outs=[out], fails=True)
    lines = [error.strip().splitlines()[-1].partition(": ")[2] for error in errors]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert f"{out / 'checkpoints' / 'step-8'}: trained on token stream" in lines[0]
    assert len(list(read_steps(out))) == 9, "nothing was cut off"


def test_a_rank_waits_for_files_that_appear_late_on_its_node(
    run_ranks: RunRanks, data: Path, died: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(died, tmp_path / "out")
    recipe, late = recipe_of((1, 1, 2), **RECIPE), tmp_path / "late"
    ranks = run_ranks("run_until_death", [recipe], data=data, outs=[out], fault="late files", late=late)
    assert [rank["resumed"] for rank in ranks] == [8, 8]
    shutil.rmtree(out / "checkpoints" / "step-10")
    (out / "checkpoints" / "step-8" / "rank-1.weights-0.safetensors").unlink()
    errors = run_ranks("run_until_death", [recipe], data=data, outs=[out], fault="never", fails=True)
    said = "rank-1.weights-0.safetensors: No such file or directory, for 0.1 s; if mtnlg-model verify"
    assert any(said in error and "remove step-8 to resume from step-4" in error for error in errors)


@pytest.mark.parametrize("kind", ["optimizer", "weights"])
def test_a_flipped_bit_of_a_checkpoint_ends_the_resumption(
    run_ranks: RunRanks, data: Path, died: Path, tmp_path: Path, kind: str
) -> None:
    out = shutil.copytree(died, tmp_path / "out")
    damaged = out / "checkpoints" / "step-8" / f"rank-1.{kind}-0.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    recipe = recipe_of((1, 1, 2), **RECIPE)
    errors = run_ranks("run_until_death", [recipe], data=data, outs=[out], fails=True)
    assert any(f"{damaged}: checksum differs" in error and "remove step-8 to resume" in error for error in errors)
    assert len(list(read_steps(out))) == 8, "nothing was trained"
    if kind == "weights":
        recipe = recipe_of((1, 1, 2), **RECIPE, initial=str(damaged.parent))
        errors = run_ranks("run_until_death", [recipe], data=data, outs=[tmp_path / "new"], fails=True)
        assert any(f"{damaged}: checksum differs" in error for error in errors)


@pytest.mark.parametrize("start", [0, 72])
def test_run_from_weights_begins_with_their_loss(
    run_ranks: RunRanks, data: Path, died: Path, tmp_path: Path, start: int
) -> None:
    """And with a new optimizer; killed and resumed it reads the samples behind."""
    newest = latest(died / "checkpoints")
    assert newest
    recipe = recipe_of((2, 1, 1), **RECIPE, initial=str(died / "checkpoints"), start_sample=start)
    halves, whole = tmp_path / "halves", tmp_path / "whole"
    run_ranks("run_until_death", [recipe], data=data, outs=[halves], die=10, fails=True)
    runs = [run_ranks("run_until_death", [recipe], data=data, outs=[out])[0] for out in (halves, whole)]
    assert [run["resumed"] for run in runs] == [8, 0]
    losses = [step["loss"] for step in read_steps(whole)]
    assert [step["loss"] for step in read_steps(halves)] == losses
    stream = open_stream(data / "tokens", 8)
    inputs, targets, *_ = next(micro_batches(stream, range(start, start + 8), 8, 1, 0))
    expected = cross_entropy(Checkpoint.open(newest).decoder()(inputs), targets).mean()
    assert losses[0] == pytest.approx(float(expected.detach()), rel=FP32)
    checkpoint = Checkpoint.open(whole / "checkpoints")
    assert (checkpoint.progress.samples, len(losses), checkpoint.optimizer_steps) == (80, 10, 10)
    assert checkpoint.progress.extra == {"start_sample": start}


def test_a_start_from_weights_says_where_they_stopped(
    data: Path, died: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [recipe_of(initial=str(died / "checkpoints"), start_sample=start) for start in (0, 64)]
    fingerprint = open_data(data, recipes[0]).fingerprint
    for recipe, again in zip(recipes, (True, False), strict=True):
        prepare_run_dir(tmp_path / str(again), recipe, fingerprint, resume=True)
        assert ("--set train.start_sample=64" in capsys.readouterr().err) == again


@pytest.mark.parametrize("deterministic", [False, True])
def test_ranks_use_deterministic_kernels_on_request(
    run_ranks: RunRanks, data: Path, tmp_path: Path, deterministic: bool
) -> None:
    """On a CPU that changes no loss; a run may change it when it resumes."""
    reference, out = tmp_path / "reference", tmp_path / "out"
    half, whole = (recipe_of((2, 1, 1), **RECIPE | {"samples": samples}) for samples in (32, 64))
    run_ranks("train", [whole, half], data=data, outs=[reference, out])
    recipe = recipe_of((2, 1, 1), **RECIPE | {"samples": 64}, deterministic=deterministic)
    for asked in run_ranks("started", [recipe], data=data, outs=[out]):
        assert asked == {
            "workspace": ":4096:8" if deterministic else None,
            "algorithms": deterministic,
            "warns": False,
            "cudnn": [deterministic, True],
            "cudnn_attention": not deterministic,
        }
    assert [step["loss"] for step in read_steps(out)] == [step["loss"] for step in read_steps(reference)]


def test_run_with_checkpoints_ignores_initial_weights(
    run_ranks: RunRanks, data: Path, died: Path, tmp_path: Path
) -> None:
    out, gone = shutil.copytree(died, tmp_path / "out"), tmp_path / "gone" / "step-9"
    began, moved = (
        recipe_of((1, 1, 2), **RECIPE, initial=str(tmp_path / name / "step-9")) for name in ("gone", "moved")
    )
    (out / "recipe.toml").write_text(dump(began))
    fingerprint = open_data(data, began).fingerprint
    for recipe in (began, moved, recipe_of((1, 1, 2), **RECIPE)):
        assert prepare_run_dir(out, recipe, fingerprint, resume=True).step == 8
        assert load_recipe(out / "recipe.toml") == began
    gone.mkdir(parents=True)
    with pytest.raises(UsageFailure, match=r"train\.initial .*gone.* and is .*moved"):
        prepare_run_dir(out, moved, fingerprint, resume=True)
    gone.rmdir()
    assert [rank["resumed"] for rank in run_ranks("run_until_death", [began], data=data, outs=[out])] == [8, 8]


def test_checkpoint_is_published_when_all_ranks_wrote(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of((1, 1, 2), **RECIPE | {"samples": 8 * 7})
    run_ranks("run_until_death", [recipe], data=data, outs=[tmp_path], fault="slow rank", behind=7)
    assert [step["step"] for step in read_steps(tmp_path)] == list(range(1, 8))
    for step in (4, 7):
        Checkpoint.open(tmp_path / "checkpoints" / f"step-{step}").verify()


def test_checkpoint_publishing_slower_than_patience_does_not_end_the_run(
    run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    recipe = recipe_of((1, 1, 2), guard={"patience": 2.0}, **RECIPE | {"samples": 8 * 6})
    run_ranks("run_until_death", [recipe], data=data, outs=[tmp_path], fault="slow publishing")
    assert [step["step"] for step in read_steps(tmp_path)] == list(range(1, 7))
    assert latest(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "step-6"


@pytest.mark.parametrize(("precision", "dp"), [("fp32", 2), ("bf16", 1)])
def test_late_copy_holds_its_own_step(run_ranks: RunRanks, data: Path, tmp_path: Path, precision: str, dp: int) -> None:
    recipe = recipe_of((1, 1, dp), **RECIPE | {"samples": 8 * 6}, precision=precision)
    checksums = []
    for fault in (None, "late copy"):
        out = tmp_path / str(fault)
        run_ranks("run_until_death", [recipe], data=data, outs=[out], fault=fault)
        manifest = json.loads((out / "checkpoints" / "step-4" / "manifest.json").read_text())
        checksums.append({name: file["checksum"] for name, file in manifest["files"].items()})
    assert checksums[0] == checksums[1]
