"""Tasks that are done and whole are skipped, all others run, and workers end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import echo_tasks as tasks
import pytest

from mtnlg_data.console import Failure
from mtnlg_data.engine import Local, StageFolder, checksum, lock_folder, manifest_path, run_tasks

if TYPE_CHECKING:
    from mtnlg_data.engine import Summary


def ran(folder: Path) -> list[str]:
    return sorted((folder / "log").read_text().split())


@pytest.mark.parametrize("workers", [1, 2])
def test_summaries_follow_task_order_and_second_run_is_idle(
    tmp_path: Path,
    workers: int,
) -> None:
    with closing(Local(workers)) as engine:
        for _ in range(2):
            summaries = run_tasks(engine, tasks.tasks_in(tmp_path, "cab"), "echo")
            assert [summary["word"] for summary in summaries] == ["c", "a", "b"]
    assert ran(tmp_path) == ["a", "b", "c"]


def test_freed_memory_is_returned_to_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 MB in small pieces glibc would keep all that lies below the piece that is still in use."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def scatter(word: str, output: Path) -> Summary:
        pieces = [bytes(1000) for _ in range(100_000)]
        stays.append(pieces[-1])
        taken.append(resident())
        output.write_text(word)
        return {}

    stays: list[bytes] = []
    taken: list[int] = []
    monkeypatch.setattr(tasks, "echo", scatter)
    run_tasks(Local(1), tasks.tasks_in(tmp_path, "a"), "scatter")
    assert resident() < taken[0] - 80_000_000


def test_changed_key_checksum_or_manifest_reruns_a_task(tmp_path: Path) -> None:
    engine = Local(1)
    run_tasks(engine, tasks.tasks_in(tmp_path, "abcd"), "echo")
    (tmp_path / "log").unlink()
    (tmp_path / "1").write_bytes(b"flipped")
    manifest_path(tmp_path / "2").write_text("{")
    run_tasks(engine, tasks.tasks_in(tmp_path, "xbcd"), "echo")
    assert ran(tmp_path) == ["b", "c", "x"]
    assert (tmp_path / "1").read_bytes() == b"b"
    assert checksum(tmp_path / "1") != checksum(tmp_path / "2")


@pytest.mark.parametrize(
    ("task", "cause"), [("die_at_b", r"out of memory\?"), ("crash_at_b", ".* crashed, as printed above")]
)
def test_killed_worker_is_one_line_and_the_run_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], task: str, cause: str
) -> None:
    with closing(Local(2)) as engine:
        with pytest.raises(Failure, match=rf"a worker died \({cause}\) at one of .*1"):
            run_tasks(engine, tasks.tasks_in(tmp_path, "abc", task), "echo")
        assert ("in die_at_b" in capfd.readouterr().err) == (task == "crash_at_b")
        run_tasks(engine, tasks.tasks_in(tmp_path, "abc"), "echo")
    assert {"a", "b", "c"} <= set(ran(tmp_path))


UNGUARDED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from echo_tasks import tasks_in
from mtnlg_data.engine import Local, run_tasks
run_tasks(Local(2), tasks_in(Path(sys.argv[2]), "abc"), "echo")
"""


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    words = [sys.executable, str(script), str(Path(__file__).parent), str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    line = ended.stderr.strip().splitlines()[-1]
    assert line.endswith(
        "script.py: its workers import this script and would start its work again; "
        'put its code under: if __name__ == "__main__":'
    )
    assert "bootstrapping" not in ended.stderr


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("function", "error", "line"),
    [
        ("fill_the_disk", OSError, r"No space left on device: .*/0'$"),
        ("panic", Failure, r"/0: a library gave up on it: a$"),
    ],
)
def test_full_disk_or_panic_is_one_line_that_names_the_file(
    tmp_path: Path, function: str, error: type[Exception], line: str, workers: int
) -> None:
    with closing(Local(workers)) as engine, pytest.raises(error, match=line):
        run_tasks(engine, tasks.tasks_in(tmp_path, "a", function), "echo")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_at_once_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, str(tasks.__file__), str(tmp_path)]
    # The workers inherit the write end of this pipe, so it reads as closed only once all of them are gone.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        while not all((tmp_path / name).exists() for name in "01"):
            assert parent.poll() is None
        parent.send_signal(how)
        parent.communicate(timeout=60)
    assert parent.returncode != 0


@pytest.mark.parametrize("relative", [False, True])
def test_only_partial_files_of_our_own_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    """A user's hidden .tmp files below --out are not ours, whoever left them; nor are those of another run's folder."""
    ours = [".a.parquet.0123abcd.tmp", "sub/.b.json.ffffffff.tmp"]
    others = [".notes.tmp", "sub/.other.12.tmp", "run/.a.parquet.0123abcd.tmp", "run/sub/.b.json.ffffffff.tmp"]
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/.c.json.ffffffff.tmp").touch()
    (tmp_path / "outside" / ".lock").touch()
    for folder in ("sub", "run/sub", "sub/.folder.ffffffff.tmp"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "run/.lock").touch()
    (tmp_path / "link").symlink_to("outside")
    for name in (*ours, *others):
        (tmp_path / name).touch()
    others += ["outside/.c.json.ffffffff.tmp", "sub/.folder.ffffffff.tmp"]
    monkeypatch.chdir(tmp_path.parent)
    with lock_folder(Path(tmp_path.name) if relative else tmp_path):
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob(".*.tmp")) == sorted(others)


def test_partial_files_of_dead_workers_go_when_the_stage_is_done(tmp_path: Path) -> None:
    stage = StageFolder(tmp_path, "echo", Local(1))
    (tmp_path / ".a.parquet.0123abcd.tmp").touch()
    stage.finish({})
    assert not list(tmp_path.rglob(".*.tmp"))


def test_symlinked_lock_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.lock").symlink_to(target)
    with (
        pytest.raises(Failure, match=r"\.lock: not a regular file, or a link; remove it"),
        lock_folder(tmp_path / "out"),
    ):
        pass
    assert target.read_text() == "precious"


def test_odd_manifest_is_a_one_line_error(tmp_path: Path) -> None:
    (task,) = tasks.tasks_in(tmp_path, "a")
    os.mkfifo(manifest_path(task.output))
    with pytest.raises(Failure, match=r"0\.json: not a regular file"):
        run_tasks(Local(1), [task], "echo")
    manifest_path(task.output).unlink()
    manifest_path(task.output).symlink_to("/dev/zero")
    with pytest.raises(Failure, match=r"0\.json: not a regular file"):
        run_tasks(Local(1), [task], "echo")
