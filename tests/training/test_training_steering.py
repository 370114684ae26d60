"""A run whose settings change on the way is the run that was stopped there, edited and resumed."""

import re
import shutil
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from typer.testing import CliRunner

from mtnlg_model.checkpoint.manifest import latest, list_checkpoints
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.cli import app
from mtnlg_parallel.identity import IdentityError
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import prepare_run_dir
from mtnlg_parallel.training.samples import open_data
from training.conftest import make_data
from training.reference_loop import Json, RunRanks, assert_holds, assert_same_steps, recipe_of, reference_run

FROZEN = ["embedding.*", "layers.1.*.bias"]
BASE: Json = {"samples": 96, "ramp": None, "warmup": 8, "skip": [[4, 8], [60, 64]]}


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """Changes of everything that may change, at 24, 40 and 72 samples."""
    folder = tmp_path_factory.mktemp("anneal")
    make_data(folder, seed=2)
    return [
        {"at": 24, "lr": 4e-3, "min_lr": 0.0, "warmup": 20, "decay": 96, "decay_shape": "linear", "weight_decay": 0.3},
        {"at": 40, "batch": 16, "clip": 0.1, "data": str(folder), "skip": [[3, 5]]},
        {"at": 72, "data": "", "batch": 4},
    ]


SHARDED: Json = {"shard": "parameters"}
LAYOUTS: dict[str, list[tuple[tuple[int, ...], Json]]] = {
    "pipeline": [((1, 1, 2), SHARDED), ((2, 1, 1), {}), ((1, 2, 1), {}), ((1, 1, 1, 2), {})],
    "deepspeed": [((1, 1, 2), {}), ((1, 2, 1), {}), ((1, 1, 1), {}), ((1, 1, 2), {})],
}
"""Of the parts of a run; the first and the last skip samples."""


