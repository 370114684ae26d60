"""Decides what follows when a run's ranks have ended: start them again, on other nodes, or give up, and why.

    status 1 or 2                   a person must mend the cause: the run ends
    any other status, or a signal   the ranks start again from the newest checkpoint, unless
        max_restarts are used up, or three restarts in a row brought no new step: the run ends, with the causes
        the node has failed twice: the job needs other nodes

The ranks' supervisors ask: the local launcher, ``mtnlg-parallel restart`` in a Slurm job, and under torchrun, whose
agents restart on any failure, rank 0 of the next attempt.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_model.console import MISTAKES, Failure, UsageFailure, error_line, error_status
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.record.history import append, number, read_events
from mtnlg_parallel.record.metrics import last_steps
from mtnlg_parallel.record.run_dir import LOGS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_RESTARTS: Final = 100
CRASHED: Final = 72
"""Exit status of a rank that ended by an error nobody foresaw: of a device, the network, a library, or a bug."""

PERMANENT: Final = {1, 2}
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that make a run write a checkpoint and exit: Slurm's before preemption and time limit, a lost terminal's."""

STOPPED: Final = {status for number in STOP_SIGNALS for status in (-number, 128 + number)}
"""Statuses, by subprocess and by a shell, of a rank that was told to stop before it trained."""

PAUSES: Final = (0.0, 10.0, 60.0)
"""Seconds before the next restart, by the number of restarts in a row that brought no new step."""

NODE_FAILURES: Final = 2
"""Failures of a node by which it is excluded."""


class Failed(NamedTuple):
    """How an attempt to run all ranks failed; ``new_steps`` are those beyond the highest step of any earlier one."""

    reason: str
    status: int
    node: str = ""
    new_steps: int = 0


class Decision(NamedTuple):
    """What to do, why where the run ends, which nodes to exclude, and how many seconds to wait before."""

    action: Literal["restart", "requeue", "end"]
    reason: str = ""
    excluded: tuple[str, ...] = ()
    pause: float = 0.0


class RankCrash(Failure):
    """A rank ended by an error that is no `Failure`, so that another attempt may succeed."""

    exit_status = CRASHED


def decide(failures: Sequence[Failed], max_restarts: int) -> Decision:
    """What follows the last of ``failures``, all those since a person started the run."""
    *_, last = failures
    restarts = len(failures) - 1
    if last.status in PERMANENT or max_restarts == 0:
        return Decision("end", last.reason)
    fruitless = list(takewhile(lambda failed: not failed.new_steps, reversed(failures[1:])))[: len(PAUSES)]
    if len(fruitless) == len(PAUSES):
        causes = "; ".join(f"({n}) {failed.reason}" for n, failed in enumerate(reversed(fruitless), 1))
        return Decision("end", f"three restarts in a row brought no new step: {causes}")
    if restarts >= max_restarts:
        return Decision("end", f"{last.reason}; all {max_restarts} restarts of --max-restarts are used up")
    pause = PAUSES[len(fruitless)]
    by_node = Counter(failed.node for failed in failures if failed.node)
    if by_node[last.node] >= NODE_FAILURES:
        bad = tuple(node for node, times in by_node.items() if times >= NODE_FAILURES)
        return Decision("requeue", excluded=bad, pause=pause)
    return Decision("requeue" if last.status in STOPPED else "restart", pause=pause)


def record_failure(out: Path, reason: str, status: int, node: str = "", job: str = "") -> Failed:
    """Append to ``out``'s history how an attempt ended, before the next one truncates metrics.jsonl."""
    reached = new_steps = 0
    with suppress(OSError):  # a full disk, perhaps the very failure, must not end the supervisor
        reached, new_steps = _steps_reached(out)
        facts = {"status": status, "step": reached, "new_steps": new_steps}
        append(out, "failed", reason=reason, node=node, job=job, **facts)
    return Failed(reason, status, node, new_steps)


def recorded_failures(out: Path, job: str | None = None) -> list[Failed]:
    """The failures in ``out``'s history in order; those of one ``job`` where it is given."""
    failures: list[Failed] = []
    with suppress(OSError):  # as in record_failure
        for event in read_events(out):
            if event["event"] == "failed" and job in {None, event.get("job")}:
                reason, node = (str(event.get(key, "")) for key in ("reason", "node"))
                failures.append(Failed(reason, int(number(event, "status")), node, int(number(event, "new_steps"))))
    return failures


