"""The launcher: its ranks played by a few lines of Python, and a whole run by `mtnlg_parallel.train`."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

import mtnlg_parallel
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.settings import dump
from mtnlg_parallel.launch import agent, supervise
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import RunOptions
from mtnlg_parallel.record.history import read_events
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import RunState
from mtnlg_parallel.statuses import STOP_SIGNALS
from training.reference_loop import FP32, assert_same_steps, recipe_of, reference_run

NEW_RUN = RunState(step=0, steps=10, complete=False)
PLAY = """
import json, os, signal, sys
from pathlib import Path

out, wait = Path(sys.argv[1]), signal.pause
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def kill(number=signal.SIGKILL):
    os.kill(os.getpid(), number)

def take(first, *steps):
    with (out / "history.jsonl").open("a") as file:
        file.write(f'{{"event": "resumed", "time": 0, "step": {first}, "lost_steps": 0}}\\n')
    with (out / "metrics.jsonl").open("a") as file:
        file.writelines(f'{{"step": {step}, "loss": 1.0, "lr": 1, "batch_size": 1, "tokens_per_second": 1.0, '
                        f'"model_tflops": 1.0}}\\n' for step in steps)

def fail(status, reason):
    path = out / "logs" / f"rank-{os.environ['RANK']}.failure"
    path.write_text(json.dumps({"reason": reason, "status": status, "node": "n1"}))
    sys.exit(status)

def complete():
    (out / "summary.json").touch()
