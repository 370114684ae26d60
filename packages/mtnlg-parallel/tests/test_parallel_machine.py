"""Cores and memory of this machine within the quotas of its cgroups; paths that are none of this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from mtnlg_model.console import run
from mtnlg_parallel.cli import app
from mtnlg_parallel.statuses import Exit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "words",
    [
        "train recipes/quickstart --data DIR --out s3://bucket/run",
        "train recipes/quickstart --data=gs://bucket/data --out DIR",
        "status s3://bucket/run",
        "restart hf://datasets/x/run",
        "plan mt-nlg-530b --cluster selene --nodes 280 --html https://host/plan.html",
    ],
)
def test_a_url_is_refused_by_every_command_in_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mtnlg-parallel", *words.split()])
    with pytest.raises(SystemExit) as stop:
        run(app)
    assert stop.value.code == Exit.USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
