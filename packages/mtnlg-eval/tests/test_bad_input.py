"""Bad input through the command: every error is one line with its location, other tasks go on, the exit status is 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mtnlg_eval
from mtnlg_model.console import Failure, UsageFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_model.checkpoint.reader import Checkpoint

ROWS = Path(__file__).parent / "rows"


def append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")


def changed(file: Path, **values: Any) -> str:  # noqa: ANN401
    """The first row of a file with some values changed."""
    return json.dumps(json.loads(file.read_text(encoding="utf-8").splitlines()[0]) | values)


def test_each_kind_of_bad_row_costs_that_row_and_is_named(
    run: Callable[..., int], checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows"
    shutil.copytree(ROWS, data, ignore=shutil.ignore_patterns("hans"))
    boolq, anli, scenes, ways = (
        data / file
        for file in ("boolq/val.jsonl", "anli_r2/test.jsonl", "hellaswag/hellaswag_val.jsonl", "piqa/valid.jsonl")
    )
    append(boolq, '{"question": "is it')
    append(anli, changed(anli, label="perhaps"))
    append(scenes, changed(scenes, endings=["a", "b", " ", "d"]))
    append(ways, changed(ways, sol1="word " * 400))
    append(data / "piqa/valid-labels.lst", "0")
    (data / "lambada/lambada_test.jsonl").write_text(json.dumps({"text": f"a {'word' * 400}"}))
    rows = {
        "boolq": f"row 2 is skipped: {boolq}:3: not JSON: ",
        "anli_r2": f'row 3 is skipped: {anli}:4: label = "perhaps": unknown label; use one of ',
        "hellaswag": f"row 2 is skipped: {scenes}:3: endings.2 is empty",
        "piqa 0": "tokens to score; a continuation has from 1 to 256",
        "lambada": "not run: no row of 1 can be scored; row 0: ",
    }
    words = ("--data", data, "--tasks", "boolq,anli_r2,hellaswag,hans,lambada,piqa,wic", "--shots", "0")
    assert run("run", checkpoint.directory, *words, "--out", tmp_path / "eval") == 1
    lines = capsys.readouterr().err.splitlines()
    for task, why in rows.items():
        assert any(line.startswith(f"{task}: ") and why in line for line in lines), (task, lines)
    assert f"hans: not run: {data / 'hans'}: no such folder" in "\n".join(lines)
    assert lines[-1] == "mtnlg-eval: 2 of 7 tasks are missing: hans, lambada"
    results = json.loads((tmp_path / "eval" / "results.json").read_bytes())
    scores = {score["task"]: score["rows"] for score in results["scores"].values()}
    assert {name: (len(each["failed"]), each["count"]) for name, each in scores.items()} == {
        "boolq": (1, 2), "anli_r2": (1, 3), "hellaswag": (1, 2), "piqa": (1, 2), "wic": (0, 2)
    }  # fmt: skip
    assert [gap["task"] for gap in results["not_run"]] == ["hans", "lambada"]


@pytest.mark.parametrize(
    ("words", "error", "line"),
    [
        ({"tasks": ["lambda"]}, UsageFailure, r"--tasks: no task lambda; did you mean lambada\?"),
        ({"shots": ["-1"]}, UsageFailure, "'-1' is neither a number of examples up to 9,999 nor few"),
        ({"seeds": [1, 1]}, UsageFailure, "pass different numbers"),
        ({"data": Path("nowhere")}, Failure, "nowhere: no such folder"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    words: dict[str, Any], error: type[Failure], line: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(error, match=line):
        mtnlg_eval.evaluate(checkpoint.directory, tmp_path / "out", **words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["manifest.json", "recipe.toml", "stage.json"])
def test_results_stay_out_of_folders_of_other_commands(file: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(UsageFailure, match=f"{file} is of another command; give a folder for results"):
        mtnlg_eval.evaluate(checkpoint.directory, tmp_path, tasks=["boolq"])
    assert [path.name for path in tmp_path.iterdir()] == [file]
