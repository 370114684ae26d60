"""The launcher: its ranks played by a few lines of Python, and a whole run by `mtnlg_parallel.train`."""

import json
import signal
import sys
from pathlib import Path

import pytest

import mtnlg_parallel
from mtnlg_model.console import Failure
from mtnlg_model.settings import dump
from mtnlg_parallel.launch import local
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import RunState
from training.reference_loop import FP32, assert_same_steps, recipe_of, reference_run

NEW_RUN = RunState(step=0, samples=0, steps=10, complete=False)


def launch(out: Path, *statements: str) -> int:
    """Start ranks; rank N runs the N-th statement."""
    out.mkdir(exist_ok=True)
    (out / "metrics.jsonl").touch()
    lines = [f"if os.environ['RANK'] == '{rank}':\n    {statement}" for rank, statement in enumerate(statements)]
    code = "\n".join(["import os, signal, sys", "wait = signal.pause", *lines])
    return local.run_local(Layout(dp=len(statements)), [sys.executable, "-c", code], out, NEW_RUN)


def test_a_rank_that_is_killed_ends_the_job_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^rank 1 \(tp 0, pp 0, dp 1\) was killed by SIGKILL; its log is .*rank-1.log"):
        launch(tmp_path, "wait()", "os.kill(os.getpid(), signal.SIGKILL)", "wait()")


def test_the_culprit_is_named_not_a_rank_that_only_lost_it(tmp_path: Path) -> None:
    fail = "print('cli.py: the disk is full', file=sys.stderr); sys.exit(1)"
    with pytest.raises(Failure, match=r"^rank 1 \(.*\) ended with status 1: the disk is full; its log"):
        launch(tmp_path, "sys.exit(70)", fail, "sys.exit(70)")


def test_the_watchdogs_line_is_printed_once_and_a_stopped_rank_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.2)
    hung = "print('step 4 has not ended within 3 s: rank 1 (dp 1) is in data', file=sys.stderr); sys.exit(71)"
    with pytest.raises(Failure, match=r"^step 4 has not ended within 3 s: rank 1 \(dp 1\) is in data; logs are in"):
        launch(tmp_path, hung, "os.kill(os.getpid(), signal.SIGSTOP)", hung)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_signal_is_passed_on_and_ends_the_run_without_a_failure(tmp_path: Path, number: signal.Signals) -> None:
    stop = f"signal.signal({int(number)}, lambda *_: sys.exit(0)); os.kill(os.getppid(), {int(number)}); wait()"
    assert launch(tmp_path, stop, "wait()") == number  # rank 1 has no handler yet, so the signal kills it
    assert local.stopped_line(tmp_path, number).startswith(f"stopped by {number.name}; it had not begun a step; the")


def test_a_job_whose_ranks_all_exit_with_0_returns_0(tmp_path: Path) -> None:
    assert launch(tmp_path, "pass", "pass") == 0


def test_train_returns_the_summary_of_a_run_and_again_of_the_complete_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out, path = recipe_of((1, 1, 2), samples=24), tmp_path / "out", tmp_path / "train.toml"
    summary = mtnlg_parallel.train(recipe, data, out, options=mtnlg_parallel.RunOptions(profile=range(2, 3)))
    assert summary is not None
    reference, _, _ = reference_run(recipe, data)
    assert_same_steps([dict(step) for step in read_steps(out)], reference)
    assert (summary["steps"], summary["samples"]) == (len(reference), reference[-1]["samples"])
    assert summary["loss"] == pytest.approx(reference[-1]["loss"], rel=FP32)
    assert (out / "profile" / "rank-0.json.gz").exists()
    path.write_text(dump(recipe))
    assert mtnlg_parallel.train(path, data, out) == summary == json.loads((out / "summary.json").read_text())
    assert f"already trained {summary['steps']} steps" in capsys.readouterr().err
