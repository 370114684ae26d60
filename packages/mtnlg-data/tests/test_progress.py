"""Progress on a terminal: done of total, rate, time left."""

from __future__ import annotations

import io
import re
from itertools import count
from typing import TYPE_CHECKING

from mtnlg_data import console

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    """A stderr that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_bar_shows_count_rate_time_left_and_note(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    seconds = count(100)
    monkeypatch.setattr("mtnlg_data.console.time.monotonic", lambda: float(next(seconds)))
    with console.progress("clean", 8, "shards") as advance:
        for _ in range(8):
            advance(1, "3.5 MB/s")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).rpartition("clean")[2]
    assert re.search(r"8/8\s+shards\s+\d\.\d\d/s\s+\d:\d\d:\d\d\s+\d:\d\d:\d\d\s+3\.5 MB/s", shown), shown


def test_progress_lines_show_a_slow_rate_and_no_time_left_before_the_first_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = count(0, 50)
    monkeypatch.setattr("mtnlg_data.console.time.monotonic", lambda: float(next(seconds)))
    with console.progress("clean", 2, "shards") as advance:
        for units in (0, 1, 1):
            advance(units)
    assert capsys.readouterr().err.splitlines() == [
        "clean: 0/2 shards",
        "clean: 1/2 shards, 0.01/s, 100 s left",
        "clean: 2/2 shards, 0.01/s, 0 s left",
    ]
