"""`mtnlg-parallel status` tells from a run's files what it does, however it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_runs
import typer
from typer.testing import CliRunner

from mtnlg_model.settings import dump
from mtnlg_parallel.record.history import StepSeconds
from mtnlg_parallel.record.metrics import FILE as METRICS
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.run_dir import RECIPE, SUMMARY
from mtnlg_parallel.record.status import READ_BYTES, status, status_command, status_text

if TYPE_CHECKING:
    from collections.abc import Iterable

BEGAN = 1_750_000_000.0
START = {"event": "start", "time": BEGAN, "layout": "tp=1,pp=1,dp=1", "host": "node-1", "job": "77"}
RESUMED = {"event": "resumed", "time": BEGAN + 10, "step": 0, "source": "initial", "corpus": 800}


def run_of(out: Path, events: Iterable[dict[str, Any]], steps: int, written: float) -> Path:
    """A run of 1,000 steps of 2 s; the file of its steps was last ``written`` so many seconds after it began."""
    out.mkdir(exist_ok=True)
    (out / RECIPE).write_text(dump(small_runs.recipe_of(samples=8000)))
    small_runs.write_events(out, events)
    lines = [
        {"step": n, "samples": 8 * n, "tokens": 1024 * n, "loss": 5.0 - n / 1000, "batch_size": 8, "seconds": 2.0}
        | ({"validation_loss": 4.5} if n == 2 else {})
        | ({"skipped": "loss leaps"} if n == 3 else {})
        for n in range(1, steps + 1)
    ]
    small_runs.write_steps(out, lines)
    for name in (METRICS, RECIPE):
        os.utime(out / name, (BEGAN + written, BEGAN + written))
    return out


def event(name: str, after: float, **facts: object) -> dict[str, Any]:
    return small_runs.event(name, BEGAN + after, **facts)


def test_a_run_of_a_missing_engine_has_a_status(tmp_path: Path) -> None:
    out = run_of(tmp_path, [START, RESUMED], 250, 510)
    (out / RECIPE).write_text((out / RECIPE).read_text().replace('"pipeline"', '"of_another_machine:Engine"'))
    assert status(out, BEGAN + 520)["state"] == "running"


def test_a_running_run_has_progress_speed_and_an_expected_end(tmp_path: Path) -> None:
    out = run_of(tmp_path, [START, RESUMED], 250, 510)
    checkpoint = out / "checkpoints" / "step-200"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").touch()
    os.utime(checkpoint / "manifest.json", (BEGAN + 450, BEGAN + 450))
    (out / "checkpoints" / "step-250.tmp").mkdir()
    facts = status(out, BEGAN + 520)
    assert (facts["state"], facts["since"]) == ("running", BEGAN + 10)
    assert (facts["step"], facts["steps"], facts["samples"]) == (250, 1000, 2000)
    assert facts["tokens_per_second"] == 512.0
    assert facts["expected_end"] == BEGAN + 510 + 750 * 2
    assert facts["checkpoint"] == {"path": str(checkpoint), "step": 200, "time": BEGAN + 450}
    assert facts["goodput"]["share"] == pytest.approx(500 / 510)
    text = status_text(facts).replace("\N{NARROW NO-BREAK SPACE}", " ")
    for words in (
        f"{out}: running\n",
        "on          tp=1,pp=1,dp=1, node-1, job 77",
        "step        250 of 1,000 (25.0%), 256,000 tokens, 2.5 passes over the corpus",
        "loss        4.7500, 4.5000 held out",
        "skipped     1 steps, the last 3: loss leaps",
        "speed       512 tokens/s, 2 s per step, over the last 100 steps",
        "at this pace, in 24 min 50 s",
        "checkpoint  step 200, ",
        "1 min 10 s ago",
        "goodput     98.0% of 8 min 30 s; startup 2.0%",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("events", "steps", "now", "state", "since", "detail"),
    [
        ([START], 0, 100, "starting", 0, ""),
        ([START, RESUMED], 0, 100, "starting", 10, ""),
        ([START, RESUMED], 5, 80, "running", 10, ""),
        ([START, RESUMED], 5, 600, "silent", 50, ""),
        ([START], 0, 3700, "silent", 50, ""),  # after disk_patience
        ([START, RESUMED, event("stopped", 30, step=5, signal=15)], 5, 9999, "stopped", 30, "by SIGTERM"),
        ([START, RESUMED, event("failed", 30, reason="a hang", node="n2")], 5, 99, "failed", 30, "a hang on n2"),
        ([START, RESUMED, event("failed", 30, reason="a hang"), event("start", 40)], 5, 99, "starting", 40, ""),
        ([START, RESUMED, event("start", 40), event("resumed", 45, step=5)], 5, 99, "starting", 45, ""),
        ([], 5, 80, "running", 50, ""),  # of a version without a history
        ([], 0, 80, "starting", 50, ""),
    ],
)
def test_state_follows_last_event_and_heartbeat(  # noqa: PLR0917  (a table)
    tmp_path: Path, events: list[dict[str, Any]], steps: int, now: float, state: str, since: float, detail: str
) -> None:
    facts = status(run_of(tmp_path, events, steps, 50), BEGAN + now)
    assert (facts["state"], facts["since"] - BEGAN, facts["detail"]) == (state, since, detail)
    assert (facts["expected_end"] is None) == (state != "running")
    assert status_text(facts).splitlines()[0] == f"{tmp_path}: {state}" + (
        {"stopped": " ", "failed": ": "}.get(state, "") + detail
    )


def test_status_of_a_complete_run_ignores_later_events(tmp_path: Path) -> None:
    out = run_of(tmp_path, [START, RESUMED, event("stopped", 2010, step=1000)], 1000, 2010)
    (out / SUMMARY).write_text("{}")
    facts = status(out, BEGAN + 99_999)
    assert (facts["state"], facts["since"], facts["expected_end"]) == ("complete", BEGAN + 2010, None)


def test_restarts_are_listed_without_control_characters(tmp_path: Path) -> None:
    events = [START, RESUMED]
    for number in range(1, 13):
        events.append(event("failed", 100 * number, reason=f"rank {number} \x1b[31mdied", node="n7"))
        events.append(event("resumed", 100 * number + 5, step=3, source="memory", lost_steps=2, lost_seconds=4.0))
    out = run_of(tmp_path, events, 20, 1240)
    app = typer.Typer()
    app.command()(status_command)
    lines = CliRunner().invoke(app, [str(out)]).stdout.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("restarts "))
    assert lines[head] == "restarts    12, the last 10:"
    assert len(lines[head + 1 :]) == 10
    assert (
        lines[-1]
        .replace("\N{NARROW NO-BREAK SPACE}", " ")
        .endswith(  # 1,205 - (1,105 + 4) seconds
            "step 3 from memory after 1 min 36 s, 2 steps lost: rank 12  [31mdied on n7"
        )
    )
    facts = json.loads(CliRunner().invoke(app, [str(out), "--json"]).stdout)
    assert facts["goodput"]["restarts"][0]["reason"] == "rank 1 \x1b[31mdied"
    assert facts["goodput"]["lost_steps"] == 24


def test_status_of_a_long_run_reads_the_end_of_its_steps(tmp_path: Path) -> None:
    """And says what all of them give."""
    ended = [event("failed", 60, reason="a hang"), event("start", 70)]
    events = [START, RESUMED, *ended, event("resumed", 80, step=20, lost_seconds=4.0)]
    out = run_of(tmp_path, events, 20_000, 40_000)
    whole, taken, lines = status(out, BEGAN), StepSeconds(), list[dict[str, Any]]()
    for step in read_steps(out):
        taken.add(step)
        lines.append({**step, "totals": taken.totals})
    small_runs.write_steps(out, lines)
    small_runs.write_events(
        out, [each | {"trained": 2.0 * each["step"]} if "step" in each else each for each in events]
    )
    os.utime(out / METRICS, (BEGAN + 40_000, BEGAN + 40_000))
    before = bytes_read()
    assert status(out, BEGAN) == whole
    assert bytes_read() - before < 2 * READ_BYTES < (out / METRICS).stat().st_size / 4


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def test_the_status_needs_no_torch() -> None:
    code = "import sys, mtnlg_parallel.record.status; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"set()\n"
