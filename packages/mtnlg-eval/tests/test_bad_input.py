"""Bad input through the command: every error is one line with its location, other tasks go on, the exit status is 1."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers

from mtnlg_eval import cli
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_huggingface

if TYPE_CHECKING:
    from mtnlg_model.checkpoint.reader import Checkpoint

ROWS = Path(__file__).parent / "rows"


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mtnlg-eval", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")


def changed(file: Path, **values: Any) -> str:  # noqa: ANN401
    """The first row of a file with some values changed."""
    return json.dumps(json.loads(file.read_text(encoding="utf-8").splitlines()[0]) | values)


def test_each_kind_of_bad_row_is_named_and_the_other_tasks_go_on(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    reasons = {
        "boolq": f"{boolq}:3: not JSON: ",
        "anli_r2": f'{anli}:4: label = "perhaps": unknown label; use one of ',
        "hellaswag": f"{scenes}:3: endings.2 is empty",
        "hans": f"{data / 'hans'}: no such folder",
        "piqa": "tokens to score do not fit the model's context",
    }
    tasks = [*reasons, "wic"]
    words = ("--data", data, "--tasks", ",".join(tasks), "--shots", "0", "--out", tmp_path / "eval")
    assert run(monkeypatch, "run", checkpoint.directory, *words) == 1
    *lines, last = (line for line in capsys.readouterr().err.splitlines() if ": " in line)
    assert len(lines) == len(reasons)
    for task, why in reasons.items():
        assert any(line.startswith(f"{task}: not run: ") and why in line for line in lines)
    assert last == "mtnlg-eval: 5 of 6 tasks are missing: " + ", ".join(reasons)
    results = json.loads((tmp_path / "eval" / "results.json").read_bytes())
    assert {score["task"] for score in results["scores"].values()} == {"wic"}
    assert [gap["task"] for gap in results["not_run"]] == sorted(reasons)


def test_a_checkpoint_with_another_vocabulary_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("export", 1) as advance:
        export_huggingface(checkpoint, tmp_path / "gpt2", advance)
    larger = tokenizers.Tokenizer.from_file(str(tmp_path / "gpt2" / "tokenizer.json"))
    larger.add_tokens([f"word{n}" for n in range(13)])
    larger.save(str(tmp_path / "gpt2" / "tokenizer.json"))
    words = ("--data", ROWS, "--tasks", "wic", "--shots", "0", "--out", tmp_path / "eval")
    assert run(monkeypatch, "run", tmp_path / "gpt2", *words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the tokenizer has 513 tokens and the model 512: they do not belong together" in line
    assert not (tmp_path / "eval" / "results").exists()


def test_a_result_that_is_cut_short_is_written_again(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--data", ROWS, "--tasks", "wic", "--shots", "0", "--out", tmp_path)
    assert run(monkeypatch, "run", checkpoint.directory, *words) == 0
    (path,) = (tmp_path / "results").iterdir()
    whole = json.loads(path.read_bytes())
    path.write_text('{"version": 1, "tas')
    assert run(monkeypatch, "run", checkpoint.directory, *words) == 0
    assert json.loads(path.read_bytes()) | {"provenance": 0} == whole | {"provenance": 0}