def _steps_reached(out: Path) -> tuple[int, int]:
    """The last step in metrics.jsonl, and how many of the last attempt's steps no attempt before it had reached."""
    highest, resumed = 0, False
    for event in read_events(out):
        if event["event"] == "resumed":
            highest, resumed = max(highest, int(number(event, "step") + number(event, "lost_steps"))), True
        elif event["event"] == "failed":
            highest, resumed = max(highest, int(number(event, "step"))), False
        elif event["event"] == "start":
            resumed = False
    reached = next((step["step"] for step in last_steps(out, 1)), 0)
    return reached, max(0, reached - highest) if resumed else 0


def as_rank_failure(error: Exception) -> Exception:
    """The error that ends a rank, as one whose exit status says whether another attempt may succeed."""
    known = hasattr(error, "exit_status")  # a Failure, of mtnlg_data's too
    if known or isinstance(error, MISTAKES) or error_status(error) not in PERMANENT:
        return error
    return RankCrash(f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}")


def write_failure_file(out: Path, error: Exception) -> None:
    """In a rank of torchrun that this error ends: record its status for the next attempt, which torchrun starts."""
    rank = this_rank()
    if rank.launcher != "torchrun":
        return
    reason = f"rank {rank.rank} on {rank.node}: {error_line(error)}"
    failure = {"reason": reason, "status": error_status(error), "node": rank.node}
    with suppress(OSError):
        (out / LOGS).mkdir(parents=True, exist_ok=True)
        (out / LOGS / f"rank-{rank.rank}.failure").write_text(json.dumps(failure), encoding="utf-8")


def process_group_initialized() -> bool:
    """Whether this process is in a process group with all ranks."""
    distributed = sys.modules.get("torch.distributed")  # not imported for this: it takes seconds
    return distributed is not None and bool(distributed.is_initialized())


def check_elastic_store() -> None:
    """Raise ``UsageFailure`` where torchrun could not restart the ranks: agents of several nodes share an old store.

    Each agent counts the failures of its own ranks only, so no number tells the keys of one attempt from another's.
    """
    rank = this_rank()
    if rank.nodes > 1 and rank.agent_store and rank.max_restarts:
        raise UsageFailure(
            f"torchrun restarts the ranks of {rank.nodes} nodes in a store with the addresses of dead ranks; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment, with --rdzv-backend c10d, or --max-restarts 0"
        )


def check_starting_over(out: Path) -> None:
    """Raise ``UsageFailure`` where torchrun's agents count attempts apart, so that a later one would delete ``out``."""
    rank = this_rank()
    if rank.launcher == "torchrun" and rank.nodes > 1 and rank.max_restarts:
        hint = f"remove {out} and leave the option out, or --max-restarts 0"
        raise UsageFailure(f"--no-resume: torchrun over {rank.nodes} nodes does not tell its first attempt; {hint}")


def check_elastic_restart(out: Path) -> None:
    """On torchrun's rank 0: record how the attempt before ended. Raises ``Failure`` where a restart is of no use."""
    left_behind = _read_failure_files(out)
    restarts = this_rank().restarts
    if not restarts:
        return
    killed = Failed("a rank was killed; torchrun's output names it", -signal.SIGKILL)
    reason, status, node, _ = min(left_behind, key=lambda failed: failed.status not in PERMANENT, default=killed)
    # The agents bound the restarts themselves; each failure of theirs is recorded here.
    failures = [*recorded_failures(out), record_failure(out, reason, status, node)]
    decision = decide(failures[-restarts:], restarts + 1)
    if decision.action == "end":
        raise Failure(decision.reason)


def _read_failure_files(out: Path) -> list[Failed]:
    """Read and remove what the ranks of the attempt before wrote, the first to fail first.

    By modification time, which on a shared folder is one server's clock.
    """
    found: list[tuple[int, Failed]] = []
    for path in (out / LOGS).glob("rank-*.failure"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            facts = json.loads(path.read_text(encoding="utf-8"))
            failed = Failed(str(facts["reason"]), int(facts["status"]), str(facts["node"]))
            found.append((path.stat().st_mtime_ns, failed))
        path.unlink(missing_ok=True)
    return [failed for _, failed in sorted(found)]
