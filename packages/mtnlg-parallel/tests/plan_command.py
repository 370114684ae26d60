"""``mtnlg-parallel plan``, as tests call it."""

import pytest
from typer.testing import CliRunner

from mtnlg_model.console import Failure
from mtnlg_parallel.cli import app

PAPER = ("mt-nlg-530b", "--cluster", "selene", "--layout", "tp=8,pp=35,dp=8")


def plan(*words: object) -> str:
    """What it prints."""
    result = CliRunner().invoke(app, ["plan", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*words: object) -> str:
    """The one line with which it refuses."""
    with pytest.raises(Failure) as caught:
        CliRunner().invoke(app, ["plan", *map(str, words)], catch_exceptions=False)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)
