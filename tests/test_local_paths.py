"""Every path of mtnlg-model, mtnlg-parallel and mtnlg-eval is local: commands and functions refuse a URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from mtnlg_eval import evaluate
from mtnlg_eval.cli import app as evaluation
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_model import CheckpointWriter, export_huggingface, import_huggingface, publish, save
from mtnlg_model.cli import app as model
from mtnlg_model.console import UsageFailure
from mtnlg_model.local_paths import TEXTS
from mtnlg_parallel import train
from mtnlg_parallel.cli import app as parallel

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer import Typer

NONE: Any = None


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


@pytest.mark.parametrize(
    "function",
    [
        lambda path: CheckpointWriter(path, 1, "all"),
        lambda path: publish(path, 1, ["all"], NONE, NONE, "tokenizer.json"),
        lambda path: save(NONE, path, 1, NONE, "tokenizer.json"),
        lambda path: export_huggingface(NONE, path),
        lambda path: import_huggingface("hf", path),
        lambda path: train("train.toml", "data", path),
        lambda path: evaluate("checkpoint", path),
        lambda path: AnswerStore("model", path),
    ],
)
def test_a_url_is_refused_by_every_function_that_writes(
    function: Callable[[Path | str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("s3://b/r", Path("s3://b/r")):
        with pytest.raises(UsageFailure, match="reads and writes local folders"):
            function(path)
    assert not list(tmp_path.iterdir())
