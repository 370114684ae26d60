"""The package's function: the same evaluation as the command's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mtnlg_eval
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_model.console import Failure, UsageFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_model.checkpoint.reader import Checkpoint

ROWS = Path(__file__).parent / "rows"


def test_evaluate_scores_as_the_command_does(
    run: Callable[..., int], checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", checkpoint.directory, "--data", ROWS, "--out", tmp_path / "command"]
    assert run(*words, "--tasks", "wic,race_h", "--shots", "0,2", "--limit", "2", "--style", "gpt3") == 0
    monkeypatch.setattr(sys, "argv", ["script.py"])
    out = tmp_path / "function"
    summary = mtnlg_eval.evaluate(
        checkpoint.directory, out, tasks=("wic", "race_h"), shots=("0", "2"), data=ROWS, limit=2, style="gpt3"
    )
    ours, theirs = (ResultFolder(folder) for folder in (out, tmp_path / "command"))
    assert len(ours.results()) == 4
    for result, expected in zip(ours.results(), theirs.results(), strict=True):
        assert result.model_copy(update={"provenance": expected.provenance}) == expected
        assert result.provenance.command == "mtnlg_eval.evaluate"
        assert ours.samples(result).read_bytes() == theirs.samples(expected).read_bytes()
        score = summary["tasks"][result.task][result.shots.asked]
        assert (score["value"], score["results"]) == (result.score, [result.name])


def test_wrong_arguments_are_refused_before_anything_is_written(checkpoint: Checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UsageFailure, match="--tasks: no task nonesuch"):
        mtnlg_eval.evaluate(checkpoint.directory, out, tasks=["nonesuch"])
    with pytest.raises(UsageFailure, match="'-1' is neither a number of examples up to 9,999 nor few"):
        mtnlg_eval.evaluate(checkpoint.directory, out, shots=["-1"])
    with pytest.raises(UsageFailure, match="pass different numbers"):
        mtnlg_eval.evaluate(checkpoint.directory, out, seeds=[1, 1])
    with pytest.raises(UsageFailure, match="use them with --tasks hans"):
        mtnlg_eval.evaluate(checkpoint.directory, out, shot_labels="negative")
    with pytest.raises(Failure, match="nowhere: no such folder"):
        mtnlg_eval.evaluate(checkpoint.directory, out, data=tmp_path / "nowhere")
    assert not out.exists()
