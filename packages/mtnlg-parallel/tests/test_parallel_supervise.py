"""What follows a failure: the decision, the account of steps in the history, the command for schedulers."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtnlg_data.console import Failure as DataFailure
from mtnlg_data.engine.folder_lock import FolderInUse
from mtnlg_model.console import Failure, IoFailure, UsageFailure, error_status, run
from mtnlg_parallel.cli import app
from mtnlg_parallel.launch import run as launch
from mtnlg_parallel.launch import supervise
from mtnlg_parallel.launch.local import Signals, record_signals
from mtnlg_parallel.launch.supervise import (
    CRASHED,
    PAUSES,
    Failed,
    RankCrash,
    as_rank_failure,
    check_elastic_restart,
    check_elastic_store,
    decide,
    record_failure,
    recorded_failures,
    write_failure_file,
)
from mtnlg_parallel.recipe import Recipe, RunOptions
from mtnlg_parallel.record.history import append, read_events
from mtnlg_parallel.record.run_dir import LOGS, RunState

BeRank = Callable[..., None]
KILLED = -signal.SIGKILL
TORCHRUN: dict[str, Any] = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": 3}
WORKER = "mtnlg_parallel.launch.worker"
"""Runs a rank; its imports take seconds."""
RECIPE = Recipe.model_validate({"model": {"preset": "tiny"}, "train": {"samples": 32, "batch": 8, "lr": 1e-3}})


def failures(*new_steps: int, status: int = KILLED) -> list[Failed]:
    return [Failed(f"cause {n}", status, new_steps=steps) for n, steps in enumerate(new_steps)]


@pytest.mark.parametrize("status", [0, 70, 71, CRASHED, 74, 3, 255, KILLED, 137])
def test_a_failure_that_may_pass_restarts_the_ranks_at_once(status: int) -> None:
    assert decide(failures(5, status=status), 1) == decide(failures(0, status=status), 1) == ("restart", "", (), 0.0)


@pytest.mark.parametrize("status", [1, 2])
def test_a_failure_that_a_person_must_mend_ends_the_run_whatever_came_before(status: int) -> None:
    assert decide([*failures(5, 5), Failed("no such store", status)], 100)[:2] == ("end", "no such store")


def test_without_restarts_the_first_failure_ends_the_run() -> None:
    assert decide(failures(5), 0)[:2] == ("end", "cause 0")


def test_pauses_grow_while_restarts_bring_no_step_and_the_third_such_ends_the_run_with_the_causes() -> None:
    assert [decide(failures(*steps), 100).pause for steps in ((0,), (9, 0), (9, 0, 0), (9, 0, 0, 1))] == [*PAUSES, 0.0]
    assert decide(failures(0, 0, 0), 100).action == "restart", "the first attempt was no restart"
    for first in (0, 9):
        end = decide(failures(first, 0, 0, 0), 100)
        assert end.action == "end"
        assert end.reason.endswith("brought no new step: (1) cause 1; (2) cause 2; (3) cause 3")
    assert decide(failures(0, 0, 1, 0, 0), 100).action == "restart"


def test_restarts_with_progress_are_bounded_by_their_number() -> None:
    assert decide(failures(*[1] * 100), 100).action == "restart"
    end = decide(failures(*[1] * 101), 100)
    assert (end.action, end.reason) == ("end", "cause 100; all 100 restarts of --max-restarts are used up")


def test_a_node_that_failed_twice_is_excluded_together_with_earlier_ones() -> None:
    nodes = [Failed("x", KILLED, node, 1) for node in ("a", "b", "", "", "a", "c", "c", "b")]
    actions = [decide(nodes[: n + 1], 100)[0::2] for n in range(len(nodes))]
    restart = ("restart", ())
    assert actions == [restart] * 4 + [
        ("requeue", ("a",)),
        restart,
        ("requeue", ("a", "c")),
        ("requeue", ("a", "b", "c")),
    ]


@pytest.mark.parametrize("status", [-signal.SIGTERM, -signal.SIGUSR1, -signal.SIGHUP, 128 + 15, 128 + 10, 128 + 1])
def test_ranks_that_were_told_to_stop_before_they_trained_want_a_new_allocation(status: int) -> None:
    assert decide(failures(0, status=status), 100).action == "requeue"


def write_metrics(out: Path, last: int) -> None:
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, last + 1)]
    (out / "metrics.jsonl").write_text("".join(lines))


def test_new_steps_are_those_that_no_attempt_had_reached(tmp_path: Path) -> None:
    def attempt(resumed: int, lost: int, reached: int) -> int:
        append(tmp_path, "start")
        append(tmp_path, "resumed", step=resumed, lost_steps=lost)
        write_metrics(tmp_path, reached)
        return record_failure(tmp_path, "x", KILLED).new_steps

    assert attempt(0, 0, 50) == 50
    assert attempt(40, 10, 45) == 0
    assert attempt(40, 5, 50) == 0, "step 50 had been there before"
    assert attempt(40, 10, 51) == 1
    assert record_failure(tmp_path, "x", KILLED).new_steps == 0, "it never resumed, so the steps are another's"
    append(tmp_path, "start")
    append(tmp_path, "resumed", step=40, lost_steps=11)
    write_metrics(tmp_path, 60)  # and killed whole: no supervisor was left to record it
    append(tmp_path, "start")
    assert record_failure(tmp_path, "x", KILLED).new_steps == 0, "the steps are those of the attempt that was killed"
    assert attempt(40, 20, 61) == 1
    assert attempt(60, 1, 70) == 9


def test_a_history_that_cannot_be_written_does_not_end_the_supervisor(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert record_failure(gone, "the disk is full", 74) == ("the disk is full", 74, "", 0)
    assert recorded_failures(gone) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Failure("x"), 1),
        (DataFailure("x"), 1),
        (UsageFailure("x"), 2),
        (IoFailure("x"), 74),
        (OSError(28, "No space left on device"), 74),
        (FileNotFoundError(2, "No such file"), 1),
        (TimeoutError("timed out"), CRASHED),
        (RuntimeError("CUDA error: uncorrectable ECC error"), CRASHED),
        (KeyError("x"), CRASHED),
    ],
)
def test_an_error_that_another_attempt_may_not_meet_has_a_status_of_its_own(error: Exception, status: int) -> None:
    assert error_status(as_rank_failure(error)) == status


@pytest.fixture
def elastic(be_rank: BeRank, tmp_path: Path) -> Path:
    """The environment of rank 0 of torchrun's first attempt, in a run that failed the day before."""
    be_rank(**TORCHRUN)
    for _ in range(3):
        record_failure(tmp_path, "yesterday's", KILLED)
    write_failure_file(tmp_path, Failure("yesterday's"))
    check_elastic_restart(tmp_path)
    return tmp_path


