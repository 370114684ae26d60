"""Starts a training run: on this machine, as a Slurm job, or as one rank of a job that another launcher started."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mtnlg_data.engine.folder_lock import LOCK, FolderInUse, lock_folder
from mtnlg_model.compare import differences
from mtnlg_model.console import Failure, UsageFailure, error_line, error_status, print_text, progress, say
from mtnlg_model.files import file_lines
from mtnlg_model.local_paths import local_path
from mtnlg_parallel.environment import limit_world, read_environment, step_nodes, this_node, this_rank
from mtnlg_parallel.identity import changes
from mtnlg_parallel.recipe import Recipe, RunOptions
from mtnlg_parallel.recipe_file import load_recipe, read_recipe
from mtnlg_parallel.record.run_dir import (
    CHECKPOINTS,
    LOGS,
    RECIPE,
    SUMMARY,
    RunState,
    check_run_dir,
    prepare_run_dir,
    read_summary,
    run_recipe,
)
from mtnlg_parallel.record.trackers import check_wandb
from mtnlg_parallel.rendezvous import HostedStore
from mtnlg_parallel.statuses import STOP_SIGNALS, Exit, Failed, first_failure, take_failures, write_failure
from mtnlg_parallel.training.samples import Data, open_data, with_number_tokenizer

from . import slurm, supervise
from .agent import check_ranks, die_with_parent, follow, rank_environment, ranks_here, record_signals, run_attempt
from .preflight import Forecast, forecast
from .supervise import run_supervised, stopped_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.stream import TokenStream
    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Callback
    from mtnlg_parallel.record.trackers import Tracker

WAITING_MAY_DIFFER: Final = {"slurm": "the new job's own", "layout": "in the arguments of its agents"}
"""Keys of the recipe that may differ between a job and the run that it waits for, with the reasons."""

MANY: Final = 10
"""Passes over the corpus above which a line says so."""

LOCK_PATIENCE: Final = 300.0
"""Seconds that a restart waits for its folder's lock; NFS releases a lost node's lock after about 90 s."""


class TrainingRun(NamedTuple):
    """What `train` is asked for, with the same meanings."""

    recipe: Recipe
    data: Path | str | Data
    out: Path
    options: RunOptions = RunOptions()
    resume: bool = True
    cluster: str | None = None
    force: bool = False
    max_restarts: int = supervise.MAX_RESTARTS
    elastic: bool = False

    def within(self, ranks: int) -> TrainingRun:
        """If elastic, the run at the largest ``dp`` that ``ranks`` ranks can run (`Recipe.within`)."""
        return self._replace(recipe=self.recipe.within(ranks)) if self.elastic else self

    def forecast(self) -> Forecast:
        """The planner's forecast. Raises ``UsageFailure`` if the run cannot fit, unless ``force``."""
        return forecast(self.recipe, self.cluster, self.force, self.options.device, self.data)

    @property
    def rank_arguments(self) -> list[str]:
        """Arguments of ``mtnlg-parallel train`` that make a process a rank of the run prepared in ``out``."""
        options = self.options
        arguments = [str(self.out / RECIPE), "--data", str(self.data), "--out", str(self.out), "--debug"]
        arguments += [f"--wandb={options.wandb}"] if options.wandb is not None else []
        arguments += [f"--profile={options.profile[0]}:{options.profile[-1]}"] if options.profile else []
        return [*arguments, *["--device=cpu"] * (options.device == "cpu")]

    @property
    def rank_command(self) -> list[str]:
        """The command of each rank."""
        return [sys.executable, "-m", "mtnlg_parallel.cli", "train", *self.rank_arguments]


