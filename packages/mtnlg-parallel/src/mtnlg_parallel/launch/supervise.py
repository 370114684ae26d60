"""The supervisor: decides what to do after ranks have failed, from the failures in the run's history.

    supervisor                   decides by                            and then
    the local launcher           `run_supervised`                      starts the ranks again, or ends
    a Slurm job's script         ``mtnlg-parallel restart``            restarts in place, requeues, or ends
    torchrun                     its agents; rank 0 records failures   restarts; a mistake ends the run

An attempt's failures are in its failure files (`statuses`). `Exit` and `ACTIONS` define the action for each status.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.console import MISTAKES, Failure, UsageFailure, error_line, error_status, progress, say
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.record.history import append, number, read_events
from mtnlg_parallel.record.metrics import last_step
from mtnlg_parallel.record.run_dir import CHECKPOINTS, SUMMARY, RunState
from mtnlg_parallel.rendezvous import HostedStore
from mtnlg_parallel.statuses import (
    STOP_SIGNALS,
    Exit,
    Failed,
    cause_of,
    first_failure,
    take_failures,
    write_failure,
)

from .agent import Ended, follow, local_rank, record_signals, run_attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mtnlg_parallel.layout import Layout

MAX_RESTARTS: Final = 100
PAUSES: Final = (0.0, 10.0, 60.0)
"""Seconds before the next restart, indexed by the number of restarts in a row that brought no new step."""

NODE_FAILURES: Final = 2
"""Failures within `DAY` after which a node is excluded."""

DAY: Final = 86400.0
RESUME_HINT: Final = "the same command resumes from the newest checkpoint"
TOLD_TO_STOP: Final = Failed("a rank received a stop signal, and all stopped", Exit.STOPPED)


class Decision(NamedTuple):
    """The next action, the reason if it is "end", nodes to exclude, and seconds to wait first."""

    action: Literal["restart", "requeue", "end"]
    reason: str = ""
    excluded: tuple[str, ...] = ()
    pause: float = 0.0


class RankCrash(Failure):
    """An error other than `Failure` ended a rank, so that another attempt may succeed."""

    exit_status = Exit.CRASHED


class PeerFailure(Failure):
    """A collective failed because another rank is gone."""

    exit_status = Exit.PEER_LOST


def decide(failures: Sequence[Failed], max_restarts: int) -> Decision:
    """Decide what to do after the last of ``failures``, which are all since a person started the run."""
    *_, last = failures
    restarts, cause = len(failures) - 1, cause_of(last.status)
    if cause == "person" or max_restarts == 0:
        return Decision("end", last.reason)
    fruitless = list(takewhile(lambda failed: not failed.new_steps, reversed(failures[1:])))[: len(PAUSES)]
    if len(fruitless) == len(PAUSES):
        causes = "; ".join(f"({n}) {failed.reason}" for n, failed in enumerate(reversed(fruitless), 1))
        return Decision("end", f"three restarts in a row brought no new step: {causes}")
    if restarts >= max_restarts:
        return Decision("end", f"{last.reason}; all {max_restarts} restarts of --max-restarts are used up")
    recent = [failed for failed in failures if cause_of(failed.status) == "node" and failed.time > last.time - DAY]
    by_node = Counter(failed.node for failed in recent if failed.node)
    excluded = tuple(node for node, times in by_node.items() if times >= NODE_FAILURES)
    needs_others = cause == "node" and last.node in excluded
    action: Literal["restart", "requeue"] = "requeue" if needs_others or cause == "stop" else "restart"
    return Decision(action, excluded=excluded if needs_others else (), pause=PAUSES[len(fruitless)])


def record_failure(out: Path, failed: Failed, job: str = "") -> Failed:
    """Append an attempt's failure to ``out``'s history, before the next attempt truncates metrics.jsonl."""
    reached = new_steps = 0
    with suppress(OSError):  # a full disk, perhaps the very failure, must not end the supervisor
        reached, new_steps = _steps_reached(out)
        facts = {"status": int(failed.status), "step": reached, "new_steps": new_steps}
        append(out, "failed", reason=failed.reason, node=failed.node, job=job, **facts)
    return failed._replace(new_steps=new_steps, time=time.time())


def recorded_failures(out: Path, job: str) -> list[Failed]:
    """The failures of a job in ``out``'s history, in order."""
    failures: list[Failed] = []
    with suppress(OSError):  # as in record_failure
        for event in read_events(out):
            if event["event"] == "failed" and event.get("job") == job:
                reason, node = (str(event.get(key, "")) for key in ("reason", "node"))
                status, new_steps = (int(number(event, key)) for key in ("status", "new_steps"))
                failures.append(Failed(reason, status, node, new_steps, event["time"]))
    return failures


def _steps_reached(out: Path) -> tuple[int, int]:
    """The last step in metrics.jsonl, and how many steps it is beyond the highest step in the history."""
    reached = last["step"] if (last := last_step(out)) else 0
    steps = [
        number(event, "step") + number(event, "lost_steps") for event in read_events(out) if event["event"] != "stopped"
    ]
    return reached, int(max(0, reached - max(steps, default=0)))