def restart_elastic(out: Path, restarts: int) -> None:
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    check_elastic_restart(out)


def test_a_restart_by_torchrun_is_refused_after_what_a_person_must_mend(elastic: Path, be_rank: BeRank) -> None:
    for rank, error in enumerate([RankCrash("lost a peer"), Failure("no such store"), RankCrash("lost a peer")]):
        be_rank(**TORCHRUN, rank=rank, world=3, local_world=3)
        write_failure_file(elastic, error)
    with pytest.raises(Failure, match=r"^rank 1 on .*: no such store$"):
        restart_elastic(elastic, 1)
    assert [event["status"] for event in read_events(elastic)][3:] == [1]
    restart_elastic(elastic, 2)  # the files are gone: the refusing rank writes its own


def test_restarts_by_torchrun_without_a_new_step_are_refused_but_not_because_of_yesterdays(elastic: Path) -> None:
    for restarts in (1, 2, 3):
        restart_elastic(elastic, restarts)
    with pytest.raises(Failure, match=r"three restarts in a row brought no new step: .* torchrun's output names it"):
        restart_elastic(elastic, 4)


@pytest.mark.parametrize(("nodes", "shared", "restarts"), [(1, True, 3), (2, False, 3), (2, True, 0)])
def test_torchruns_restarts_over_several_nodes_need_a_store_for_each_attempt(
    be_rank: BeRank, nodes: int, shared: bool, restarts: int
) -> None:
    be_rank(**TORCHRUN | {"TORCHELASTIC_MAX_RESTARTS": restarts}, world=nodes, agent_store=shared)
    check_elastic_store()
    be_rank(**TORCHRUN, world=2, agent_store=True)
    with pytest.raises(UsageFailure, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        check_elastic_store()


def join(monkeypatch: pytest.MonkeyPatch, out: Path, error: str = "") -> list[str]:
    """Be a rank of torchrun or of a job; returns what it has done."""
    done: list[str] = []

    def run_rank(*_: object) -> None:
        if error:
            raise Failure(error)
        done.append("trained")

    monkeypatch.setitem(sys.modules, WORKER, SimpleNamespace(run_rank=run_rank))
    launch.join(RECIPE, out, out, RunOptions(), lambda: RunState(0, 0, 4, complete=False))
    return done


def test_a_rank_that_leads_is_refused_at_once_where_another_run_is_at_work(
    at_work: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank
) -> None:
    be_rank(**TORCHRUN)
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "rank-1.failure").touch()
    before = set(tmp_path.rglob("*"))
    with pytest.raises(FolderInUse, match="another run is working here; wait for it, or give another --out"):
        join(monkeypatch, tmp_path)
    assert set(tmp_path.rglob("*")) == before, "no failure file of its own, and those of the run at work"
    at_work.communicate()
    assert join(monkeypatch, tmp_path) == ["trained"]