def train(
    recipe: Path | str | Recipe,
    data: Path | str | TokenStream | Data,
    out: Path | str,
    *,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[Tracker] = (),
    resume: bool = True,
    options: RunOptions = RunOptions(),  # noqa: B008  (a tuple)
    cluster: str | None = None,
    force: bool = False,
    max_restarts: int = supervise.MAX_RESTARTS,
    elastic: bool = False,
) -> dict[str, Any] | None:
    """Train on this machine, one process per rank; returns summary.json, or None if the run was stopped.

    ``data`` is the folder that ``mtnlg-data run`` made, a `TokenStream`, or `Data`: streams with their tokenizer. The
    tokenizer of a bare stream names each token by its number. A callback gets each step's figures on rank 0, and stops
    the run after a last checkpoint by returning True; a tracker logs them. With streams, callbacks or trackers this
    process is a rank: the only one, or one of torchrun's.

    The run resumes from the newest checkpoint in ``out``, in any layout; without ``resume`` an earlier run there is
    deleted. If a rank fails, all ranks restart by the rules of `supervise.decide`. `statuses.STOP_SIGNALS` end the run
    after a last checkpoint: call this from the main thread. ``elastic``: each start uses the largest ``dp`` that this
    machine can run (`Recipe.within`). Raises ``UsageFailure`` if the recipe cannot work, or by the planner's forecast
    cannot fit this machine (or ``cluster``), unless ``force``; ``Failure`` if a rank fails and is not restarted, or
    another run is active in ``out``.
    """
    out = local_path(out)
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, data=Path(data) if isinstance(data, str | os.PathLike) else None)
    options = options._replace(callbacks=[*options.callbacks, *callbacks], trackers=[*options.trackers, *trackers])
    if options.wandb is not None:
        check_wandb()
    in_this_process = not isinstance(data, str | os.PathLike) or options.callbacks or options.trackers
    with ExitStack() as stack:
        if not isinstance(data, str | os.PathLike | Data):
            data = with_number_tokenizer(data, Path(stack.enter_context(TemporaryDirectory())))
        run = TrainingRun(recipe, data, out, options, resume, cluster, force, max_restarts, elastic)
        if in_this_process and read_environment().launcher == "none":
            if (world := recipe.layout.world) > 1:
                how = f"start this script by torchrun --nproc-per-node {world}, whose processes are the ranks"
                raise UsageFailure(
                    f"streams, callbacks and trackers are this process's, and the layout has {world} ranks; {how}"
                )
            stack.enter_context(_only_rank(recipe.layout))
        start(run)
    return read_summary(run.out) if (run.out / SUMMARY).exists() else None


def start(run: TrainingRun) -> bool:
    """Train as the rank that a launcher started, or with own ranks on this machine; returns whether it was stopped."""
    if read_environment().launcher != "none":
        return join(run)
    out, device = run.out, run.options.device

    def fitted() -> TrainingRun:
        return run.within(ranks_here(device)[0])

    def prepare_again() -> Layout:
        again = fitted()
        prepare_run_dir(out, again.recipe, open_data(run.data, again.recipe).fingerprint, resume=True)
        return again.recipe.layout

    first = fitted()
    layout = first.recipe.layout
    check_ranks(layout, device)
    expected = first.forecast()
    check_run_dir(out)
    if not (out / LOCK).exists():
        open_data(run.data, first.recipe)  # so that wrong data leave nothing behind
    with lock_folder(out):
        state = _prepare(first, expected)
        if state.complete:
            say(f"already {_outcome(out)}")
            return False
        if first.recipe.train.precision != "fp32" and not ranks_here(device)[1]:
            say('train.precision: on a CPU "fp32" is several times as fast, unless it multiplies bf16 itself (AMX)')
        stop_signal = run_supervised(layout, first.rank_command, out, state, prepare_again, run.max_restarts)
    for log in (out / LOGS).glob("rank-0.log"):  # what else it printed is of no use to a run that ended well
        for printed in file_lines(log):
            if printed.startswith(b"WARNING: "):
                say(printed.decode(errors="replace").rstrip())
    complete = (out / SUMMARY).exists()
    say(_outcome(out) if complete else stopped_line(out, stop_signal))
    return not complete


@contextmanager
def _only_rank(layout: Layout) -> Iterator[None]:
    """Set the environment so that this process is the only rank of a job, with its own store, within the block."""
    from torch import distributed  # noqa: PLC0415  (slow to import)

    before, store = dict(os.environ), HostedStore()
    os.environ.update(rank_environment(0, layout, store))
    del os.environ["MTNLG_PARENT"]  # no launcher of ours
    try:
        yield
    finally:
        if distributed.is_initialized():  # as after a failure
            distributed.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
        store.close()


