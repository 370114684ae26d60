from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
from mtnlg_model.console import Failure, UsageFailure, application, output, print_json, print_text, run, say
from pathlib import Path
from rich.table import Table
import errno, json
class PanicException(BaseException):
    pass
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
    if how in {"ENAMETOOLONG", "ELOOP"}:
        raise OSError(getattr(errno, how), "as it says", "a/b")
    if how == "absent":
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "out/blend.json")
    if how == "damage":
        raise OSError("not a gzipped file")
    if how == "steer":
        raise Failure("x.pt: \\x1b[2J\\u202e: a tensor that this decoder does not have")
    if how == "lines":
        raise Failure("x\\nmtnlg-model: all is well")
    if how == "deep":
        json.loads("[" * 100_000)
    if how == "panic":
        raise PanicException("index out of bounds")
    if how == "bug":
        {}["absent"]
    if how == "interrupt":
        raise KeyboardInterrupt
@app.command()
def take(out: str = "", prompt: str = "") -> None:
    say(f"out = {out!r}, prompt = {prompt!r}")
@app.command()
def show(text: str) -> None:
    say(text)
    print_json({text: text})
    table = Table(text)
    table.add_row(text)
    console = output()
    console.print(table)
    console.rule(text)
    console.print(text, style="bold")
    print_text(text)
    Path("written").mkdir()
    Path("written/file").touch()
run(app)
"""


def command(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.run(program, capture_output=True, text=True, check=False, cwd=folder)


def on_a_terminal(*words: str, folder: Path) -> str:
    """What the command writes on a terminal."""
    terminal, its_end = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=its_end, stderr=its_end, cwd=folder):
        os.close(its_end)
        written = b""
        with suppress(OSError):  # the end of a terminal whose other end is closed
            while block := os.read(terminal, 1 << 16):
                written += block
    os.close(terminal)
    return written.decode()


@pytest.mark.parametrize(
    ("how", "status", "line"),
    [
        ("failure", 1, "data/x.bin: no such store; run mtnlg-data first"),
        ("usage", 2, "recipe.toml: tp = 3 does not divide heads = 16"),
        ("disk", 74, "out/tokens.bin: No space left on device"),
        ("ENAMETOOLONG", 1, "a/b: as it says"),
        ("ELOOP", 1, "a/b: as it says"),
        ("steer", 1, r"x.pt: \x1b[2J\u202e: a tensor that this decoder does not have"),
        ("lines", 1, r"x\nmtnlg-model: all is well"),
        ("deep", 1, "internal error: nested too deeply to be read"),
        ("panic", 1, "internal error: a library gave up on it: index out of bounds"),
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


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize(("how", "status"), [("disk", 74), ("failure", 1), ("interrupt", 130), ("well", 0)])
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_log_on_a_full_disk_changes_no_status(how: str, status: int, debug: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = subprocess.run([sys.executable, "-c", PROGRAM, "end", how, *debug], stderr=full, check=False)
    os.close(full)
    assert done.returncode == status


@pytest.mark.parametrize(("words", "status"), [(("show", "x"), 0), (("--help",), 0), (("end", "failure"), 1)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_no_status(words: tuple[str, ...], status: int, closed: str, tmp_path: Path) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == status
    assert "internal error" not in done.stderr
    assert (tmp_path / "written" / "file").exists() == ("show" in words)


@pytest.mark.parametrize("words", [("show", "x"), ("show", "x" * (1 << 16)), ("--help",)])
def test_a_pipe_without_reader_ends_a_command_as_sigpipe_does(words: tuple[str, ...], tmp_path: Path) -> None:
    end, its_end = os.pipe()
    os.close(end)
    program = [sys.executable, "-c", PROGRAM, *words, "--quiet"]
    done = subprocess.run(program, stdout=its_end, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    os.close(its_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_stdout_cannot_encode_are_escaped(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    text = "\u202f\u2026\U0001f600"
    shown = command("show", text, "--quiet", folder=tmp_path).stdout
    assert json.loads(shown[: shown.index("}") + 1]) == {text: text}
    assert shown.endswith(r"\u202f\u2026\U0001f600")


def test_debug_option_works_in_any_position() -> None:
    assert "Traceback" in command("end", "bug", "--debug").stderr
    assert "Traceback" in command("--debug", "end", "bug").stderr


def test_quiet_suppresses_messages() -> None:
    assert "working" in command("end", "well").stderr
    assert "working" not in command("end", "well", "--quiet").stderr


def test_a_wrong_command_line_is_status_two() -> None:
    assert command("nonsense").returncode == 2
    assert command("end").returncode == 2


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("take", "--out", ""), 2, "--out: the value is empty"),
        (("take", "--out="), 2, "--out: the value is empty"),
        (("show", ""), 2, "an argument is empty"),
        (("take", "--prompt", ""), 0, "out = '', prompt = ''"),
        (("take", "--prompt=", "--out=a=b"), 0, "out = 'a=b', prompt = ''"),
    ],
)
def test_an_empty_value_as_of_an_unset_variable_is_refused(words: tuple[str, ...], status: int, said: str) -> None:
    done = command(*words)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


HOSTILE = "[red]a[/red] :smile: \x1b]52;c;eA==\x07 \x1b]0;title\x07 \x1b[2J \x9b2J \x7f \r \u202e"
"""Markup, an emoji code, and controls: clipboard, title, clear, one-byte CSI, delete, return, reversed text."""


def test_nothing_that_data_holds_steers_the_terminal(tmp_path: Path) -> None:
    written = on_a_terminal("show", HOSTILE, folder=tmp_path)
    for sequence in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\x7f", "\u202e", "\x1b[31m"):
        assert sequence not in written
    assert "\r" not in written.replace("\r\n", "")
    assert written.count(":smile:") == written.count("[red]a[/red]") == 8
    assert command("show", "one\ntwo", folder=tmp_path).stderr.startswith("one\\ntwo\n")


def test_a_pipe_gets_texts_as_they_are_and_the_same_json(tmp_path: Path) -> None:
    done = command("show", HOSTILE, "--quiet", folder=tmp_path)
    assert json.loads(done.stdout[: done.stdout.index("}") + 1]) == {HOSTILE: HOSTILE}
    assert done.stdout.endswith(HOSTILE.replace("\r", "\n"))  # text mode reads a return as a line's end


def test_traceback_escapes_control_characters() -> None:
    shown = command("end", "steer", "--debug").stderr
    assert "Traceback" in shown
    assert "\x1b" not in shown


def test_output_is_unreadable_to_others(tmp_path: Path) -> None:
    command("show", "x", folder=tmp_path)
    assert (tmp_path / "written").stat().st_mode & 0o027 == 0
    assert (tmp_path / "written" / "file").stat().st_mode & 0o027 == 0
