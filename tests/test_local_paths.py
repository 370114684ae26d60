"""Every path on the command lines of mtnlg-model, mtnlg-parallel and mtnlg-eval is local: a URL is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from mtnlg_eval.cli import app as evaluation
from mtnlg_model.cli import app as model
from mtnlg_model.console import UsageFailure
from mtnlg_model.local_paths import TEXTS
from mtnlg_parallel.cli import app as parallel

if TYPE_CHECKING:
    from typer import Typer


@pytest.mark.parametrize("app", [model, parallel, evaluation])
def test_a_url_is_refused_by_every_option_and_argument_of_every_command(app: Typer) -> None:
    group = get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        options = {param.opts[0] for param in command.params if not getattr(param, "is_flag", True)}
        options.add("--data")  # of `run`, which `watch` hands on
        for words in [["s3://b/r"], *([f"{option}=s3://b/r"] for option in options), *([o, "hf://b"] for o in options)]:
            if TEXTS & {word.partition("=")[0] for word in words}:
                group.make_context("mtnlg", [name, *words])
                continue
            with pytest.raises(UsageFailure, match="reads and writes local folders"):
                group.make_context("mtnlg", [name, *words])
