"""The commands of all packages and their options and arguments, frozen in commands.txt, one line per command.

``UPDATE_GOLDENS=1 pytest test_commands.py`` writes the file anew, to be read in the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

from typer.main import get_command

from mtnlg_data.cli import app as data
from mtnlg_eval.cli import app as evaluation
from mtnlg_model.cli import app as model
from mtnlg_parallel.cli import app as parallel

FROZEN = Path(__file__).with_name("commands.txt")


def test_no_command_or_option_changes_unnoticed() -> None:
    lines = []
    for app in (data, model, parallel, evaluation):
        group = get_command(app)
        for name, command in {"": group, **group.commands}.items():  # type: ignore[attr-defined]  # of a group
            words = ("/".join([*each.opts, *each.secondary_opts]) for each in command.params)
            lines.append(" ".join([f"{app.info.name} {name}".strip() + ":", *sorted(words)]) + "\n")
    if os.environ.get("UPDATE_GOLDENS"):
        FROZEN.write_text("".join(lines), encoding="utf-8")
    assert lines == FROZEN.read_text(encoding="utf-8").splitlines(keepends=True)