def run_supervised(  # noqa: PLR0917  (two of them are the run's state, now and at a restart)
    layout: Layout,
    command: Sequence[str],
    out: Path,
    state: RunState,
    prepare_again: Callable[[], Layout | None],
    max_restarts: int,
) -> int:
    """Run ``command`` once per rank on this machine until the run is complete; restart all ranks as `decide` says.

    ``state`` is that of the run prepared in ``out``. ``prepare_again`` prepares ``out`` for a restart, and returns the
    restart's layout, or None if it is the same. Returns 0, or the signal that stopped the run. Raises a one-line
    ``Failure`` if ranks fail and are not restarted.
    """
    failures: list[Failed] = []
    with (
        record_signals(*STOP_SIGNALS, signal.SIGINT) as signals,
        progress("training", state.steps - state.step, "steps") as advance,
    ):
        update = follow(out, state.step, advance)
        while True:
            try:
                if failures:
                    layout = prepare_again() or layout
                take_failures(out)
                with closing(HostedStore()) as store:
                    first = local_rank(0, layout, store, restarts=len(failures))
                    ended = run_attempt(first, command, out, signals, update)
            except OSError as error:  # of the run's folder, or in starting a process
                reason = f"{error.filename or out}: {error.strerror}, while the ranks were started"
                ended = Ended(0, [Failed(reason, Exit.IO)])
            if (out / SUMMARY).exists():
                return 0
            if ended.stopped:
                return stop_without_ranks(out, ended.stop_signal)
            failures.append(record_failure(out, first_failure(ended.failures or [TOLD_TO_STOP])))
            reason = failures[-1].reason
            decision = decide(failures, max_restarts)
            if decision.action == "end" or signals:
                is_mistake = cause_of(failures[-1].status) == "person"  # whose reason says what to do
                raise Failure(f"{decision.reason or reason}{'' if is_mistake else f'; {RESUME_HINT}'}")
            wait = f" in {decision.pause:.0f} s" if decision.pause else ""
            say(f"{reason}; restarting{wait} ({len(failures)} of {max_restarts})")
            signals.wait(decision.pause)
            if signals:
                return stop_without_ranks(out, signals[0])


def stop_without_ranks(out: Path, stop_signal: int) -> int:
    """Record that a signal stopped the run, unless rank 0 did; returns it. Raises ``KeyboardInterrupt`` on SIGINT."""
    with suppress(OSError):
        *_, last = ({"event": ""}, *read_events(out))
        if last["event"] != "stopped":
            newest = latest(out / CHECKPOINTS)
            step = int(newest.name.removeprefix("step-")) if newest else 0
            append(out, "stopped", step=step, signal=stop_signal)
    if stop_signal == signal.SIGINT:
        raise KeyboardInterrupt
    return stop_signal


def stopped_line(out: Path, stop_signal: int) -> str:
    """The last line of a run that a signal stopped; ``stop_signal`` is 0 if only ranks received it."""
    newest = latest(out / CHECKPOINTS)
    stopped = f"stopped by {signal.Signals(stop_signal).name}" if stop_signal else TOLD_TO_STOP.reason
    checkpoint = f"its checkpoint is {newest}" if newest else "it had not started a step"
    return f"{stopped}; {checkpoint}; {RESUME_HINT}"


def as_rank_failure(error: Exception) -> Exception:
    """Convert the error that ends a rank so that its exit status says whether another attempt may succeed."""
    is_failure = hasattr(error, "exit_status")  # a Failure, of mtnlg_data's too
    if is_failure or isinstance(error, MISTAKES) or cause_of(error_status(error)) != "person":
        return error
    return RankCrash(f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}")


def report_rank_failure(out: Path, error: Exception) -> None:
    """In a rank that ``error`` ends: write its failure file, unless it only lost another rank.

    Before all ranks have met, nothing is written except under our launcher: another run may hold the lock of ``out``,
    and would read the file as its own.
    """
    rank = this_rank()
    distributed = sys.modules.get("torch.distributed")  # not imported for this: it takes seconds
    have_met = distributed is not None and bool(distributed.is_initialized())
    if (have_met or rank.launcher == "local") and not isinstance(error, PeerFailure):
        reason = f"rank {rank.rank} on {rank.node}: {error_line(error)}"
        write_failure(out, rank.rank, Failed(reason, error_status(error), rank.node))


def check_torchrun(out: Path, resume: bool) -> None:
    """Raise ``UsageFailure`` if torchrun's restarts cannot work: over several nodes, each agent counts attempts itself.

    So no count distinguishes the keys of two attempts in a shared store, or identifies the first attempt.
    """
    rank = this_rank()
    counts_itself = rank.launcher == "torchrun" and rank.nodes > 1 and rank.max_restarts
    if counts_itself and (rank.agent_store or not resume):
        store = "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment, with --rdzv-backend c10d"
        hint = store if rank.agent_store else f"--no-resume: remove {out} and leave the option out"
        raise UsageFailure(
            f"torchrun over {rank.nodes} nodes does not tell its attempts apart; {hint}, or --max-restarts 0"
        )


def record_elastic_restart(out: Path) -> None:
    """On torchrun's rank 0: record how the previous attempt ended. Raises ``Failure`` if a person must fix the cause.

    torchrun's agents limit the restarts themselves.
    """
    failures = take_failures(out)
    if this_rank().restarts:
        *_, last = ({"event": ""}, *read_events(out))
        killed = Failed("a rank was killed; torchrun's output names it", -signal.SIGKILL)
        failed = first_failure(failures or [TOLD_TO_STOP if last["event"] == "stopped" else killed])
        record_failure(out, failed)
        if cause_of(failed.status) == "person":
            raise Failure(failed.reason)
