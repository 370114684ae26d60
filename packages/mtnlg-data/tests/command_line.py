"""The command ``mtnlg-data`` in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import error_line, error_status

if TYPE_CHECKING:
    from typer.testing import Result


#: Commands that process documents, with one worker unless a test says otherwise: this process.
STEPS = {"run", "step", "extract", "filter", "score", "clean", "dedup", "exact", "decontaminate", "tokenize"}


def command(*words: object, **options: Any) -> Result:  # noqa: ANN401  (click's)
    given = [*map(str, words)]
    if STEPS & {*given[:2]} and "--out" in given and "--workers" not in given:
        given += ["--workers", "1"]
    return CliRunner().invoke(app, given, **options)


def invoke(*words: object) -> str:
    """What it prints; raises what it raises, and ``AssertionError`` where its status is not 0."""
    done = command(*words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def outcome(*words: object) -> tuple[int, str]:
    """Its exit status, and what it prints or the line of its error."""
    done = command(*words)
    error = done.exception if isinstance(done.exception, Exception) else None
    return (done.exit_code, done.output) if error is None else (error_status(error), error_line(error))
