"""The watchdog: clocks, phases and diagnosis of ranks that share a store in memory; its threads on a real store."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from mtnlg_parallel.environment import Environment
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.statuses import Exit, take_failures
from mtnlg_parallel.training import watchdog
from mtnlg_parallel.training.flight_recorder import Trace
from mtnlg_parallel.training.watchdog import Heartbeat, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


PATIENCE, START = 60.0, 600.0


@contextmanager
def watching(layout: Layout, rank: int, out: Path, patience: float) -> Iterator[Watchdog]:
    """A `Watchdog` of the calling thread."""
    watched = Watchdog(layout, rank, out, patience)
    watched.start()
    try:
        yield watched
    finally:
        watched.close()


class Hung(Exception):  # noqa: N818  (it is the end of a process, not an error of one)
    """A rank exits with this line."""


class MemoryStore:
    """The store's calls that the watchdog uses, counted; ``keys_read`` counts each key of a call."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.keys_read: Counter[str] = Counter()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.keys_read.update(keys)
        return [self.values[key] for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        self.set(key, str(int(self.values.get(key, b"0")) + amount))
        return int(self.values[key])

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, b"").decode() == expected:
            self.set(key, desired)
        return self.values[key]


class Job:
    """Ranks whose watchdogs take their rounds when told to, by a clock that stands until `wait`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, layout: Layout, out: Path) -> None:
        self.now = 1000.0
        self.store: Any = MemoryStore()
        self.stacks = dict.fromkeys(range(layout.world), "communication")
        self.traces: dict[int, Trace] = {}
        self.stopped: set[int] = set()
        self.writing = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(watchdog, "phase_of", lambda _frame: self.stacks[self.writing])
        monkeypatch.setattr(watchdog, "local_trace", lambda: self.traces.get(self.writing))
        monkeypatch.setattr(watchdog, "this_rank", lambda: Environment(node=f"n{self.writing // layout.tp}"))
        monkeypatch.setattr(watchdog, "_exit_hung", raise_hung)
        self.ranks = [Watchdog(layout, rank, out, PATIENCE, START) for rank in range(layout.world)]
        for rank in self.ranks:
            monkeypatch.setattr(rank, "_closed", self)

    def wait_interval(self) -> None:
        self.now += 5.0
        for number in set(range(len(self.ranks))) - self.stopped:
            self.writing = number
            self.ranks[number]._write_heartbeat(self.store)

    def wait(self, _interval: float) -> bool:
        """As ``Event.wait`` in a watchdog that is not closed; the others go on meanwhile."""
        self.wait_interval()
        return False

    def beat(self, step: int) -> None:
        for rank in self.ranks:
            rank.beat(step)

    def run(self, seconds: float) -> list[str]:
        """Let time pass; return the lines with which ranks exit, which they do in one round of all ranks."""
        for _ in range(int(seconds / 5.0)):
            self.wait_interval()
            lines = []
            for number in set(range(len(self.ranks))) - self.stopped:
                try:
                    self.ranks[number]._look(self.store)
                except Hung as hung:
                    lines.append(str(hung))
            if lines:
                return lines
        return []


def raise_hung(line: str) -> NoReturn:
    raise Hung(line)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    return Job(monkeypatch, Layout(dp=2), tmp_path)


def test_phase_outlasts_patience_and_end_names_the_rank(two: Job) -> None:
    two.beat(7)
    two.stacks[0] = "forward"
    with two.ranks[0].during("publishing a checkpoint", 300), two.ranks[1].during("publishing a checkpoint", 300):
        assert not two.run(295)
        line = (
            "publishing a checkpoint has not ended within 300 s: rank 0 (tp 0, pp 0, dp 0) is publishing a checkpoint"
        )
        assert set(two.run(15)) == {line}


def test_phase_restarts_the_clock(two: Job) -> None:
    two.beat(7)
    for rank in two.ranks:
        rank.beat(7)
    assert not two.run(55)
    with two.ranks[0].during("saving a checkpoint", 100), two.ranks[1].during("saving a checkpoint", 100):
        assert not two.run(95)
        with two.ranks[0].during("publishing a checkpoint", 50), two.ranks[1].during("publishing a checkpoint", 50):
            assert not two.run(45)
        assert not two.run(95)
    assert not two.run(55)
    assert set(two.run(10)) == {"step 8 has not ended within 60 s: every rank waits for the others in communication"}


def test_loading_has_its_own_patience(two: Job) -> None:
    two.stacks[1] = "forward"
    with two.ranks[0].during("loading a checkpoint", 100), two.ranks[1].during("loading a checkpoint", 100):
        assert not two.run(95)
    assert not two.run(START - 5)
    assert set(two.run(10)) == {"the first step has not ended within 600 s: rank 1 (tp 0, pp 0, dp 1) is in forward"}


def test_waiting_rank_does_not_end_the_job(two: Job) -> None:
    two.beat(7)
    two.stacks[0] = "forward"
    with two.ranks[0].during("saving a checkpoint", 200):
        assert not two.run(190)
        two.stacks[0] = "communication"
    two.beat(8)
    assert not two.run(55)
    two.stacks[0] = "data"
    assert set(two.run(10)) == {"step 9 has not ended within 60 s: rank 0 (tp 0, pp 0, dp 0) is in data"}


def test_rank_0_alone_reads_what_all_have_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layout = Layout(tp=8, pp=4, dp=4)
    job = Job(monkeypatch, layout, tmp_path)
    job.beat(1)
    job.stacks[77] = "data"
    job.run(PATIENCE)
    job.store.keys_read.clear()
    lines = job.run(5)
    assert lines == ["step 2 has not ended within 60 s: rank 77 (tp 5, pp 2, dp 1) is in data"] * layout.world
    # All heartbeats once; besides, each rank the verdict.
    assert job.store.keys_read.total() <= 2 * layout.world
    (failed,) = {failed[:3] for failed in take_failures(tmp_path)}
    assert failed == (lines[0], Exit.HUNG, "n9")


def test_all_ranks_of_a_machine_that_is_gone_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = Job(monkeypatch, Layout(tp=4, dp=3), tmp_path)
    job.beat(1)
    job.run(10)
    job.stopped = {4, 5, 6, 7}
    (line,) = set(job.run(60))
    names = ", ".join(f"rank {rank} (tp {rank - 4}, pp 0, dp 1)" for rank in (4, 5, 6, 7))
    assert line == f"{names} have answered nothing for 35 s"
    reported = {(failed.status, failed.node, failed.reason) for failed in take_failures(tmp_path)}
    assert reported == {(Exit.HUNG, "n1", line)}


@pytest.mark.parametrize("rank", [0, 1])
def test_silent_rank_is_named_soon_by_the_other(two: Job, rank: int) -> None:
    two.beat(1)
    two.run(PATIENCE - 10)
    two.stopped = {rank}
    assert two.run(60) == [f"rank {rank} (tp 0, pp 0, dp {rank}) has answered nothing for 35 s"]


def test_ended_or_unstarted_rank_is_not_silent(two: Job) -> None:
    two.beat(1)
    two.run(10)
    two.store.set("beat/1", "")
    two.stopped = {1}
    assert not two.run(PATIENCE - 15)
    assert two.run(10) == ["step 2 has not ended within 60 s: rank 1 (tp 0, pp 0, dp 1) has not begun, or ended"]


@pytest.mark.parametrize(
    ("stacks", "who"),
    [
        (["forward", "forward"], "every rank is in forward"),  # on CUDA ranks wait in forward, too
        (["communication", "communication"], "every rank waits for the others in communication"),
        (["backward", "data"], "rank 1 (tp 0, pp 0, dp 1) is in data"),
        (
            ["backward", "forward"],
            "rank 0 (tp 0, pp 0, dp 0) is in backward; rank 1 (tp 0, pp 0, dp 1) is in forward",
        ),
    ],
)
def test_stacks_accuse_only_as_evidence(two: Job, stacks: list[str], who: str) -> None:
    two.beat(1)
    two.stacks = dict(enumerate(stacks))
    assert set(two.run(PATIENCE + 5)) == {f"step 2 has not ended within 60 s: {who}"}


def test_flight_recorder_names_the_rank_of_equal_stacks(two: Job, tmp_path: Path) -> None:
    two.beat(1)
    two.stacks = dict.fromkeys(range(2), "forward")
    two.traces = {rank: Trace({"0": (5 - rank, 5 - 5 * rank, "all_reduce")}, []) for rank in (0, 1)}
    line = "rank 1 (tp 0, pp 0, dp 1) is in forward and has not entered all_reduce 5, which ranks wait for: 0"
    assert set(two.run(PATIENCE + 5)) == {f"step 2 has not ended within 60 s: {line}"}
    assert {failed.node for failed in take_failures(tmp_path)} == {"n1"}
    two.store.values.clear()
    two.traces[1] = two.traces[0]
    line = "all ranks have entered all_reduce 5, which does not end: a GPU or the network hangs"
    assert set(two.run(PATIENCE + 5)) == {f"step 2 has not ended within 60 s: {line}"}
    assert {failed.node for failed in take_failures(tmp_path)} == {""}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[str]:
    """The lines with which watchdogs of this process would exit."""
    exits: queue.Queue[str] = queue.Queue()

    def exit_hung(line: str) -> NoReturn:
        exits.put(line)
        while True:  # a daemon thread, which does nothing more
            threading.Event().wait()

    monkeypatch.setattr(watchdog, "_exit_hung", exit_hung)
    return exits


@pytest.fixture
def store(be_rank: Callable[..., None]) -> Iterator[list[TCPStore]]:
    """The job's store, in a list so that a test can end it."""
    held = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))]
    be_rank(port=held[0].port, agent_store=True, restarts=1)
    yield held
    held.clear()


