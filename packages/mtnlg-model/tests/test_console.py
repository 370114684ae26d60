from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from mtnlg_model.console import Failure, UsageFailure, application, run, say
import errno
app = application("mtnlg-model", "A command.")
@app.command()
def end(how: str) -> None:
    say("working")
    if how == "failure":
        raise Failure("data/x.bin: no such store; run mtnlg-data first")
    if how == "usage":
        raise UsageFailure("recipe.toml: tp = 3 does not divide heads = 16")
    if how == "disk":
        raise OSError(errno.ENOSPC, "No space left on device", "out/tokens.bin")
    if how == "absent":
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "out/blend.json")
    if how == "damage":
        raise OSError("not a gzipped file")
    if how == "steer":
        raise Failure("x.pt: \\x1b[2J\\u202e: a tensor that this decoder does not have")
    if how == "bug":
        {}["absent"]
    if how == "interrupt":
        raise KeyboardInterrupt
@app.command()
def other() -> None:
    pass
run(app)
"""


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("how", "status", "line"),
    [
        ("failure", 1, "data/x.bin: no such store; run mtnlg-data first"),
        ("usage", 2, "recipe.toml: tp = 3 does not divide heads = 16"),
        ("disk", 74, "out/tokens.bin: No space left on device"),
        ("steer", 1, r"x.pt: \x1b[2J\u202e: a tensor that this decoder does not have"),
        ("absent", 1, "out/blend.json: No such file or directory"),
        ("damage", 1, "internal error: OSError: not a gzipped file"),
        ("bug", 1, "internal error: KeyError: 'absent' (--debug shows where)"),
        ("interrupt", 130, "interrupted; run the same command again to continue"),
        ("well", 0, ""),
    ],
)
def test_a_failure_is_one_line_and_the_right_status(how: str, status: int, line: str) -> None:
    done = command("end", how, "--quiet")
    assert done.returncode == status
    assert done.stderr.count("\n") == bool(line)
    assert line in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback_wherever_it_stands() -> None:
    assert "Traceback" in command("end", "bug", "--debug").stderr
    assert "Traceback" in command("--debug", "end", "bug").stderr


def test_quiet_leaves_out_what_is_said() -> None:
    assert "working" in command("end", "well").stderr
    assert "working" not in command("end", "well", "--quiet").stderr


def test_a_wrong_command_line_is_status_two() -> None:
    assert command("nonsense").returncode == 2
    assert command("end").returncode == 2
