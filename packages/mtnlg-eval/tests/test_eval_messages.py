"""What the command says where it cannot go on, and that it says nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from mtnlg_model.checkpoint.reader import Checkpoint

    Outside = Callable[..., subprocess.CompletedProcess[str]]
    Run = Callable[..., int]
    Write = Callable[..., Path]

OURS = Path(__file__).parent / "rows"


def test_a_layout_without_the_parallel_engine_says_what_to_install(
    run: Run,
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("mtnlg_eval.scoring.open_model.find_spec", lambda _: None)
    assert run("run", checkpoint.directory, "--data", OURS, "--out", tmp_path, "--layout", "tp=2,pp=1,dp=1") == 2
    assert "pip install 'mtnlg-eval[parallel]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--tasks", "boolq,squad"), 2, "no task squad; choose from lambada, race_h"),
        (("--tasks", ","), 2, "names no task"),
        (("--shots", "0,some"), 2, "'some' is neither a number of examples nor few"),
        (("--shots", "-1"), 2, "'-1' is neither"),
        (("--limit", "0"), 2, ""),
        (("--data", "nowhere"), 1, "nowhere: no such folder"),
    ],
)
def test_a_wrong_command_line_is_told_before_anything_is_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, words: tuple[str, str], status: int, message: str
) -> None:
    assert run("run", tmp_path / "no-checkpoint", "--out", tmp_path / "eval", *words) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "eval").exists()


def test_nothing_of_lm_eval_is_heard(outside: Outside, checkpoint: Checkpoint, tmp_path: Path) -> None:
    words = ("run", checkpoint.directory, "--data", OURS, "--out", tmp_path / "eval", "--tasks", "race_h,lambada")
    process = outside(words, tmp_path)
    assert process.returncode == 0
    assert all(line.startswith("scoring: ") for line in process.stderr.splitlines()), process.stderr


def test_without_rows_and_network_one_line_says_so(outside: Outside, checkpoint: Checkpoint, tmp_path: Path) -> None:
    process = outside(
        ("run", checkpoint.directory, "--out", tmp_path / "eval"), tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert "lambada: the rows cannot be fetched: " in process.stderr
    assert "pass a folder with --data DIR" in process.stderr


def test_help_waits_for_nothing_slow(outside: Outside, tmp_path: Path) -> None:
    slow = "{'torch', 'lm_eval', 'datasets', 'matplotlib', 'mtnlg_eval.report'} & set(sys.modules)"
    process = outside((), tmp_path, f"import sys; from mtnlg_eval import cli; sys.exit(len({slow}))")
    assert process.returncode == 0, process.stderr
