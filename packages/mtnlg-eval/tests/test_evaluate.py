"""The package's function: the same evaluation as the command's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mtnlg_eval
from mtnlg_model.console import Failure, UsageFailure

if TYPE_CHECKING:
    from mtnlg_model.checkpoint.reader import Checkpoint

ROWS = Path(__file__).parent / "rows"


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
