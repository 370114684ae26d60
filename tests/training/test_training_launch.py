"""The launcher and the ranks that it starts, these played by a few lines of Python."""

import signal
import sys
from pathlib import Path

import pytest

from mtnlg_model.console import Failure
from mtnlg_parallel.launch import local
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.training.run_dir import Start

BEGINNING = Start(step=0, samples=0, steps=10, complete=False)


def play(out: Path, *acts: str) -> int:
    """Start ranks of which number N does the N-th of ``acts``."""
    out.mkdir(exist_ok=True)
    (out / "metrics.jsonl").touch()
    lines = [f"if os.environ['RANK'] == '{rank}':\n    {act}" for rank, act in enumerate(acts)]
    code = "\n".join(["import os, signal, sys", "waiting = signal.pause", *lines])
    return local.run_local(Layout(dp=len(acts)), [sys.executable, "-c", code], out, BEGINNING)


def test_a_rank_that_is_killed_ends_the_job_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^rank 1 \(tp 0, pp 0, dp 1\) was killed by SIGKILL; its log is .*rank-1.log"):
        play(tmp_path, "waiting()", "os.kill(os.getpid(), signal.SIGKILL)", "waiting()")


def test_the_culprit_is_named_not_who_only_lost_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^rank 1 \(.*\) ended with status 1: the disk is full; its log"):
        play(
            tmp_path, "sys.exit(70)", "print('cli.py: the disk is full', file=sys.stderr); sys.exit(1)", "sys.exit(70)"
        )


def test_what_the_watchdogs_say_is_said_once_and_who_is_stopped_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.2)
    said = "print('step 4 has not ended within 3 s: rank 1 (dp 1) is in data', file=sys.stderr); sys.exit(71)"
    with pytest.raises(Failure, match=r"^step 4 has not ended within 3 s: rank 1 \(dp 1\) is in data; logs are in"):
        play(tmp_path, said, "os.kill(os.getpid(), signal.SIGSTOP)", said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_who_leaves_well_has_stopped(tmp_path: Path, number: signal.Signals) -> None:
    heard = f"signal.signal({int(number)}, lambda *_: sys.exit(0)); os.kill(os.getppid(), {int(number)}); waiting()"
    assert play(tmp_path, heard, "waiting()") == number  # the other did not listen yet: it is killed by the signal
    assert local.stopped_line(tmp_path, number).startswith(f"stopped by {number.name}; it had not begun a step; the")


def test_a_job_whose_ranks_all_end_well_has_ended_well(tmp_path: Path) -> None:
    assert play(tmp_path, "pass", "pass") == 0
