"""Commands on the folder of a run, or with --out: what they cannot use is one line, and nothing is written there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from mtnlg_data import cli as data_cli
from mtnlg_data.console import run
from mtnlg_parallel import cli as parallel_cli
from training.conftest import make_data

if TYPE_CHECKING:
    from pathlib import Path

STEPS = ("clean", "decontaminate", "dedup", "exact", "extract", "filter", "score", "tokenize")
APPS = {"mtnlg-parallel": parallel_cli.app, "mtnlg-data": data_cli.app}
WITHOUT = {"mtnlg-parallel": {"layout", "plan", "build-kernels", "conform"}, "mtnlg-data": {"plan"}}
"""Commands without such a folder."""

OF_RUNS = {
    "mtnlg-parallel": {"restart": "PLACE", "status": "PLACE", "rollback": "PLACE --to step-1"},
    "mtnlg-data": {"inspect": "PLACE", "why": "PLACE id", "report": "PLACE", "export": "PLACE --out HERE/exported"},
}
WRITING = {
    "mtnlg-parallel": {"train": "HERE/train.toml --data HERE/DATA --out PLACE --device cpu"},
    "mtnlg-data": {"run": "HERE/data.toml --input HERE/DATA --out PLACE", "export": "HERE/DATA --out PLACE"}
    | {"fetch": "file://HERE/DATA/in.jsonl --out PLACE", "step": "clean HERE/DATA --out PLACE"}
    | dict.fromkeys(STEPS, "HERE/DATA --out PLACE"),
}
"""With paths of data that may be wrong."""

NO_RUN = "place: no run: it has no recipe.toml of a training run; give the --out of mtnlg-parallel train"


def failed_command(  # noqa: PLR0917  (fixtures)
    package: str,
    command: tuple[str, str],
    data: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a command that must fail, and leave all files as they are, prints."""
    words = " ".join(command).replace("PLACE", f"{here}/place").replace("HERE", str(here)).replace("DATA", data)
    monkeypatch.setattr(sys, "argv", [package, "--quiet", *words.split()])
    before = {path: path.is_file() and path.read_bytes() for path in here.rglob("*")}
    with pytest.raises(SystemExit) as stop:
        run(APPS[package])
    assert stop.value.code
    assert {path: path.is_file() and path.read_bytes() for path in here.rglob("*")} == before
    return capsys.readouterr().err


CASES = [(package, words) for table in (OF_RUNS, WRITING) for package in table for words in table[package].items()]
WITH_DATA = {"train", "run", "fetch", "clean"}
"""Commands whose data exist where --out is a file."""


@pytest.mark.parametrize("place", ["file", "other", "missing", "read-only"])
@pytest.mark.parametrize(("package", "command"), CASES, ids=lambda value: value if isinstance(value, str) else value[0])
def test_folder_that_is_no_run_is_left_as_it_is(  # noqa: PLR0917  (fixtures)
    package: str,
    command: tuple[str, str],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also by a command with --out whose input does not exist."""
    recipes(tmp_path)
    if place == "file":
        (tmp_path / "place").write_text("mine")
    elif place != "missing":
        (tmp_path / "place").mkdir()
        (tmp_path / "place" / "notes.txt").write_text("mine")
        (tmp_path / "place").chmod(0o555 if place == "read-only" else 0o755)
    has_data = place == "file" and command[0] in WITH_DATA
    line = failed_command(package, command, "data" if has_data else "nowhere", tmp_path, monkeypatch, capsys)
    assert line.count("\n") == 1
    assert str(tmp_path) in line or command[0] in line
    if has_data:
        assert f"{tmp_path / 'place'}: not a folder; give another --out" in line
    if command[0] in OF_RUNS["mtnlg-parallel"]:
        assert NO_RUN in line


@pytest.mark.parametrize(
    "files", [("recipe.toml", "summary.json"), ("summary.json",), ("checkpoints/mine/w", "logs/n")]
)
@pytest.mark.parametrize("command", [*OF_RUNS["mtnlg-parallel"], "train", "train --no-resume"])
def test_files_that_no_training_wrote_are_kept(
    command: str,
    files: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such as those of a curation, of one of its stages, or of a user."""
    recipes(tmp_path)
    for path in (tmp_path / "place" / file for file in files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[sources.one]\n")
    words = OF_RUNS["mtnlg-parallel"].get(command) or WRITING["mtnlg-parallel"]["train"]
    line = failed_command("mtnlg-parallel", (command, words), "data", tmp_path, monkeypatch, capsys)
    assert line.count("\n") == 1
    assert f"{tmp_path / 'place'}: holds " in line if "train" in command else NO_RUN in line


def recipes(folder: Path) -> None:
    """Write the smallest recipes, and their data."""
    source = 'kind = "jsonl"\npaths = ["in.jsonl"]\nweight = 1.0\n'
    (folder / "data.toml").write_text(f"[sources.one]\n{source}[tokenize]\nvocabulary = 300\n")
    model, train = "preset = 'tiny'\nsequence = 8\n", "samples = 8\nbatch = 8\nlr = 1e-3\n"
    (folder / "train.toml").write_text(f"[model]\n{model}[train]\n{train}")
    (folder / "data").mkdir()
    make_data(folder / "data", seed=1)
    (folder / "data" / "in.jsonl").write_text('{"text": "words"}\n')


def test_every_command_is_walked() -> None:
    for package, app in APPS.items():
        walked = {*OF_RUNS[package], *WRITING[package], *WITHOUT[package]}
        assert {*get_command(app).commands} == walked  # type: ignore[attr-defined]  # (a group)
