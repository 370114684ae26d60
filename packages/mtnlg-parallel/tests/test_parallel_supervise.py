"""What follows a failure: the table of statuses, the decision, the account of steps, the command for schedulers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from small_runs import recipe_of, write_steps

import mtnlg_parallel
from mtnlg_data.console import Failure as DataFailure
from mtnlg_data.engine.folder_lock import FolderInUse
from mtnlg_model.console import Failure, IoFailure, UsageFailure, error_status, run
from mtnlg_model.settings import dump
from mtnlg_parallel import statuses
from mtnlg_parallel.cli import app
from mtnlg_parallel.launch import run as launch
from mtnlg_parallel.launch import supervise
from mtnlg_parallel.launch.agent import Signals
from mtnlg_parallel.launch.run import TrainingRun
from mtnlg_parallel.launch.supervise import (
    DAY,
    PeerFailure,
    RankCrash,
    as_rank_failure,
    check_torchrun,
    decide,
    record_elastic_restart,
    record_failure,
    recorded_failures,
    report_rank_failure,
)
from mtnlg_parallel.record.history import append, read_events
from mtnlg_parallel.record.run_dir import LOGS, RECIPE, RunState
from mtnlg_parallel.statuses import ACTIONS, STOP_SIGNALS, Exit, Failed, cause_of, first_failure, write_failure

if TYPE_CHECKING:
    import subprocess

BeRank = Callable[..., None]
KILLED = -signal.SIGKILL
TORCHRUN: dict[str, Any] = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": 3}
WORKER = "mtnlg_parallel.launch.worker"
"""Runs a rank; its imports take seconds."""
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "exit-statuses.md"


def failures(*new_steps: int, status: int = KILLED) -> list[Failed]:
    return [Failed(f"cause {n}", status, new_steps=steps) for n, steps in enumerate(new_steps)]


def test_the_page_of_exit_statuses_is_the_table_in_the_code() -> None:
    rows = [f"| {status.value} | {status.name} | {status.meaning} | {ACTIONS[status.cause]} |" for status in Exit]
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("cause", "statuses"),
    [
        ("person", [1, 2]),
        ("shared", [3, 73, 74]),
        ("node", [71, 72, KILLED, 128 + 9, -signal.SIGSEGV]),
        ("peer", [70]),
        ("stop", [75, *(sign for number in STOP_SIGNALS for sign in (-number, 128 + number))]),
    ],
)
def test_cause_decides_restart_and_blame(cause: str, statuses: list[int]) -> None:
    actions = {"person": "end", "stop": "requeue"}
    for status in statuses:
        assert cause_of(status) == cause
        for steps in (5, 0):
            assert decide(failures(steps, status=status), 1)[::3] == (actions.get(cause, "restart"), 0.0)
        twice = decide([Failed("x", status, "n1", 1)] * 2, 100)
        assert twice.excluded == (("n1",) if cause == "node" else ())


def test_new_steps_begin_the_count_of_fruitless_restarts_again() -> None:
    """How pauses grow until the third ends the run, `tests/training/test_training_launch.py` shows."""
    assert decide(failures(0, 0, 0), 100).action == "restart", "the first attempt was no restart"
    assert decide(failures(9, 0, 0, 1), 100).pause == 0.0
    assert decide(failures(0, 0, 1, 0, 0), 100).action == "restart"


def test_restarts_with_progress_are_bounded_by_their_number() -> None:
    assert decide(failures(5), 0)[:2] == ("end", "cause 0")
    assert decide(failures(*[1] * 100), 100).action == "restart"
    end = decide(failures(*[1] * 101), 100)
    assert (end.action, end.reason) == ("end", "cause 100; all 100 restarts of --max-restarts are used up")


def test_twice_failed_node_is_excluded_with_earlier_ones() -> None:
    nodes = [Failed("x", KILLED, node, 1) for node in ("a", "b", "", "", "a", "c", "c", "b")]
    excluded = [decide(nodes[: n + 1], 100).excluded for n in range(len(nodes))]
    assert excluded == [()] * 4 + [("a",), (), ("a", "c"), ("a", "b", "c")]


@pytest.mark.parametrize(("hours", "excluded"), [(23, ("n1",)), (25, ())])
def test_a_node_is_excluded_for_failures_within_a_day(hours: int, excluded: tuple[str, ...]) -> None:
    nodes = [Failed("x", KILLED, "n1", 1, time) for time in (1000.0, 1000.0 + hours / 24 * DAY)]
    assert decide(nodes, 100).excluded == excluded


def test_the_failure_that_explains_the_others_comes_first() -> None:
    found = [
        Failed("told to stop", -signal.SIGTERM, time=1),
        Failed("lost a peer", 70, time=2),
        Failed("NCCL error", 72, time=3),
        Failed("killed later", KILLED, time=5),
        Failed("killed", KILLED, time=4),
    ]
    assert first_failure(found).reason == "killed"
    assert first_failure([*found, Failed("no such store", 1, time=9)]).reason == "no such store"
    assert first_failure(found[:3]).reason == "NCCL error"


def test_new_steps_exclude_repeated_steps(tmp_path: Path) -> None:
    failed = Failed("x", KILLED)

    def attempt(resumed: int, lost: int, reached: int) -> int:
        append(tmp_path, "start")
        append(tmp_path, "resumed", step=resumed, lost_steps=lost)
        write_steps(tmp_path, [{"step": step} for step in range(1, reached + 1)])
        return record_failure(tmp_path, failed).new_steps

    assert attempt(0, 0, 50) == 50
    assert attempt(40, 10, 45) == 0
    assert attempt(40, 5, 50) == 0, "step 50 had been there before"
    assert attempt(40, 10, 51) == 1
    assert record_failure(tmp_path, failed).new_steps == 0, "it never resumed, so the steps are another's"
    append(tmp_path, "start")
    append(tmp_path, "resumed", step=40, lost_steps=11)
    write_steps(
        tmp_path, [{"step": step} for step in range(1, 61)]
    )  # and killed whole: no supervisor was left to record it
    append(tmp_path, "start")
    assert attempt(40, 20, 61) == 1
    assert attempt(60, 1, 70) == 9


def test_full_disk_does_not_end_the_supervisor(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.touch()
    assert record_failure(gone, Failed("the disk is full", 74))[:4] == ("the disk is full", 74, "", 0)
    assert recorded_failures(gone, "") == statuses.take_failures(gone) == []
    write_failure(gone, 0, Failed("the disk is full", 74))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Failure("x"), 1),
        (DataFailure("x"), 1),
        (UsageFailure("x"), 2),
        (IoFailure("x"), 74),
        (OSError(28, "No space left on device"), 74),
        (FileNotFoundError(2, "No such file"), 1),
        (TimeoutError("timed out"), Exit.CRASHED),
        (RuntimeError("CUDA error: uncorrectable ECC error"), Exit.CRASHED),
        (KeyError("x"), Exit.CRASHED),
    ],
)
def test_transient_error_has_its_own_status(error: Exception, status: int) -> None:
    assert error_status(as_rank_failure(error)) == status


def test_torchrun_restart_is_recorded_and_refused_after_a_mistake(
    be_rank: BeRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_rank(**TORCHRUN)
    write_failure(tmp_path, 0, Failed("yesterday's", 1))
    record_elastic_restart(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    record_elastic_restart(tmp_path)
    for rank, failed in enumerate([Failed("lost a peer", 72), Failed("no such store", 1), Failed("lost a peer", 72)]):
        write_failure(tmp_path, rank, failed)
    with pytest.raises(Failure, match=r"^no such store$"):
        record_elastic_restart(tmp_path)
    assert [event["status"] for event in read_events(tmp_path)] == [KILLED, 1]


@pytest.mark.parametrize(("nodes", "shared", "restarts"), [(1, True, 3), (2, False, 3), (2, True, 0)])
def test_torchrun_nodes_need_a_store_per_attempt(
    be_rank: BeRank, tmp_path: Path, nodes: int, shared: bool, restarts: int
) -> None:
    be_rank(**TORCHRUN | {"TORCHELASTIC_MAX_RESTARTS": restarts}, world=nodes, agent_store=shared)
    check_torchrun(tmp_path, resume=True)
    be_rank(**TORCHRUN, world=2, agent_store=True)
    with pytest.raises(UsageFailure, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        check_torchrun(tmp_path, resume=True)
    be_rank(**TORCHRUN, world=2)
    with pytest.raises(UsageFailure, match="--no-resume"):
        check_torchrun(tmp_path, resume=False)


def join(monkeypatch: pytest.MonkeyPatch, out: Path, error: str = "") -> list[str]:
    """Be a rank of torchrun or of a job; returns what it has done."""
    done: list[str] = []

    def run_rank(*_: object) -> int:
        if error:
            raise Failure(error)
        done.append("trained")
        return 0

    monkeypatch.setitem(sys.modules, WORKER, SimpleNamespace(run_rank=run_rank))
    launch.join(TrainingRun(recipe_of(), out, out))
    return done


def test_second_run_is_refused_at_once(
    at_work: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank
) -> None:
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / "rank-1.failure").touch()
    (tmp_path / "checkpoints" / "step-9.tmp").mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(FolderInUse, match="another run is using this folder; wait for it, or give another --out"):
        mtnlg_parallel.train(recipe_of(), tmp_path, tmp_path)
    be_rank(**TORCHRUN)
    with pytest.raises(FolderInUse, match="another run is using this folder; wait for it, or give another --out"):
        join(monkeypatch, tmp_path)
    assert set(tmp_path.rglob("*")) == before, "no file of its own, and those of the run at work"
    at_work.communicate()
    assert join(monkeypatch, tmp_path) == ["trained"]


@pytest.mark.parametrize("met", [False, True])
def test_when_failure_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank, met: bool
) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: met)
    for rank in (0, 1):
        be_rank(**TORCHRUN, rank=rank, world=2, local_world=2)
        with pytest.raises(Failure, match="another run"):
            join(monkeypatch, tmp_path, error="another run: train.lr was 0.001 and is 0.01 now")
        assert statuses.failure_file(tmp_path, rank).exists() == met
    be_rank(rank=1, world=2, local_world=2, parent=os.getpid(), SLURMD_NODENAME="n7")
    report_rank_failure(tmp_path, RankCrash("CUDA error"))
    failed = statuses.read_failure(statuses.failure_file(tmp_path, 1))
    assert failed
    assert failed[:3] == ("rank 1 on n7: CUDA error", Exit.CRASHED, "n7")
    report_rank_failure(tmp_path, PeerFailure("lost a peer"))
    assert statuses.read_failure(statuses.failure_file(tmp_path, 1)) == failed


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restart_waits_for_the_lock_of_a_lost_node_but_not_for_ever(
    at_work: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank, variable: str
) -> None:
    be_rank(**{variable: 1})
    times = iter([0.0, 0.0, launch.LOCK_PATIENCE])
    with monkeypatch.context() as patch:
        patch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=lambda _: None))
        with pytest.raises(FolderInUse):
            join(monkeypatch, tmp_path)
    monkeypatch.setattr("mtnlg_parallel.launch.run.time.sleep", lambda _: at_work.communicate())
    assert join(monkeypatch, tmp_path) == ["trained"]


def restart_command(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["mtnlg-parallel", "restart", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        run(app)
    assert not stop.value.code


def test_restart_command_prints_one_line_per_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    (tmp_path / RECIPE).write_text(dump(recipe_of()))
    monkeypatch.setattr(Signals, "wait", lambda _, seconds: pauses.append(seconds))

    def printed(status: int, node: str = "", *words: object) -> str:
        write_failure(tmp_path, 3, Failed("rank 3 fails", status, node))
        restart_command(monkeypatch, tmp_path, *words)
        return capsys.readouterr().out

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert printed(71, "n1") == "restart\n"
    assert printed(137, "n1") == "requeue n1\n"
    assert printed(143) == "requeue\n"
    restart_command(monkeypatch, tmp_path)
    assert capsys.readouterr().out == "end\n", "a rank that leaves no failure file counts too"
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert printed(70, "n1") == "restart\n"
    monkeypatch.setenv("MTNLG_JOB", "7")
    assert printed(70, "n1") == "end\n", "a job that another one submitted continues its count"
    assert printed(70, "n1", "--max-restarts", 0) == "end\n"
    events = list(read_events(tmp_path))
    assert [event["job"] for event in events] == ["7"] * 4 + ["8"] + ["7"] * 2
    assert [event["status"] for event in events] == [71, 137, 143, Exit.NOT_STARTED, 70, 70, 70]
    assert [event["node"] for event in events] == ["n1", "n1", "", "", "n1", "n1", "n1"]
    assert pauses == [0.0, 10.0, 60.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("error", "verdict"), [(UsageFailure("no such store"), "end"), (KeyError("x"), "restart")])
def test_an_agent_that_starts_no_rank_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank, error: Exception, verdict: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    be_rank(SLURM_NODEID=0, SLURM_STEP_NUM_NODES=1, SLURM_JOB_ID=7, SLURM_STEP_ID=0)
    monkeypatch.setattr(launch, "_prepare", fail)
    with pytest.raises(type(error)):
        launch.run_node(TrainingRun(recipe_of(), tmp_path, tmp_path), 1)
    assert launch.restart(tmp_path, 100) == verdict


@pytest.mark.parametrize(("node", "ranks"), [(0, [0, 1, 2, 3]), (1, [4, 5])])
def test_elastic_agents_start_the_ranks_of_a_smaller_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, be_rank: BeRank, node: int, ranks: list[int]
) -> None:
    """A batch of 12 over two of three nodes: six ranks of dp, each told the layout."""
    recipe = recipe_of({"dp": 12}, samples=36, batch=12, validation_samples=12)
    be_rank(SLURM_NODEID=node, SLURM_STEP_NUM_NODES=2, SLURM_JOB_ID=7, SLURM_STEP_ID=0)
    monkeypatch.setattr(launch, "_prepare", lambda *_: RunState(0, 4, complete=False))
    tell = "import os, sys; print(os.environ['WORLD_SIZE'], sys.argv[1]); raise SystemExit(75)"
    monkeypatch.setattr(TrainingRun, "rank_command", [sys.executable, "-c", tell])
    assert launch.run_node(TrainingRun(recipe, tmp_path, tmp_path, elastic=True), 4)
    logs = {int(path.stem.removeprefix("rank-")): path.read_text().strip() for path in (tmp_path / LOGS).iterdir()}
    assert logs == dict.fromkeys(ranks, "6 --layout=tp=1,pp=1,dp=6")


def test_signal_ends_the_pause_before_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervise, "PAUSES", (0.0, 3600.0, 3600.0))
    (tmp_path / RECIPE).write_text(dump(recipe_of()))
    restart_command(monkeypatch, tmp_path)
    monkeypatch.setattr("mtnlg_parallel.launch.run.say", lambda _: signal.raise_signal(signal.SIGUSR1))
    restart_command(monkeypatch, tmp_path)
    assert capsys.readouterr().out == "restart\nrequeue\n"
