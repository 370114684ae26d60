"""The command ``mtnlg-data`` in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from mtnlg_data.cli import app


def invoke(*words: object) -> str:
    """What it prints; raises what it raises, and ``AssertionError`` where its status is not 0."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout
