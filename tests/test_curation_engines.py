"""Every engine gives the same bytes with any workers, also if they come, go and die during a run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import curations
from mtnlg_data.console import Failure
from mtnlg_data.engine import Local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from curations import Undisturbed
    from mtnlg_data.engine import Summary, Task


def command(recipe: Path, out: Path, *options: str) -> list[str]:
    return [curations.COMMAND, "run", str(recipe), "--out", str(out), *options]


class Stopped(Exception):  # noqa: N818  (not an error)
    """Ends a run in this process as a kill would."""


class StopsAfter(Local):
    """One worker that stops after so many tasks."""

    def __init__(self, tasks: int) -> None:
        super().__init__(1)
        self.left = tasks

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        for result in super().imap(tasks):
            if not self.left:
                raise Stopped
            self.left -= 1
            yield result


def start_and_stop(recipe: Path, out: Path) -> None:
    """Run the first units only."""
    with pytest.raises(Stopped):
        curations.run(recipe, out, StopsAfter(4))


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_another_engine_finishes_a_run_with_the_same_bytes(
    undisturbed: Undisturbed, tmp_path: Path, engine: str
) -> None:
    start_and_stop(undisturbed.recipe, tmp_path / "data")
    words = command(undisturbed.recipe, tmp_path / "data", "--engine", engine, "--workers", "2")
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert curations.left_by(tmp_path / "data") == undisturbed.left


#: Holds the lock of a folder, as another run does, until its stdin ends.
HOLD = """
import fcntl, sys
with open(sys.argv[1], "w+") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print(flush=True)
    sys.stdin.read()
"""


def test_a_folder_where_another_run_works_is_refused(undisturbed: Undisturbed, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Failure, match="another run is using this folder; wait for it, or give another --out"):
            curations.run(undisturbed.recipe, tmp_path)
        holder.communicate()
    assert not (tmp_path / "01-extract").exists()
