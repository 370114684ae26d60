"""``mtnlg-parallel plan``, as tests call it: words as they are typed, and what is not a text as one word."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mtnlg_model.console import Failure
from mtnlg_parallel.cli import app

PAPER = "mt-nlg-530b --cluster selene --layout tp=8,pp=35,dp=8"


def shipped_recipe(name: str) -> Path:
    """A recipe of the repository; skips the test where only the package is."""
    recipe = Path(__file__).parents[3] / "recipes" / name
    if not recipe.exists():
        pytest.skip("the recipes are not here")
    return recipe


def run_plan(*words: object) -> Result:
    typed = [word for each in words for word in (shlex.split(each) if isinstance(each, str) else [str(each)])]
    return CliRunner().invoke(app, ["plan", *typed], catch_exceptions=False)


def plan(*words: object) -> str:
    """What it prints."""
    result = run_plan(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def plan_json(*words: object) -> Any:  # noqa: ANN401  (JSON)
    """What it prints with --json."""
    return json.loads(plan(*words, "--json"))


def refusal(*words: object) -> str:
    """The one line with which it refuses."""
    with pytest.raises(Failure) as caught:
        run_plan(*words)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)
