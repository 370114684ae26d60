"""How a rank ended: the table of exit statuses, and the failure file with details.

A rank that fails writes ``OUT/logs/rank-N.failure``, JSON with a reason, a status and the node at fault; if it cannot,
as after SIGKILL, its node's agent does. The run's supervisor reads these files and calls `launch.supervise.decide`.
"""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from mtnlg_model.console import Failure
from mtnlg_model.files import read_small, write_json

if TYPE_CHECKING:
    from pathlib import Path

Cause = Literal["none", "person", "shared", "node", "peer", "stop"]

ACTIONS: Final[dict[Cause, str]] = {
    "none": "nothing",
    "person": "ends the run: a person must fix the cause",
    "shared": "restarts all ranks from the newest checkpoint",
    "node": "as 74; a node with two such failures within a day is excluded under Slurm",
    "peer": "as 74",
    "stop": "requeues under Slurm; elsewhere the same command resumes",
}
"""What the supervisor does, by the cause of a failure."""

FOLDER: Final = "logs"
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals on which a run writes a checkpoint and exits: Slurm's before preemption and time limit, a lost terminal's."""


class Exit(IntEnum):
    """Exit statuses of ``mtnlg-parallel``; 128 + N, or -N for a parent in Python, means signal N."""

    cause: Cause
    meaning: str

    def __new__(cls, number: int, cause: Cause, meaning: str) -> Self:
        """Create an int with its cause and meaning."""
        status = int.__new__(cls, number)
        status._value_ = number
        status.cause, status.meaning = cause, meaning
        return status

    COMPLETE = 0, "none", "the run is complete, or the command has done what it was asked"
    FAILED = 1, "person", "a missing file, a damaged checkpoint, wrong data"
    USAGE = 2, "person", "a wrong command line, recipe or environment; nothing was started"
    PEER_LOST = 70, "peer", "a rank ended because another rank had"
    HUNG = 71, "node", "the watchdog ended a job that hung; the failure file names the node that held it up"
    CRASHED = 72, "node", "an unforeseen error of a rank (device, network, library), or a node unfit to train"
    NOT_STARTED = 73, "shared", "no rank left a failure file: the ranks could not be started, or their node is lost"
    IO = 74, "shared", "a disk or a network file system failed, or a name did not resolve"
    STOPPED = 75, "stop", "a signal stopped the run before its end; its checkpoint is written"


def cause_of(status: int) -> Cause:
    """Cause of an exit status; "shared", which blames no node, for statuses that `Exit` does not list."""
    number = -status if status < 0 else status - 128
    if number > 0:
        return "stop" if number in STOP_SIGNALS else "node"
    return next((known.cause for known in Exit if known == status), "shared")


class Failed(NamedTuple):
    """How an attempt to run all ranks failed; ``time`` is in seconds since 1970.

    ``node`` is the node at fault, if known; ``new_steps`` counts the steps beyond the highest step of any earlier
    attempt.
    """

    reason: str
    status: int
    node: str = ""
    new_steps: int = 0
    time: float = 0.0


def failure_file(out: Path, rank: int) -> Path:
    """Path of the failure file of rank ``rank``."""
    return out / FOLDER / f"rank-{rank}.failure"


def write_failure(out: Path, rank: int, failed: Failed) -> None:
    """Write a rank's failure file. Ignores errors: a full disk may be the very failure, or the path a pipe."""
    with suppress(OSError, Failure):
        facts = {"reason": failed.reason, "status": int(failed.status), "node": failed.node}
        write_json(failure_file(out, rank), facts)


def read_failure(path: Path) -> Failed | None:
    """Read a failure file; None if invalid. ``time`` is its modification time, by one clock in a shared folder."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        facts = json.loads(read_small(path))
        reason, node = str(facts["reason"]), str(facts["node"])
        return Failed(reason, int(facts["status"]), node, time=path.stat().st_mtime)
    return None


def take_failures(out: Path) -> list[Failed]:
    """Read and remove the failure files of the previous attempt."""
    paths = list((out / FOLDER).glob("rank-*.failure"))
    failures = [read_failure(path) for path in paths]
    for path in paths:
        path.unlink(missing_ok=True)
    return [failed for failed in failures if failed]


def first_failure(failures: list[Failed]) -> Failed:
    """The failure that explains the others, which may have crashed or lost a peer because of it."""
    suspicion: tuple[Cause, ...] = ("person", "shared", "node", "none", "peer", "stop")
    return min(failures, key=lambda f: (suspicion.index(cause_of(f.status)), f.status == Exit.CRASHED, f.time))