"""


def launch(out: Path, *statements: str, max_restarts: int = 0, again: Layout | None = None) -> int:
    """Start ranks; rank N runs the N-th statement."""
    out.mkdir(exist_ok=True)
    lines = [f"if os.environ['RANK'] == '{rank}':\n    {statement}" for rank, statement in enumerate(statements)]
    command = [sys.executable, "-c", "\n".join([PLAY, *lines]), str(out)]
    layout = Layout(dp=len(statements))
    return supervise.run_supervised(layout, command, out, NEW_RUN, lambda: again, max_restarts)


def test_a_restart_may_have_another_layout(tmp_path: Path) -> None:
    tell = "(out / f'{attempt}').write_text(os.environ['WORLD_SIZE'])"
    launch(tmp_path, f"{tell}; complete() if attempt else kill()", "wait()", max_restarts=1, again=Layout())
    assert [(tmp_path / attempt).read_text() for attempt in "01"] == ["2", "1"]


def failures_of(out: Path) -> list[tuple[int, int, int]]:
    """Status, steps reached and new ones of the failures recorded."""
    failed = [event for event in read_events(out) if event["event"] == "failed"]
    return [(event["status"], event["step"], event["new_steps"]) for event in failed]


def test_the_culprit_is_named_not_a_rank_that_only_lost_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "peer")  # its readers see that rank 1 is gone
    lose = "(out / 'peer').read_bytes(); sys.exit(70)"
    fail = "os.open(out / 'peer', os.O_WRONLY); print('cli.py: the data is gone', file=sys.stderr); sys.exit(1)"
    with pytest.raises(Failure, match=r"^rank 1 on .* ended with status 1: the data is gone; its log"):
        launch(tmp_path, lose, fail, lose)


def test_a_rank_that_the_launcher_kills_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "GRACE_SECONDS", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); (out / 'deaf').touch(); wait()"
    crash = "list(iter((out / 'deaf').exists, True)); fail(72, 'CUDA error')"
    with pytest.raises(Failure, match=r"^CUDA error; the same command"):
        launch(tmp_path, deaf, crash)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signal_ends_the_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    stop = f"signal.signal({int(number)}, lambda *_: sys.exit(0)); os.kill(os.getppid(), {int(number)}); wait()"
    assert launch(tmp_path, stop, "wait()") == number  # rank 1 has no handler yet, so the signal kills it
    (stopped,) = read_events(tmp_path)
    assert (stopped["event"], stopped["signal"]) == ("stopped", number)
    assert supervise.stopped_line(tmp_path, number).startswith(
        f"stopped by {number.name}; it had not started a step; the"
    )


def no_rank(*_: object, **__: object) -> None:
    raise AssertionError("a rank was started")


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_too_many_ranks_are_not_started(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, device: Literal["auto", "cpu"]
) -> None:
    monkeypatch.setattr(agent, "start_rank", no_rank)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    (tmp_path / "summary.json").write_text("{}")
    recipe = recipe_of((1, 1, 4096), batch=8192, ramp=None, validation_samples=8192)
    most = "64" if device == "cpu" or not gpus else "2"
    with pytest.raises(UsageFailure, match=rf"layout tp=1,pp=1,dp=4096 needs 4,096 \w+ and this machine.* {most};"):
        mtnlg_parallel.train(recipe, data, tmp_path, resume=False, options=RunOptions(device=device), force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_missing_tokenizer_is_named_before_training(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "tokens" / "tokenizer.json").unlink()
    with pytest.raises(Failure, match=r"tokens/tokenizer.json: no such file"):
        mtnlg_parallel.train(recipe_of(), tmp_path / "data", tmp_path / "out")
    assert not (tmp_path / "out" / "recipe.toml").exists()


def test_a_job_whose_ranks_all_exit_with_0_returns_0(tmp_path: Path) -> None:
    assert launch(tmp_path, "pass", "complete()") == 0
    assert all(path.stat().st_mode & 0o777 == 0o640 for path in (tmp_path / "logs").iterdir()), "others cannot read it"


@pytest.mark.parametrize(
    ("fails", "line"),
    [
        ("kill()", "was killed by SIGKILL; its log is"),
        ("fail(74, 'disk full')", "disk full; restarting (1 of 3)"),
        ("fail(71, 'step 1 hangs')", "step 1 hangs; restarting (1 of 3)"),
        ("kill(signal.SIGTERM)", "was killed by SIGTERM; its log is"),
    ],
)
def test_ranks_that_fail_are_all_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: str, line: str
) -> None:
    again = "os.write(1, b'again'); complete() if attempt else wait()"
    begun = "list(iter((out / 'logs' / 'rank-0.log').read_bytes, b'again'))"
    assert launch(tmp_path, again, f"sys.exit(0) if attempt else {begun}; {fails}", max_restarts=3) == 0
    assert line in capsys.readouterr().err
    assert len(failures_of(tmp_path)) == 1
    assert (tmp_path / "logs" / "rank-0.log").read_text() == "againagain", "the log of the first attempt is kept"


def test_ranks_stopped_by_one_are_restarted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        launch(tmp_path, "complete() if attempt else sys.exit(75)", "None if attempt else sys.exit(75)", max_restarts=3)
        == 0
    )
    assert "a rank received a stop signal, and all stopped; restarting (1 of 3)" in capsys.readouterr().err


def test_failure_after_completion_is_ignored(tmp_path: Path) -> None:
    assert launch(tmp_path, "complete(); kill()") == 0
    assert failures_of(tmp_path) == []


def test_three_fruitless_restarts_end_with_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    wait = agent.Signals.wait

    def wait_shortly(signals: agent.Signals, seconds: float) -> None:
        pauses.append(seconds)
        wait(signals, min(seconds, 0.1))

    monkeypatch.setattr(agent.Signals, "wait", wait_shortly)
    steps = "[(0, 1, 2), (1, 2, 3), (3, 2), (3, 3), (2, 3)][attempt]"
    with pytest.raises(Failure) as ended:
        launch(tmp_path, f"take(*{steps}); sys.exit(80 + attempt)", "wait()", max_restarts=100)
    assert failures_of(tmp_path) == [(80, 2, 2), (81, 3, 1), (82, 2, 0), (83, 3, 0), (84, 3, 0)]
    assert [seconds for seconds in pauses if seconds != agent.POLL_SECONDS] == [0.0, 0.0, 10.0, 60.0]
    causes = ".*".join(f"\\({n}\\) rank 0 on .* ended with status {81 + n}; its log is" for n in (1, 2, 3))
    assert re.match(f"three restarts in a row brought no new step: {causes}.*; the same command", str(ended.value)), (
        str(ended.value)
    )


@pytest.mark.parametrize("status", [1, 2])
def test_user_errors_are_not_retried(tmp_path: Path, status: int) -> None:
    with pytest.raises(Failure, match=rf"ended with status {status}; its log is [^;]*$"):
        launch(tmp_path, f"sys.exit({status})", "sys.exit(70)", max_restarts=100)
    assert len(failures_of(tmp_path)) == 1


@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGINT])
def test_signal_during_a_restart_pause_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(supervise, "PAUSES", (0.0, 3600.0, 3600.0))
    said: list[str] = []

    def say(line: str) -> None:  # the pause begins when this has returned
        said.append(line)
        if " in 3600 s (2 of 3)" in line:
            signal.raise_signal(number)

    monkeypatch.setattr(supervise, "say", say)
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            launch(tmp_path, "kill()", max_restarts=3)
    else:
        assert launch(tmp_path, "kill()", max_restarts=3) == number
        *_, last = read_events(tmp_path)
        assert (last["event"], last["signal"]) == ("stopped", number)
    assert len(said) == 2


def test_progress_goes_back_to_the_step_where_a_restart_resumes(tmp_path: Path) -> None:
    moves: list[int] = []
    update = agent.follow(tmp_path, 1, lambda n, _note="": moves.append(n))
    line = '{"step": %d, "loss": 1.0, "lr": 1, "batch_size": 1, "tokens_per_second": 1.0, "model_tflops": 1.0}\n'
    update()
    for steps in ([1], [1, 2, 3], [1, 2, 3], [1, 2], [1, 2, 3, 4]):
        (tmp_path / "metrics.jsonl").write_text("".join(line % step for step in steps) + '{"step": 9')
        update()
    assert moves == [2, -1, 2]


def test_train_returns_the_summary(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out, path = recipe_of((1, 1, 2), samples=24), tmp_path / "out", tmp_path / "train.toml"
    summary = mtnlg_parallel.train(recipe, data, out, options=mtnlg_parallel.RunOptions(profile=range(2, 3)))
    assert summary is not None
    for path in (out / "checkpoints").rglob("*"):
        assert not path.stat().st_mode & 0o007, f"others cannot read {path}"
    reference, _ = reference_run(recipe, data)
    assert_same_steps([dict(step) for step in read_steps(out)], reference)
    assert (summary["steps"], summary["samples"]) == (len(reference), reference[-1]["samples"])
    assert summary["loss"] == pytest.approx(reference[-1]["loss"], rel=FP32)
    assert (out / "profile" / "rank-0.json.gz").exists()
    path.write_text(dump(recipe))
    assert mtnlg_parallel.train(path, data, out) == summary == json.loads((out / "summary.json").read_text())
    assert f"already trained {summary['steps']} steps" in capsys.readouterr().err
