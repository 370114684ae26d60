"""The example rows of help and README: readable as they stand, with no key that is not needed, and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from mtnlg_eval.results.checkpoint_table import print_checkpoints
from mtnlg_eval.results.compare import Cell
from mtnlg_eval.tasks.examples import EXAMPLES
from mtnlg_eval.tasks.published import TASKS
from mtnlg_eval.tasks.rows import ROWS
from mtnlg_eval.tasks.sources import open_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("task", ROWS)
def test_an_example_row_is_read_and_every_key_of_it_is_needed(task: str, tmp_path: Path) -> None:
    file = tmp_path / task / ("test/high/1.txt" if task == "race_h" else "test.jsonl")
    file.parent.mkdir(parents=True)
    file.write_text(EXAMPLES[task])
    assert len(open_rows(task, tmp_path).rows().scored) == 1
    row = json.loads(EXAMPLES[task])
    for key in row:
        with pytest.raises(ValidationError):
            ROWS[task].model_validate({name: value for name, value in row.items() if name != key})
    assert f"| `{task}` | `{EXAMPLES[task]}` |" in README.read_text(encoding="utf-8")


def test_the_help_shows_every_example_whole(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    run("run", "--help")
    text = "".join(capsys.readouterr().out.split())
    assert all("".join(f"{task}:{row}".split()) in text for task, row in EXAMPLES.items())


def test_checkpoint_table_marks_differences_in_80_columns(
    made: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answers = {"step-1000": "0" * 40, "step-2000": "1" * 40, "step-3000": "0" * 39 + "1"}
    print_checkpoints(
        {
            (name, task.name, "0"): Cell((made.result(task.name, "0", 0, correct),))
            for name, correct in answers.items()
            for task in TASKS
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(" step-")}
    assert rows == {
        "step-1000": ["0", *["0.0"] * 9],
        "step-2000": ["0", *["100*"] * 9],
        "step-3000": ["0", *["2.5"] * 9],
    }
