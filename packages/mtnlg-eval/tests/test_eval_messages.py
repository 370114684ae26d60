"""What the command says where it cannot go on, and that it says nothing else."""

from __future__ import annotations

import json
import os
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
        (("--shots", "0,some"), 2, "'some' is neither a number of examples up to 9,999 nor few; such as 0,1,few"),
        (("--shots", "-1"), 2, "'-1' is neither"),
        (("--shots", ""), 2, "'' is neither"),
        (("--shots", "01"), 2, "'01' is neither"),
        (("--shots", "10000"), 2, "'10000' is neither"),
        (("--shots", "9" * 5000), 2, "--shots: '99999999999999999999' is neither"),
        (("--limit", "0"), 2, ""),
        (("--limit", "1" + "0" * 30), 2, "'--limit': Input should be less than or equal to 1000000000"),
        (("--batch-tokens", "1" + "0" * 30), 2, "'--batch-tokens': Input should be less than or equal to 1000000000"),
        (("--seeds", "1" * 19), 2, "needs numbers, such as 1,2,3, of 18 digits at most"),
        (("--seeds", "9" * 5000), 2, "needs numbers, such as 1,2,3, of 18 digits at most"),
        (("--data", "nowhere"), 1, "nowhere: no such folder"),
    ],
)
def test_a_wrong_command_line_is_told_before_anything_is_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, words: tuple[str, str], status: int, message: str
) -> None:
    assert run("run", tmp_path / "no-checkpoint", "--out", tmp_path / "eval", *words) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("operators", "--shots", "100"), "--shots 100: operators take 0 to 99 examples, such as 1,2,4,8"),
        (("operators", "--shots", "few"), "--shots few: operators take 0 to 99 examples"),
        (("operators", "--shots", "9" * 5000), ": operators take 0 to 99 examples"),
        (("operators", "--problems", "1" + "0" * 30), "'--problems': Input should be less than or equal to 10000"),
        (("bias", "--samples", "1" + "0" * 30), "'--samples': Input should be less than or equal to 100000"),
    ],
)
def test_a_study_that_would_not_end_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    command, *options = words
    assert run(command, tmp_path / "no-checkpoint", "--out", tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err


def test_what_earlier_commands_scored_is_told_and_never_that_of_another_model(
    run: Run, write_checkpoint: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken_over(seed: int, *words: str) -> int:
        assert (
            run(
                "run",
                models[seed],
                "--data",
                OURS,
                "--out",
                tmp_path / "eval",
                "--tasks",
                "race_h,wic",
                "--json",
                *words,
            )
            == 0
        )
        output = capsys.readouterr()
        count = int(json.loads(output.out)["answers_taken_over"])
        line = f"{count:,} answers are of earlier commands, kept in {tmp_path / 'eval' / 'scores.sqlite'}"
        assert (line in output.err) == (count > 0)
        return count

    models = {seed: write_checkpoint(tmp_path / f"model-{seed}", seed) for seed in (1, 2)}
    assert taken_over(1, "--shots", "0") == 0
    everything = taken_over(1, "--shots", "0")
    assert everything > 0
    assert taken_over(2, "--shots", "0") == 0
    assert taken_over(1, "--shots", "1", "--tasks", "wic") == 0
    assert taken_over(1, "--shots", "0,2") >= everything


def test_texts_replace_a_file_and_nothing_else(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").touch()
    for out in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        assert run("texts", "--data", OURS, "--out", out) == 1
        assert f"{out}: not a regular file, or a link; name another" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


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
