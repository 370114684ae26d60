"""``mtnlg-parallel status OUT``: state of a run, only from the files in its folder. Needs no GPU, no ranks, no torch.

complete   summary.json exists
stopped    a signal ended the run cleanly; the same command resumes it
failed     the run ended otherwise, and has not been started again
starting   the run was started and has no step yet
running    the last step is as recent as the duration of steps suggests
silent     the last step is too old: the run was killed entirely, is cut off, or waits for something
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from mtnlg_data.report.numbers import NARROW, duration
from mtnlg_model.checkpoint.manifest import MANIFEST, list_checkpoints
from mtnlg_model.console import print_json
from mtnlg_parallel.text import render

from . import metrics
from .history import Goodput, StepSeconds, number, read_events
from .run_dir import CHECKPOINTS, RECIPE, SUMMARY, corpus_passes, run_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.recipe import Recipe

    from .metrics import Step

RECENT_STEPS: Final = 100
READ_BYTES: Final = 1 << 18
"""Bytes of metrics.jsonl that are read: usually more than the recent steps."""
QUIET_STEPS, QUIET_SECONDS = 3, 60.0
"""A run is silent after this many times its longest recent step, plus this many seconds."""
MAX_RESTARTS_SHOWN = 10


class State(NamedTuple):
    """One of the states above, since when in seconds since 1970, and details."""

    word: str
    since: float
    detail: str = ""


def status_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The --out of mtnlg-parallel train.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout; times are seconds since 1970.")
    ] = False,
) -> None:
    """Show what a run does: progress, speed, expected end, last checkpoint, restarts and goodput."""
    facts = status(out)
    if as_json:
        print_json(facts)
    else:
        typer.echo(status_text(facts).rstrip())


def status(out: Path, now: float | None = None) -> dict[str, Any]:
    """State and figures of the run in ``out``. Raises ``Failure`` if there is no run."""
    now = time.time() if now is None else now
    recipe = run_recipe(out)
    events, steps = list(read_events(out)), metrics.last_steps(out, READ_BYTES)
    resumed = [event for event in events if event["event"] == "resumed"]
    if all("totals" in step for step in steps) and all("trained" in event for event in resumed):
        seconds = StepSeconds(steps, {int(number(event, "step")): number(event, "trained") for event in resumed})
    else:  # of an earlier version
        seconds = StepSeconds(metrics.read_steps(out))
    recent = steps[-RECENT_STEPS:]
    starts = [event for event in events if event["event"] == "start"]
    state, progress, end = _state(out, recipe, events, recent, now), _progress(recipe, recent), None
    if state.word == "running":  # at the pace of recent steps, including their checkpoints and validations
        remaining_tokens = max(0, recipe.train.samples - progress["samples"]) * recipe.model.sequence
        end = _written(out / metrics.FILE) + remaining_tokens / progress["tokens_per_second"]
    return {
        "out": str(out),
        "state": state.word,
        "since": state.since,
        "detail": state.detail,
        "now": now,
        **{key: starts[-1].get(key) if starts else None for key in ("layout", "host", "job")},
        **progress,
        "validation_loss": seconds.validation_loss,
        "slow_rank": next((step.get("slow_rank", "") for step in reversed(recent) if "slowest_rank" in step), ""),
        "skipped": seconds.skipped,
        "last_skip": seconds.last_skip,
        "corpus_passes": corpus_passes(events, progress["samples"]),
        "expected_end": end,
        "checkpoint": _newest_checkpoint(out),
        "goodput": Goodput(events, seconds).facts(),
    }


def _state(out: Path, recipe: Recipe, events: Sequence[dict[str, Any]], recent: Sequence[Step], now: float) -> State:
    last: dict[str, Any] = events[-1] if events else {"event": "none", "time": _written(out / RECIPE)}
    name, since = str(last["event"]), float(last["time"])
    if (out / SUMMARY).exists():
        return State("complete", since if name == "stopped" else _written(out / SUMMARY))
    if name == "stopped":
        signal = int(number(last, "signal"))
        return State("stopped", since, f"by {Signals(signal).name}" if signal in list(Signals) else "")
    if name == "failed":
        return State("failed", since, cause(last))
    sign_of_life = max(since, _written(out / metrics.FILE))
    trained = bool(recent) and name != "start" and recent[-1]["step"] > number(last, "step")
    if trained:
        patience = QUIET_STEPS * max(step["seconds"] for step in recent) + QUIET_SECONDS
    else:
        patience = max(recipe.guard.patience, recipe.guard.disk_patience)
    if now - sign_of_life > patience:
        return State("silent", sign_of_life)
    return State("running" if trained else "starting", since)


def _progress(recipe: Recipe, recent: Sequence[Step]) -> dict[str, Any]:
    last: Step = recent[-1] if recent else {"step": 0, "samples": 0, "tokens": 0, "loss": None}
    seconds, samples = sum(step["seconds"] for step in recent), sum(step["batch_size"] for step in recent)
    mfu = [step["mfu"] for step in recent if "mfu" in step]
    return {
        "step": last["step"],
        "steps": last["step"] + recipe.batch_size.number_of_steps(recipe.train.samples, last["samples"]),
        "samples": last["samples"],
        "tokens": last["tokens"],
        "loss": last["loss"],
        "step_seconds": seconds / len(recent) if recent else None,
        "tokens_per_second": samples * recipe.model.sequence / seconds if seconds else None,
        "mfu": sum(mfu) / len(mfu) if mfu else None,
    }


def _newest_checkpoint(out: Path) -> dict[str, Any] | None:
    checkpoints = list_checkpoints(out / CHECKPOINTS)
    if not checkpoints:
        return None
    step, path = checkpoints[-1]
    return {"path": str(path), "step": step, "time": _written(path / MANIFEST)}


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # not yet, or removed just now
        return 0.0


def status_text(facts: dict[str, Any]) -> str:
    """`status` as text; other nodes write reasons, whose control characters become spaces."""
    most = {"recent_steps": RECENT_STEPS, "most_restarts": MAX_RESTARTS_SHOWN}
    return render("record/status.txt", facts | most, (cause, clock, duration, moment), _printable)


def _printable(value: object) -> str:
    return "".join(c if c.isprintable() or c == NARROW else " " for c in str(value))


def cause(failure: dict[str, Any]) -> str:
    """Reason and node of a failure or a restart."""
    return " on ".join(str(failure[key]) for key in ("reason", "node") if failure.get(key))


def moment(then: float, now: float) -> str:
    """A time, and how long ago it was."""
    return f"{clock(then)}, {duration(max(0.0, now - then))} ago"


def clock(then: float) -> str:
    """A time by this machine's clock."""
    return datetime.fromtimestamp(then).astimezone().strftime("%Y-%m-%d %H:%M:%S")
