"""What the command says where something cannot work, before it starts anything; and what it shows without training."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mtnlg_model.console import run
from mtnlg_model.settings import dump
from mtnlg_parallel.cli import app
from training.plain import recipe_of


class Said(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def ended(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["mtnlg-parallel", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            run(app)
        return Said(int(stop.value.code or 0), *capsys.readouterr())

    return ended


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "train.toml"
    path.write_text(dump(recipe_of((1, 2, 1))))
    return path


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--layout", "tp=3"], 2, "layout.tp = 3 does not divide model.heads = 2; use 1 or 2"),
        (["--layout", "tp=2", "--set", "model.sequence=9"], 2, "use 1, or train.sequence_parallel = false"),
        (["--set", "train.leraning=1"], 2, "unknown key"),
        (["--set", "model.vocabulary=32"], 1, "set model.vocabulary to 64 or more"),
        (["--set", "model.sequence=100000", "--force"], 1, "fewer than one sample"),
        (["--profile", "3"], 2, "--profile 3: write the first step and the last, such as 10:12"),
        (
            ["--launcher", "slurm", "--ranks-a-node", "3", "--layout", "tp=2,dp=2,pp=1"],
            2,
            "does not divide the 4 ranks",
        ),
        (["--dry-run", "--rank", "2"], 2, "--rank 2: layout tp=1,pp=2,dp=1 has ranks 0 to 1"),
    ],
)
def test_what_cannot_work_ends_before_any_rank_starts(  # noqa: PLR0917  (three parameters and four fixtures)
    command: Command, recipe: Path, data: Path, tmp_path: Path, words: list[str], status: int, said: str
) -> None:
    done = command("train", recipe, "--data", data, "--out", tmp_path / "out", *words)
    *_, line = done.err.strip().splitlines()
    assert (done.status, said in line) == (status, True), line
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_missing_data_and_a_missing_recipe_are_named(command: Command, recipe: Path, tmp_path: Path) -> None:
    done = command("train", recipe, "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert (done.status, "blend.json: No such file" in done.err) == (1, True), done.err
    done = command("layout", tmp_path / "none")
    assert (done.status, done.err) == (1, f"mtnlg-parallel: {tmp_path / 'none'}: no such recipe\n")
    done = command("train", recipe)
    assert (done.status, done.err) == (2, "mtnlg-parallel: train needs --data and --out, or --dry-run\n")


def test_the_run_of_another_recipe_is_not_gone_on_with(
    command: Command, recipe: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "recipe.toml").write_text(dump(recipe_of((1, 2, 1), lr=2e-2)))
    done = command("train", recipe, "--data", data, "--out", out)
    assert (done.status, "train.lr was 0.02 and is 0.01 now" in done.err) == (2, True), done.err


def test_the_layout_is_drawn_for_a_person_and_listed_for_a_machine(command: Command, recipe: Path) -> None:
    drawn = command("layout", recipe, "--layout", "tp=2,dp=2").out
    assert "tp=2,pp=2,dp=2: 8 ranks, 2 replicas of 4" in drawn
    assert "layers.1, final_norm, head" in drawn
    told = json.loads(command("layout", recipe, "--json").out)
    assert told["groups"] == {"tp": [[0], [1]], "dp": [[0], [1]], "pp": [[0, 1]]}
    assert [stage["parts"] for stage in told["stages"]] == [
        ["embedding", "layers.0"],
        ["layers.1", "final_norm", "head"],
    ]


def test_a_rank_is_shown_without_a_job(command: Command, recipe: Path) -> None:
    shown = command("train", recipe, "--dry-run", "--rank", "1").out
    assert "rank 1 of 2 (tp 0, pp 1, dp 0)" in shown
    assert "layers.1" in shown
    assert "layers.0" not in shown