@pytest.mark.parametrize("engine", LAYOUTS)
def test_change_equals_stop_edit_and_resume(
    engine: str, changes: list[Json], run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    """To the last bit in one layout, and to fp32's rounding of the plain loop when each part has another one."""
    if engine == "pipeline":
        changes = [*changes[:1], {**changes[1], "frozen": FROZEN}, *changes[2:]]
    layout, train = LAYOUTS[engine][0]
    whole = recipe_of(layout, **BASE, **train, engine=engine, change=changes)
    steps = run_ranks("train", [whole], data=data, outs=[tmp_path / "whole"])[0][0]["steps"]
    ends = [0, 24, 40, 72, 96]
    for way in ("same", "other"):
        for number, (_, end) in enumerate(pairwise(ends)):
            layout, train = LAYOUTS[engine][number if way == "other" else 0]
            settings = {**BASE, **train, "samples": end, "engine": engine}
            part = recipe_of(layout, **settings, change=changes[:number])
            run_ranks("train", [part], data=data, outs=[tmp_path / way])
    found = {name: list[Json](map(dict, read_steps(tmp_path / name))) for name in ("whole", "same", "other")}
    keys = ("loss", "grad_norm", "lr", "batch_size")
    one, other = ([[step[key] for key in keys] for step in found[name]] for name in ("whole", "same"))
    assert one == other
    assert len({step["batch_size"] for step in steps}) == 3
    reference = reference_run(whole, data)
    assert_same_steps(found["other"], reference[0])
    assert_holds(latest(tmp_path / "other" / "checkpoints"), reference[1])
    streams = {Checkpoint.open(tmp_path / name / "checkpoints").progress.stream for name in ("whole", "same", "other")}
    assert len(streams) == 1


@pytest.mark.parametrize(
    ("layout", "train"),
    [
        ((2, 2, 1), {"precision": "bf16", "gradients": "bf16"}),
        ((1, 2, 1), {"precision": "bf16", "schedule": "zero-bubble"}),
        ((1, 1, 2), {"shard": "parameters", "precision": "bf16"}),
        ((2, 1, 2), {"shard": "gradients"}),
        ((1, 1, 1, 2), {}),
    ],
)
def test_frozen_parameters_keep_weights_and_moments(
    layout: tuple[int, ...], train: Json, run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    """To the last bit, from sample 24 to 40; all others change."""
    change = [{"at": 24, "frozen": FROZEN}, {"at": 40, "frozen": []}]
    settings = {**BASE, **train, "samples": 48, "change": change, "checkpoint_every": 1, "keep": 99}
    run_ranks("train", [recipe_of(layout, **settings)], data=data, outs=[tmp_path])
    steps = {step["samples"]: tmp_path / "checkpoints" / f"step-{step['step']}" for step in read_steps(tmp_path)}
    before, after, later = (Checkpoint.open(steps[samples]) for samples in (24, 40, 48))
    for name in before.config.parameter_shapes():
        frozen = any(fnmatchcase(name, pattern) for pattern in FROZEN)
        for slot in before.slots(name):
            one, other, end = (each.tensor(name, slot=slot) for each in (before, after, later))
            assert torch.equal(one, other) is frozen, (name, slot)
            assert not torch.equal(other, end), (name, slot)


def test_frozen_pattern_without_a_parameter_is_refused() -> None:
    for pattern, hint in (("embeding.token.weight", "did you mean embedding.token.weight?"), ("x", "write names")):
        with pytest.raises(ValidationError, match=re.escape(f'"{pattern}" matches no parameter; {hint}')):
            recipe_of(change=[{"at": 8, "frozen": ["layers.*", pattern]}])
    with pytest.raises(ValidationError, match="DeepSpeed trains every parameter"):
        recipe_of(engine="deepspeed", frozen=["layers.0.*"])


@pytest.mark.parametrize(
    ("edit", "differs"),
    [
        ({"lr": 5e-3}, "train.lr"),
        ({"skip": [[4, 8]]}, "train.skip"),
        ({"skip": [[60, 64]]}, "train.skip"),
        ({"change": [{"at": 8, "lr": 5e-3}]}, "train.change[0]"),
        ({"change": [{"at": 16, "lr": 5e-3}, {"at": 24, "lr": 1e-3}]}, ""),
        ({"skip": [[4, 8], [30, 32], [60, 64]]}, ""),
    ],
)
def test_recipes_that_agree_so_far_are_one_run(
    edit: Json, differs: str, stopped: Path, data: Path, tmp_path: Path
) -> None:
    """The run has been stopped after 16 samples."""
    out = shutil.copytree(stopped, tmp_path / "out")
    edited = recipe_of((1, 1, 1), **{**BASE, **edit})
    fingerprint = open_data(data, edited).fingerprint
    if not differs:
        assert prepare_run_dir(out, edited, fingerprint, resume=True).step == 2
        return
    with pytest.raises(IdentityError) as refused:
        prepare_run_dir(out, edited, fingerprint, resume=True)
    assert [found.key for found in refused.value.differences] == [differs]
    assert "at = 16" in str(refused.value) or differs == "train.skip"


@pytest.fixture(scope="module")
def stopped(run_ranks: RunRanks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 16 samples, of a recipe with more, with a checkpoint of each of its two steps."""
    out = tmp_path_factory.mktemp("stopped")
    run_ranks("train", [recipe_of((1, 1, 1), **{**BASE, "samples": 16}, checkpoint_every=1)], data=data, outs=[out])
    (out / "summary.json").unlink(missing_ok=True)
    return out


def test_keep_every_keeps_checkpoints_for_good(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of((1, 1, 1), **{**BASE, "samples": 64}, checkpoint_every=1, keep=2, keep_every=3)
    run_ranks("train", [recipe], data=data, outs=[tmp_path])
    assert [step for step, _ in list_checkpoints(tmp_path / "checkpoints")] == [3, 6, 7, 8]


def numbers(recipe: Recipe, samples: range) -> set[tuple[str, int]]:
    """Folder and number in it of these samples of a run."""
    parts = recipe.train.stream_parts
    places = (next(part for part in reversed(parts) if part.at <= sample) for sample in samples)
    return {(part.data, part.number(sample)) for part, sample in zip(places, samples, strict=True)}


@pytest.mark.parametrize(
    ("crosses", "skips"),
    [(False, [((4, 8), (20, 52))]), (True, [((4, 8), (20, 36)), ((0, 19),), (), ()])],
    ids=["one stream", "changes of folder and skips"],
)
def test_rollback_trains_on_without_the_samples_it_skips(  # noqa: PLR0917  (fixtures)
    crosses: bool, skips: list[object], changes: list[Json], run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    """As a run does that never read them. The recipe that would read them again is refused."""
    anneal = {"at": 24, "data": changes[1]["data"], "skip": [[3, 5]]}
    change = [anneal, {"at": 32, "skip": [[9, 11]]}, {"at": 40, "data": ""}] if crosses else []
    settings = {**BASE, "samples": 48, "skip": [[4, 8]], "change": change}
    recipe = recipe_of((1, 1, 2), **settings, checkpoint_every=1)
    run_ranks("train", [recipe], data=data, outs=[tmp_path / "out"])
    command = ["rollback", str(tmp_path / "out"), "--to", "step-2", "--skip", "LAST"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "same command" not in done.output
    written = load_recipe(tmp_path / "out" / "recipe.toml")
    assert [written.train.skip, *(change.skip for change in written.train.change)] == skips
    assert numbers(written, range(16)) == numbers(recipe, range(16))
    assert not numbers(written, range(200)) & numbers(recipe, range(16, 48))
    with pytest.raises(IdentityError, match="skips samples"):
        prepare_run_dir(tmp_path / "out", recipe, open_data(data, recipe).fingerprint, resume=True)
    longer = written.model_copy(update={"train": written.train.model_copy(update={"samples": 80})})
    run_ranks("train", [longer, longer], data=data, outs=[tmp_path / "out", tmp_path / "whole"])
    losses = [[step["loss"] for step in read_steps(tmp_path / name)] for name in ("out", "whole")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 10


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--to step-9", "no checkpoint step-9; there are steps 1, 2"),
        ("--to newest", "--to newest: write step-N"),
        ("--to step-2 --skip last", "samples 16 to 16"),
    ],
)
def test_rollback_refuses_what_the_run_does_not_have(words: str, line: str, stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    with pytest.raises(UsageFailure, match=re.escape(line)):
        CliRunner().invoke(app, ["rollback", str(out), *words.split()], catch_exceptions=False)
