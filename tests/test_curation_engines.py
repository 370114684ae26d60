"""Every engine gives the same bytes with any number of workers and tasks, also if they change during a run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import curations
from mtnlg_data.console import Failure
from mtnlg_data.engine import Claims, Local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from curations import Undisturbed
    from mtnlg_data.engine import Summary, U


def command(recipe: Path, out: Path, *options: str) -> list[str]:
    return [curations.COMMAND, "run", str(recipe), "--out", str(out), *options]


class Stopped(Exception):  # noqa: N818  (not an error)
    """Ends a run in this process as a kill would."""


class StopsAfter(Local):
    """One worker that stops after ``units`` units."""

    def __init__(self, units: int) -> None:
        super().__init__(1)
        self.left = units

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        for result in super().imap(function, units):
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


def test_a_task_of_an_array_whose_others_never_come_does_all(undisturbed: Undisturbed, tmp_path: Path) -> None:
    start_and_stop(undisturbed.recipe, tmp_path / "data")
    curations.run(undisturbed.recipe, tmp_path / "data", shard=(1, 3))
    assert curations.left_by(tmp_path / "data") == undisturbed.left


def test_the_tasks_of_an_array_share_the_work_and_one_that_dies_holds_up_nobody(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    words = [command(undisturbed.recipe, out, "--workers", "1", "--shard", f"{task}/2") for task in range(2)]
    one, other = (subprocess.Popen(task, stderr=subprocess.PIPE, text=True) for task in words)
    assert one.stderr is not None
    one.stderr.readline()  # printed when the first stage is done
    one.kill()
    _, stderr = one.communicate(timeout=120), other.communicate(timeout=120)[1]
    assert other.returncode == 0, stderr
    curations.run(undisturbed.recipe, out, shard=(0, 2))  # it returns, and finds all done
    curations.run(undisturbed.recipe, out)  # a lone run removes the partial files of the dead task
    assert curations.left_by(out) == undisturbed.left


#: Holds the shared lock of a folder's runs, as a task of another recipe does, until its stdin ends.
HOLD = """
import fcntl, sys
with open(sys.argv[1], "w+") as lock:
    lock.write("another key")
    lock.flush()
    fcntl.lockf(lock, fcntl.LOCK_SH, 1)
    print(flush=True)
    sys.stdin.read()
"""


def test_a_folder_where_another_run_works_is_refused(undisturbed: Undisturbed, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(Failure, match="another run is working here; wait for it, or give another --out"):
            curations.run(undisturbed.recipe, tmp_path)
        with pytest.raises(Failure, match="have another recipe, other input files or another version of mtnlg-data"):
            curations.run(undisturbed.recipe, tmp_path, shard=(0, 2))
        holder.communicate()
    assert not (tmp_path / "01-extract").exists()


#: Claims a unit until its stdin ends.
CLAIM = """
import pathlib, sys
from mtnlg_data.engine import Claims
out = pathlib.Path(sys.argv[1])
with (out / ".lock").open("a+b") as lock:
    print(Claims(lock, out).take(out / "unit"), flush=True)
    sys.stdin.read()
"""


def test_a_claim_keeps_others_from_one_unit_and_ends_with_its_owner(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with (
        (tmp_path / ".lock").open("a+b") as lock,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        claims = Claims(lock, tmp_path)
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not claims.take(tmp_path / "unit")
        assert claims.take(tmp_path / "another")
        other.kill()
        other.communicate()
        assert claims.take(tmp_path / "unit")