def submit(run: TrainingRun, sbatch: Sequence[str], ranks_per_node: int, dry_run: bool = False) -> None:
    """Submit the run as a Slurm job, unless it is complete, or print its script. Forecasts only on a named cluster.

    If a run is active in ``out``, writes only the script there, and the job waits for that run; raises ``UsageFailure``
    if the job would need other files to change.
    """
    recipe, out = run.recipe, run.out
    job = slurm.Job(
        "mtnlg-parallel train", out, recipe.layout, recipe.slurm, sbatch, (), ranks_per_node, run.options.device
    )
    arguments = [*run.rank_arguments, f"--layout={recipe.layout}", *["--elastic"] * run.elastic]
    script = slurm.training_script(job, arguments, run.max_restarts, partial(fit, run) if run.elastic else None)
    if dry_run:
        print_text(script)
        return
    expected = run.forecast() if run.cluster else None
    check_run_dir(out)
    try:
        with lock_folder(out):
            if _prepare(run, expected).complete:
                say(f"already {_outcome(out)}")
                return
    except FolderInUse as working:
        if not run.resume:
            raise UsageFailure(f"{working}; --no-resume would delete what it has trained") from None
        if changed := differences(read_recipe(out / RECIPE), recipe, WAITING_MAY_DIFFER):
            raise UsageFailure(
                f"{working}; its ranks read the recipe at each restart, and {changes(changed)}"
            ) from None
        say(f"{out}: a run is using this folder; the job waits for it")
    slurm.submit(job, script)


def fit(run: TrainingRun, ranks: int) -> Recipe:
    """The recipe for this number of ranks; raises ``UsageFailure`` if they are too few.

    They also are if the run cannot fit the named cluster, since ZeRO-1 shards less over fewer ranks.
    """
    fitted = run.within(ranks)
    if run.cluster:
        fitted.forecast()
    return fitted.recipe


def run_node(run: TrainingRun, ranks_per_node: int) -> bool:
    """Run one attempt as the agent of this node in a Slurm job; returns whether the run is still incomplete.

    The first node's agent locks and prepares ``out`` and shows the progress. Raises ``Failure`` with the status of the
    rank that failed first; `restart` reads the rest from the failure files.
    """
    run, out = run.within(ranks_per_node * step_nodes()), run.out
    layout = run.recipe.layout
    first = this_node(layout.world, ranks_per_node)
    leads = first.rank == 0
    try:
        with ExitStack() as stack:
            signals = stack.enter_context(record_signals(*STOP_SIGNALS))
            command, update = [*run.rank_command, f"--layout={layout}"], (lambda: None)
            if leads:
                stack.enter_context(_lock_as_leader(out, patient=True))
                state = _prepare(run)
                advance = stack.enter_context(progress("training", state.steps - state.step, "steps"))
                update = follow(out, state.step, advance)
            ended = run_attempt(first, command, out, signals, update)
    except FolderInUse:  # whose run would take the failure file for its own
        raise
    except Exception as error:  # before there were ranks
        failure = supervise.as_rank_failure(error)
        reason = f"the agent on {first.node}: {error_line(failure)}"
        write_failure(out, first.rank, Failed(reason, error_status(failure), first.node))
        raise
    if ended.failures:
        failed = first_failure(ended.failures)
        failure = Failure(failed.reason)
        failure.exit_status = failed.status if failed.status > 0 else 128 - failed.status  # as in a shell
        raise failure
    complete = (out / SUMMARY).exists()
    if leads:
        say(_outcome(out) if complete else stopped_line(out, ended.stop_signal))
    return not complete


def restart(out: Path, max_restarts: int) -> str:
    """Wait out the pause after ranks have failed; returns what the scheduler's script must do next.

    That is ``restart``, ``requeue``, ``requeue NODE,NODE`` (nodes that failed twice in this job within a day) or
    ``end``. Records the failure in ``out``'s history. Raises ``Failure`` if there is no run.
    """
    found = take_failures(out)
    if not found:
        run_recipe(out)  # or this is no run's folder
    failed = first_failure(found or [Failed("no rank gave a reason", Exit.NOT_STARTED)])
    environment = read_environment()
    job = environment.first_job or environment.job
    with record_signals(*STOP_SIGNALS) as signals:
        before = supervise.recorded_failures(out, job)
        failures = [*before, supervise.record_failure(out, failed, job)]
        decision = supervise.decide(failures, max_restarts)
        say(f"{decision.reason or failed.reason}: {decision.action}")
        signals.wait(decision.pause)
    action = "requeue" if signals and decision.action == "restart" else decision.action
    return f"{action} {','.join(decision.excluded)}".strip()