@pytest.mark.parametrize("met", [False, True])
def test_failure_files_are_written_once_the_process_group_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank, met: bool
) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: met)
    for rank in (0, 1):
        be_rank(**TORCHRUN, rank=rank, world=2, local_world=2)
        with pytest.raises(Failure, match="another run"):
            join(monkeypatch, tmp_path, error="another run: train.lr was 0.001 and is 0.01 now")
        assert (tmp_path / LOGS / f"rank-{rank}.failure").exists() == met


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT", "MTNLG_JOB"])
def test_a_restart_waits_for_the_lock_of_a_lost_node(
    at_work: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    be_rank: BeRank,
    variable: str,
) -> None:
    be_rank(**{variable: 1})
    monkeypatch.setattr("mtnlg_parallel.launch.run.time.sleep", lambda _: at_work.communicate())
    assert join(monkeypatch, tmp_path) == ["trained"]


def test_a_restart_does_not_wait_for_the_lock_of_a_run_for_ever(
    at_work: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank
) -> None:
    be_rank(restarts=1)
    times = iter([0.0, 0.0, launch.LOCK_PATIENCE])
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=lambda _: None))
    with pytest.raises(FolderInUse):
        join(monkeypatch, tmp_path)
    assert at_work.poll() is None


def restart_command(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["mtnlg-parallel", "restart", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        run(app)
    assert not stop.value.code


def test_the_restart_command_prints_one_word_line_for_a_script_and_counts_within_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Signals, "wait", lambda _, seconds: pauses.append(seconds))

    def printed(*words: object) -> str:
        restart_command(monkeypatch, tmp_path, *words)
        return capsys.readouterr().out

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert printed("--status", 137, "--node", "n1") == "restart\n"
    assert printed("--status", 137, "--node", "n1") == "requeue n1\n"
    assert printed("--status", 143) == "requeue\n"
    assert printed("--status", 70) == "end\n"
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert printed("--status", 70, "--node", "n1") == "restart\n"
    monkeypatch.setenv("MTNLG_JOB", "7")
    assert printed("--status", 70, "--node", "n1") == "end\n", "a job that another one submitted continues its count"
    assert printed("--status", 70, "--max-restarts", 0) == "end\n"
    assert [event["job"] for event in read_events(tmp_path)] == ["7"] * 4 + ["8"] + ["7"] * 2
    assert pauses == [0.0, 10.0, 60.0, 0.0, 0.0, 0.0, 0.0]


def test_the_restart_command_reads_who_failed_from_what_srun_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "srun.log"
    log.write_text("1: cli.py: no such store\nsrun: error: n2: task 1: Exited with exit code 1\n")
    restart_command(monkeypatch, tmp_path, "--log", log)
    assert capsys.readouterr().out == "end\n"
    (event,) = read_events(tmp_path)
    assert (event["status"], event["node"], "no such store" in event["reason"]) == (1, "n2", True)


def test_a_signal_ends_a_pause() -> None:
    with record_signals(signal.SIGUSR1) as signals:
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1)).start()
        signals.wait(3600)
        assert signals == [signal.SIGUSR1]


def test_a_signal_ends_the_restart_commands_pause_with_a_new_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervise, "PAUSES", (0.0, 3600.0, 3600.0))
    restart_command(monkeypatch, tmp_path, "--status", 70)
    monkeypatch.setattr("mtnlg_parallel.launch.run.say", lambda _: signal.raise_signal(signal.SIGUSR1))
    restart_command(monkeypatch, tmp_path, "--status", 70)
    assert capsys.readouterr().out == "restart\nrequeue\n"
