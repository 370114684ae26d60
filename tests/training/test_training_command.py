"""The train command's refusals before any rank starts, and what it shows without training."""

import json
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mtnlg_model.console import UsageFailure, run
from mtnlg_model.settings import dump
from mtnlg_parallel.cli import app
from mtnlg_parallel.initial import initial_weights
from mtnlg_parallel.launch import run as launch
from training.reference_loop import recipe_of
from training.test_training_documents import with_masks


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def invoke(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["mtnlg-parallel", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            run(app)
        return Result(int(stop.value.code or 0), *capsys.readouterr())

    return invoke


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "train.toml"
    path.write_text(dump(recipe_of((1, 2, 1))))
    return path


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("--layout tp=3", 2, "layout.tp = 3 does not divide model.heads = 2; use 1 or 2"),
        ("--layout tp=2 --set model.sequence=9", 2, "use 1, or train.sequence_parallel = false"),
        ("--set train.leraning=1", 2, "unknown key"),
        ("--set model.vocabulary=32", 1, "set model.vocabulary to 64 or more"),
        ("--set model.sequence=100000 --force", 1, "do not fill one sample"),
        ("--launcher slrum", 2, "for '--launcher': 'slrum' is not one of"),
        ("--profile 3", 2, "--profile 3: write the first step and the last, such as 10:12"),
        (
            "--launcher slurm --ranks-per-node 3 --layout tp=2,dp=2,pp=1",
            2,
            "does not divide the 4 ranks",
        ),
        ("--sbatch=--partition=batch", 2, "--sbatch and --dry-run need --launcher slurm"),
        ("--from /none", 2, "--from /none: no checkpoint; give a step-N folder"),
    ],
)
def test_impossible_run_is_refused_before_ranks_start(  # noqa: PLR0917  (three parameters, four fixtures)
    command: Command, recipe: Path, data: Path, tmp_path: Path, words: str, status: int, message: str
) -> None:
    result = command("train", recipe, "--data", data, "--out", tmp_path / "out", *words.split())
    *_, line = result.err.strip().splitlines()
    assert (result.status, message in line) == (status, True), line
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize("name", ["code.bin", "code.idx", "code.mask.bin"])
def test_a_damaged_token_store_is_refused_before_ranks_start(
    command: Command, recipe: Path, data: Path, tmp_path: Path, name: str
) -> None:
    """A byte of a token, a document's bound or a mask, changed in a copy of sound data."""
    copy = with_masks(data, tmp_path / "data", {"code": 0.5})
    damaged = copy / "tokens" / name
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    result = command("train", recipe, "--data", copy, "--out", tmp_path / "out")
    said = f"{damaged.with_suffix('.bin')}: damaged: its checksum is not that in blend.json; copy it again"
    assert (result.status, said in result.err) == (1, True), result.err
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_bf16_on_a_cpu_is_noted(  # noqa: PLR0917  (one parameter, five fixtures)
    command: Command, recipe: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(launch, "run_supervised", lambda *_: signal.SIGTERM)
    words = ("train", recipe, "--data", data, "--out", tmp_path / "out", "--set", f"train.precision={precision}")
    assert ('on a CPU "fp32" is several times as fast' in command(*words).err) == (precision == "bf16")


def test_missing_data_and_recipe_are_named(command: Command, recipe: Path, tmp_path: Path) -> None:
    result = command("layout", tmp_path / "none")
    assert (result.status, result.err) == (1, f"mtnlg-parallel: {tmp_path / 'none'}: no such recipe\n")
    result = command("train", recipe)
    assert (result.status, "Missing option '--data'" in result.err) == (2, True)


def test_layout_prints_a_table_or_json(command: Command, recipe: Path) -> None:
    table = command("layout", recipe, "--layout", "tp=2,dp=2").out
    assert "tp=2,pp=2,dp=2: 8 ranks, 2 replicas of 4" in table
    assert "layers.1, final_norm, head" in table
    facts = json.loads(command("layout", recipe, "--json").out)
    assert facts["groups"] == {"tp": [[0], [1]], "dp": [[0], [1]], "pp": [[0, 1]]}
    assert [stage["parts"] for stage in facts["stages"]] == [
        ["embedding", "layers.0"],
        ["layers.1", "final_norm", "head"],
    ]


def test_from_sets_initial_weights_once(tmp_path: Path) -> None:
    checkpoints, out = tmp_path / 'a "b"', tmp_path / "out"
    (checkpoints / "step-9").mkdir(parents=True)
    with pytest.raises(UsageFailure, match="no checkpoint; give a step-N folder"):
        initial_weights(checkpoints / "step-9", out)
    (checkpoints / "step-9" / "manifest.json").touch()
    override = initial_weights(checkpoints / "step-9", out)
    assert tomllib.loads(override) == {"train": {"initial": str(checkpoints / "step-9")}}
    with pytest.raises(UsageFailure, match=r"no checkpoint; its newest is .*step-9"):
        initial_weights(checkpoints, out / "none")
    shutil.copytree(checkpoints, out / "checkpoints")
    with pytest.raises(UsageFailure, match=r"no checkpoint; its newest is .*checkpoints/step-9"):
        initial_weights(out, out / "none")
    shutil.rmtree(checkpoints)
    assert initial_weights(checkpoints / "step-9", out) == override


def test_slurm_dry_run_prints_its_script(command: Command, recipe: Path, data: Path, tmp_path: Path) -> None:
    words = ("--data", data, "--out", tmp_path / "out", "--launcher", "slurm", "--max-restarts", 7, "--device", "cpu")
    script = command("train", recipe, *words, "--dry-run").out
    assert script.startswith("#!/bin/bash\n")
    assert "--max-restarts 7" in script
    assert "--device=cpu" in script
    assert not (tmp_path / "out").exists()