def join(run: TrainingRun) -> bool:
    """Train as `this_rank`; returns whether a signal stopped the run before its end.

    Rank 0 prepares ``out`` first, except under our agents, which have done so. An unexpected error is raised as
    `RankCrash`, so that the exit status tells supervisors to restart. If elastic, exits in a rank that is left over.
    """
    rank, out = this_rank(), run.out
    if run.elastic:
        run = run.within(rank.world)
        if not limit_world(run.recipe.layout.world):
            say(f"rank {rank.rank} is not used by layout {run.recipe.layout}")
            sys.exit()
    is_agents = rank.launcher == "local"
    if is_agents:
        die_with_parent()
    leads = rank.rank == 0 and not is_agents
    with _lock_as_leader(out, patient=rank.is_restart) if leads else nullcontext():
        try:
            if rank.launcher == "torchrun" and leads:
                supervise.record_elastic_restart(out)
            from .worker import run_rank  # noqa: PLC0415  (imports torch, DeepSpeed and megatron-core)

            before = None if is_agents else partial(prepare, run)
            stop_signal = run_rank(run.recipe, run.data, out, run.options, before)
        except Exception as error:  # noqa: BLE001  (any, to give it its status)
            failure = supervise.as_rank_failure(error)
            supervise.report_rank_failure(out, failure)
            raise failure from (error if failure is not error else error.__cause__)
    if leads and (out / SUMMARY).exists():
        say(_outcome(out))
    return bool(stop_signal)


def _lock_as_leader(out: Path, patient: bool) -> ExitStack:
    """`lock_folder` for the leader of an attempt. Raises ``FolderInUse`` if another run is active in ``out``.

    If ``patient`` (at a restart, and in our Slurm jobs, which start after the previous one has ended), retries for
    `LOCK_PATIENCE` seconds: the lock may belong to a lost node, and the file server keeps it for a while.
    """
    check_run_dir(out)
    lock, deadline = ExitStack(), time.monotonic() + (LOCK_PATIENCE if patient else 0.0)
    while True:
        try:
            lock.enter_context(lock_folder(out))
        except FolderInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1.0)
        else:
            return lock


def prepare(run: TrainingRun) -> RunState:
    """Check that the run can fit, prepare ``out``, and announce the run.

    Without ``resume`` the first attempt deletes an earlier run. Also raises ``UsageFailure`` if torchrun's restarts
    cannot work (`supervise.check_torchrun`).
    """
    supervise.check_torchrun(run.out, run.resume)
    return _prepare(run, run.forecast())


def _prepare(run: TrainingRun, expected: Forecast | None = None) -> RunState:
    """Prepare ``out``; prints which samples the run reads, and unless it is complete what is trained, and notes."""
    from mtnlg_parallel.engine.build import supported_engine  # noqa: PLC0415  (imports torch)
    from mtnlg_parallel.training.copies import fetch_newest  # noqa: PLC0415  (seldom needed)

    recipe, data, resume = run.recipe, open_data(run.data, run.recipe), run.resume or read_environment().is_restart
    data.verify()
    for line in data.left_out:
        say(f"WARNING: {line}")
    start, samples = recipe.train.start_sample, recipe.train.samples
    passes = samples / data.corpus
    times = f"{passes:,.0f} passes, each of the same text" if passes > MANY else f"{passes:.3g} passes"
    place = type(run.data.train).__name__ if isinstance(run.data, Data) else run.data
    corpus = f"of the {data.corpus:,} in one pass over the corpus, so {times}"
    say(f"{place}: samples {start:,} to {start + samples:,} of the token stream, {corpus}")
    supported_engine(recipe)
    if recipe.train.copy_to:
        fetch_newest(recipe.train.copy_to, run.out / CHECKPOINTS, resume)
    state = prepare_run_dir(run.out, recipe, data.fingerprint, resume)
    if not state.complete:
        parameters = f"{recipe.model.parameters:,} parameters"
        say(f"training {parameters} over {recipe.layout}, step {state.step} to {state.steps}")
        for note in [*([expected] if expected else []), *recipe.warnings]:
            say(str(note))
    return state


def _outcome(out: Path) -> str:
    """The last line of a complete run."""
    summary = read_summary(out)
    validation = summary["validation_loss"]
    held_out = "" if validation is None else f", {validation:.4f} held out"
    figures = f"{summary['tokens']:,} tokens in {summary['seconds']:.0f} s, loss {summary['loss']:.4f}{held_out}"
    return f"trained {summary['steps']} steps, {figures}; {out / 'checkpoints'} holds the decoder"
