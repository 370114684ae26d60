"""history.jsonl survives kills, and goodput accounts for every second of a run's wall time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import event, write_events, write_steps

from mtnlg_parallel.record import history
from mtnlg_parallel.record.history import Goodput, StepSeconds, append, goodput, read_events

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_parallel.record.metrics import Step

Event = dict[str, object]


def steps(count: int, seconds: float = 1.0) -> StepSeconds:
    """Every 10th step takes two seconds of a checkpoint more, every 20th one of validation."""
    taken = StepSeconds()
    for number in range(1, count + 1):
        step: Step = {"step": number, "seconds": seconds}
        if number % 10 == 0:
            step["seconds"] += 2.0
            step["checkpoint_seconds"] = 2.0
        if number % 20 == 0:
            step["seconds"] += 1.0
            step["validation_seconds"] = 1.0
        taken.add(step)
    return taken


def booked(figures: Goodput) -> dict[str, float]:
    """The seconds that were no steps, and were some."""
    return {name: seconds for name, seconds in [*figures.seconds.items()][3:] if seconds}


CRASHED = [
    event("start", 0.0),
    event("resumed", 10.0, step=0, source="initial"),
    event("failed", 40.0, reason="rank 3 was killed by signal 9", node="n7"),  # 25 steps took 27 + 2 s
    event("start", 45.0),
    event("resumed", 60.0, step=20, source="memory", lost_steps=5, lost_seconds=5.0),
    event("stopped", 170.0, step=100),  # 80 steps took 100 s
]
KILLED = [
    event("start", 0.0),
    event("resumed", 0.0, step=0),
    event("start", 5000.0),  # 12 steps of 1 s and a checkpoint of 2, then a night
    event("resumed", 5010.0, step=10, lost_steps=2, lost_seconds=2.0),
]
STOPPED = [
    event("start", 0.0),
    event("resumed", 0.0, step=0),
    event("stopped", 12.0, step=10, signal=15),
    event("start", 9000.0),
    event("failed", 9001.0, reason="no space left on device"),
    event("start", 9002.0),
    event("resumed", 9010.0, step=10),
]
DOWN = [event("start", 0.0), event("resumed", 0.0, step=0), event("failed", 30.0, reason="hang"), event("start", 50.0)]
UNTOUCHED = [event("start", 100.0), event("resumed", 110.0, step=0), event("stopped", 237.0, step=100)]
WITHOUT_STOP = [event("start", 0.0), event("resumed", 0.0, step=0), event("resumed", 20.0, step=5)]


@pytest.mark.parametrize(
    ("run", "taken", "seconds", "wall", "reasons"),
    [
        (UNTOUCHED, 100, {"startup": 10, "other": 2}, 137, []),
        (
            CRASHED,
            100,
            {"lost": 5, "restart": 60 - (10 + 25 + 5), "startup": 10, "other": 10},
            170,
            [CRASHED[2]["reason"]],
        ),
        (KILLED, 15, {"lost": 2, "restart": 5010 - 14}, 5010 + 5, ["it ended without a message"]),
        (WITHOUT_STOP, 8, {"restart": 15}, 8 + 15, [""]),  # ranks that waited for a lost one
        (STOPPED, 10, {"restart": 10, "waiting": 9000 - 12}, 9010, ["no space left on device"]),
        ([*STOPPED[:4], STOPPED[-1]], 10, {"startup": 10, "waiting": 9000 - 12}, 9010, []),
        (DOWN, 5, {"restart": 45}, 50, []),  # down until its last event
        (DOWN[:3], 5, {"restart": 25}, 30, []),
        (DOWN[:1], 0, {}, 0, []),
        ([], 5, {}, 5, []),  # a run from before there was a history
    ],
    ids=["untouched", "failure", "kill", "no stop", "stop", "clean stop", "down", "failed", "begun", "no history"],
)
def test_every_second_of_a_run_is_booked(
    run: list[Event], taken: int, seconds: dict[str, float], wall: float, reasons: list[str]
) -> None:
    figures = Goodput(run, steps(taken))
    assert booked(figures) == seconds
    assert figures.facts()["wall"] == wall
    assert figures.share == (taken / (wall - seconds.get("waiting", 0)) if taken else None)
    assert [restart["reason"] for restart in figures.restarts] == reasons


def test_restart_reports_its_cost() -> None:
    (restart,) = Goodput(CRASHED, steps(100)).restarts
    assert (restart["node"], restart["source"], restart["step"]) == ("n7", "memory", 20)
    assert (restart["lost_steps"], restart["seconds"]) == (5, 20.0)


def test_clock_stepping_back_is_reported_and_loses_no_time() -> None:
    run = [
        event("start", 3600.0),  # an hour ahead
        event("resumed", 3610.0, step=0),
        event("failed", 3630.0),
        event("start", 40.0),
        event("resumed", 50.0, step=10),
        event("stopped", 65.0, step=20),
    ]
    figures = Goodput(run, steps(20))
    assert figures.clock_stepped_back
    assert booked(figures) == {"startup": 10, "other": 2}
    assert not Goodput([event("start", 1.0), event("resumed", 1.0)], steps(0)).clock_stepped_back


names = st.sampled_from(["start", "resumed", "stopped", "failed"])
moments = st.floats(0, 1e4)


@given(st.lists(st.tuples(names, moments, st.integers(0, 30), moments)), st.booleans())
def test_seconds_and_goodput_are_never_negative(drawn: list[tuple[str, float, int, float]], in_order: bool) -> None:
    if in_order:
        drawn.sort(key=lambda entry: entry[1])
    run = [event(name, time, step=step, lost_steps=1, lost_seconds=lost) for name, time, step, lost in drawn]
    figures = Goodput(run, steps(25))
    assert all(seconds >= 0 for seconds in booked(figures).values())
    assert figures.share is not None
    assert 0 < figures.share <= 1
    assert not (in_order and figures.clock_stepped_back)


def test_torn_event_file_is_read_and_appended(tmp_path: Path) -> None:
    assert list(read_events(tmp_path)) == []
    append(tmp_path, "start", layout="tp=1,pp=1,dp=1", job="")
    with (tmp_path / history.FILE).open("a") as file:
        file.write('{"event": "resumed", "time": 17')
    append(tmp_path, "failed", reason="rank 0 was killed", status=-9)
    with (tmp_path / history.FILE).open("ab") as file:
        file.write(b'[]\n\xff\n{"event": "sto\x00"}\n{"event": "stopped"}\n{"event": "stopped", "time": NaN}\n')
        file.write(b'{"event": "stopped", "time": 1e300}\n{"event": "stopped", "time": -1}\n')
        file.write(b'{"event": "start", "time"')
    events = list(read_events(tmp_path))
    assert [entry["event"] for entry in events] == ["start", "failed"]
    assert events[1]["reason"] == "rank 0 was killed"


def test_goodput_of_a_folder_is_read_from_its_files(tmp_path: Path) -> None:
    lines = [json.dumps({"step": n, "seconds": 2.0, "validation_seconds": 0.5}) + "\n" for n in range(1, 5)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"step": 5')
    run = [event("start", 5.0), event("resumed", 7.0, step=0, lost_seconds="many"), event("stopped", 15.0, step=4)]
    write_events(tmp_path, run)
    figures = goodput(tmp_path).facts()
    assert (figures["useful"], figures["validation"], figures["wall"]) == (6.0, 2.0, 10.0)
    assert figures["share"] == 0.6
    assert json.loads(json.dumps(figures))["restarts"] == []


def test_goodput_while_training_is_what_the_files_then_tell(tmp_path: Path) -> None:
    events = [event("start", 0.0), event("resumed", 10.0, step=0), event("failed", 14.0), event("start", 18.0)]
    events.append(event("resumed", 20.0, step=2, lost_steps=1, lost_seconds=1.0))
    write_events(tmp_path, events)
    write_steps(tmp_path, [{"step": number, "seconds": 1.0} for number in (1, 2)])
    running = history.RunningGoodput(tmp_path)
    for number in (3, 4):
        step: Step = {"step": number, "seconds": 2.0, "validation_seconds": 0.5}
        share = running.after(step)
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(step) + "\n")
    assert share == pytest.approx(goodput(tmp_path).share)
    assert share == pytest.approx((2 + 2 * 1.5) / (20 + 2 * 2))
