"""The example rows of help and README: readable as they stand, with no key that is not needed, and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from mtnlg_eval.tasks.examples import EXAMPLES
from mtnlg_eval.tasks.rows import ROWS
from mtnlg_eval.tasks.sources import open_rows

if TYPE_CHECKING:
    from collections.abc import Callable

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