def test_only_verdicts_of_this_attempt_count(store: list[TCPStore], lines: queue.Queue[str], tmp_path: Path) -> None:
    verdict = watchdog.Verdict("step 4 has not ended within 60 s: every rank is in data", "n2")
    PrefixStore("open/0/watchdog", store[0]).set("verdict", json.dumps(verdict))
    this = PrefixStore("open/1/watchdog", store[0])
    with watching(Layout(), 0, tmp_path, 0.3):
        wait_for_rounds(this, 3, lines)
        assert lines.empty()
        this.set("verdict", json.dumps(verdict))
        assert lines.get(timeout=60) == verdict.line
    (failed,) = take_failures(tmp_path)
    assert failed[:3] == (verdict.line, Exit.HUNG, "n2")


def wait_for_rounds(store: PrefixStore, rounds: int, lines: queue.Queue[str]) -> None:
    """Wait until the watchdog of rank 0 has written so many heartbeats more, or has ended with a line."""
    last = json.loads(store.get("beat/0"))[0] + rounds
    while json.loads(store.get("beat/0"))[0] < last and lines.empty():
        pass


def test_process_without_the_secret_changes_nothing(
    store: list[TCPStore], lines: queue.Queue[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MTNLG_SECRET", "5ec2e7")
    stranger = TCPStore("127.0.0.1", store[0].port, is_master=False, timeout=timedelta(seconds=60))
    for prefix in ("", "hung/", "watchdog/0/", "watchdog/1/", "open/0/watchdog/", "open/1/watchdog/"):
        stranger.set(f"{prefix}verdict", '["every rank is in data", "", 0.0]')
        stranger.set(f"{prefix}beat/0", '[0, 0, "", 0.0, "data", "n1", null]')
    with watching(Layout(), 0, tmp_path, 0.3):
        wait_for_rounds(PrefixStore("5ec2e7/1/watchdog", store[0]), 3, lines)
        assert lines.empty()


def test_a_rank_that_ends_takes_its_heartbeat_away(store: list[TCPStore], tmp_path: Path) -> None:
    this = PrefixStore("open/1/watchdog", store[0])
    with watching(Layout(), 0, tmp_path, PATIENCE):
        assert Heartbeat.parse(this.get("beat/0"))
    assert not this.get("beat/0")


def test_a_rank_that_loses_the_store_says_so(store: list[TCPStore], lines: queue.Queue[str], tmp_path: Path) -> None:
    port = store[0].port
    with watching(Layout(dp=2), 1, tmp_path, 0.3):
        store[0].get("open/1/watchdog/beat/1")
        store.clear()
        assert lines.get(timeout=60).startswith(f"rank 1 (tp 0, pp 0, dp 1) lost the job's store at 127.0.0.1:{port}: ")


def test_a_rank_whose_store_answers_nothing_says_so(
    store: list[TCPStore], lines: queue.Queue[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network_back = threading.Event()

    class CutOff(MemoryStore):
        def check(self, _keys: list[str]) -> bool:
            return not network_back.wait()

    monkeypatch.setattr("torch.distributed.PrefixStore", lambda *_: CutOff())
    with watching(Layout(dp=2), 1, tmp_path, 0.3):
        line = lines.get(timeout=60)
        network_back.set()
    assert line.startswith(
        f"rank 1 (tp 0, pp 0, dp 1) lost the job's store at 127.0.0.1:{store[0].port}: no answer for"
    )
