"""Starts a training run: on this machine, as a Slurm job, or as one rank of a job that another launcher started."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from mtnlg_data.engine.folder_lock import FolderInUse, lock_folder
from mtnlg_data.transfer.urls import Url, location
from mtnlg_model.checkpoint.manifest import MANIFEST, latest, resolve_checkpoint
from mtnlg_model.compare import differences
from mtnlg_model.console import UsageFailure, error_line, error_status, progress, say
from mtnlg_model.convert.config_json import is_huggingface
from mtnlg_model.files import file_lines
from mtnlg_parallel.environment import limit_world, read_environment, step_nodes, this_node, this_rank
from mtnlg_parallel.identity import changes
from mtnlg_parallel.recipe import Recipe, RunOptions
from mtnlg_parallel.recipe_file import load_recipe, read_recipe
from mtnlg_parallel.record.run_dir import CHECKPOINTS, LOGS, RECIPE, SUMMARY, RunState, prepare_run_dir, read_summary
from mtnlg_parallel.record.trackers import check_wandb
from mtnlg_parallel.rendezvous import HostedStore
from mtnlg_parallel.statuses import STOP_SIGNALS, Exit, Failed, first_failure, take_failures, write_failure
from mtnlg_parallel.training.samples import Data, open_data

from . import slurm, supervise
from .agent import die_with_parent, follow, rank_environment, record_signals, run_attempt
from .machine import check_ranks, ranks_here
from .preflight import Forecast, compare_step_time, forecast
from .supervise import run_supervised, stopped_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mtnlg_parallel.identity import DataFingerprint
    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.recipe import Callback
    from mtnlg_parallel.record.trackers import Tracker

INITIAL: Final = "initial"
"""Subfolder of ``out`` for the checkpoint that --from URL names."""

WAITING_MAY_DIFFER: Final = {"slurm": "the new job's own", "layout": "in the arguments of its agents"}
"""Keys of the recipe that may differ between a job and the run that it waits for, with the reasons."""

LOCK_PATIENCE: Final = 300.0
"""Seconds that a restart waits for its folder's lock; NFS releases a lost node's lock after about 90 s."""


def train(
    recipe: Path | str | Recipe,
    data: Path | str | Data,
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

    ``data`` is the folder that ``mtnlg-data run`` made, or `Data` with any token streams. A callback gets each step's
    figures on rank 0, and stops the run after a last checkpoint by returning True; a tracker logs them. With streams,
    callbacks or trackers this process is a rank: the only one, or one of torchrun's.

    The run resumes from the newest checkpoint in ``out``, in any layout; without ``resume`` an earlier run there is
    deleted. If a rank fails, all ranks restart by the rules of `supervise.decide`. `statuses.STOP_SIGNALS` end the run
    after a last checkpoint: call this from the main thread. ``elastic``: each start uses the largest ``dp`` that this
    machine can run (`Recipe.within`). Raises ``UsageFailure`` if the recipe cannot work, or by the planner's forecast
    cannot fit this machine (or ``cluster``), unless ``force``; ``Failure`` if a rank fails and is not restarted, or
    another run is active in ``out``.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, data=None if isinstance(data, Data) else Path(data))
    out = Path(out)
    options = options._replace(callbacks=[*options.callbacks, *callbacks], trackers=[*options.trackers, *trackers])
    if options.wandb is not None:
        check_wandb()
    is_rank, world = read_environment().launcher != "none", recipe.layout.world
    if is_rank or isinstance(data, Data) or options.callbacks or options.trackers:
        if world > 1 and not is_rank:
            how = f"start this script by torchrun --nproc-per-node {world}, whose processes are the ranks"
            raise UsageFailure(
                f"streams, callbacks and trackers are this process's, and the layout has {world} ranks; {how}"
            )
        with nullcontext() if is_rank else _only_rank(recipe.layout):
            join(recipe, data, out, options, partial(prepare, recipe, data, out, options, resume, cluster, force))
        return read_summary(out) if (out / SUMMARY).exists() else None
    fit = partial(_fit, recipe, options.device if elastic else None)
    recipe = fit()
    check_ranks(recipe.layout, options.device)
    expected = forecast(recipe, cluster, force, options.device, data)
    fingerprint = _fingerprint(data, recipe)
    with lock_folder(out):
        state = _prepare(recipe, fingerprint, out, resume, expected)
        if state.complete:
            say(f"already {_outcome(out)}")
            return read_summary(out)
        prepare_again = partial(_prepare_again, fit, fingerprint, out)
        command = _rank_command(data, out, options)
        stop_signal = run_supervised(recipe.layout, command, out, state, prepare_again, max_restarts)
    for log in (out / LOGS).glob("rank-0.log"):  # what else it printed is of no use to a run that ended well
        for printed in file_lines(log):
            if printed.startswith(b"WARNING: "):
                say(printed.decode(errors="replace").rstrip())
    complete = (out / SUMMARY).exists()
    say(_outcome(out) if complete else stopped_line(out, stop_signal))
    if line := compare_step_time(out, recipe, expected):
        say(line)
    return read_summary(out) if complete else None


def _fit(recipe: Recipe, device: Literal["auto", "cpu"] | None) -> Recipe:
    return recipe.within(ranks_here(device)[0]) if device else recipe


def _prepare_again(fit: Callable[[], Recipe], data: DataFingerprint, out: Path) -> Layout:
    recipe = fit()
    prepare_run_dir(out, recipe, data, resume=True)
    return recipe.layout


def fit_cluster(recipe: Recipe, cluster: str | None, force: bool, ranks: int) -> Recipe:
    """`Recipe.within`; also raises ``UsageFailure`` if that cannot fit the named cluster, since ZeRO-1 shards less."""
    fitted = recipe.within(ranks)
    if cluster is not None:
        forecast(fitted, cluster, force)
    return fitted


def fit_started(recipe: Recipe) -> Recipe:
    """The recipe at the largest ``dp`` for the ranks that torchrun started; exits in a rank that is left over."""
    rank = read_environment()
    fitted = recipe.within(rank.world)
    if not limit_world(fitted.layout.world):
        say(f"rank {rank.rank} is not used by layout {fitted.layout}")
        sys.exit()
    return fitted


@contextmanager
def _only_rank(layout: Layout) -> Iterator[None]:
    """Set the environment so that this process is the only rank of a job, with its own store, within the block."""
    before, store = dict(os.environ), HostedStore()
    os.environ.update(rank_environment(0, layout, store))
    del os.environ["MTNLG_PARENT"]  # no launcher of ours
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        store.close()


def submit(  # noqa: PLR0917  (as train)
    job: slurm.Job, script: str, recipe: Recipe, data: Path, resume: bool, cluster: str | None, force: bool
) -> None:
    """Submit the run as a Slurm job, unless it is complete. Forecasts only on a named ``cluster``.

    If a run is active in ``out``, this writes only the script there, and raises ``UsageFailure`` if the job would need
    other files to change.
    """
    out = job.out
    expected = forecast(recipe, cluster, force, data=data) if cluster is not None else None
    fingerprint = _fingerprint(data, recipe)
    try:
        with lock_folder(out):
            if _prepare(recipe, fingerprint, out, resume, expected).complete:
                say(f"already {_outcome(out)}")
                return
    except FolderInUse as working:
        _check_unchanged(recipe, out, resume, str(working))
        say(f"{out}: a run is using this folder; the job waits for it")
    slurm.submit(job, script)


def _check_unchanged(recipe: Recipe, out: Path, resume: bool, working: str) -> None:
    """Raise ``UsageFailure`` if a job would need other files in ``out`` than the run that is active there."""
    if not resume:
        raise UsageFailure(f"{working}; --no-resume would delete what it has trained")
    if found := differences(read_recipe(out / RECIPE), recipe, WAITING_MAY_DIFFER):
        raise UsageFailure(f"{working}; its ranks read the recipe at each restart, and {changes(found)}")


def run_node(  # noqa: PLR0917  (as train)
    recipe: Recipe, data: Path, out: Path, options: RunOptions, ranks_per_node: int, resume: bool, elastic: bool = False
) -> bool:
    """Run one attempt as the agent of this node in a Slurm job; returns whether the run is still incomplete.

    The first node's agent locks and prepares ``out`` and shows the progress. ``elastic``: use the largest ``dp`` that
    the step's nodes can run. Raises ``Failure`` with the status of the rank that failed first; `restart` reads the rest
    from the failure files.
    """
    if elastic:
        recipe = recipe.within(ranks_per_node * step_nodes())
    first = this_node(recipe.layout.world, ranks_per_node)
    leads = first.rank == 0
    try:
        with ExitStack() as stack:
            signals = stack.enter_context(record_signals(*STOP_SIGNALS))
            command, update = [*_rank_command(data, out, options), f"--layout={recipe.layout}"], (lambda: None)
            if leads:
                stack.enter_context(_lock_as_leader(out, patient=True))
                state = _prepare(recipe, _fingerprint(data, recipe), out, resume, None)
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
        raise supervise.RanksFailed(first_failure(ended.failures))
    complete = (out / SUMMARY).exists()
    if leads:
        say(_outcome(out) if complete else stopped_line(out, ended.stop_signal))
    return not complete


def restart(out: Path, status: int | None, node: str, max_restarts: int) -> str:
    """Wait out the pause after ranks have failed; returns what the scheduler's script must do next.

    That is ``restart``, ``requeue``, ``requeue NODE,NODE`` (nodes that failed twice in this job within a day) or
    ``end``. Records the failure in ``out``'s history. If no rank left a failure file, a rank ended with ``status`` on
    ``node``, or none was started (None).
    """
    unsaid = Exit.NOT_STARTED if status is None else status
    reason = "no rank gave a reason" if status is None else f"a rank ended with status {status}{node and f' on {node}'}"
    failed = first_failure(take_failures(out) or [Failed(reason, unsaid, node)])
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


def join(
    recipe: Recipe,
    data: Path | str | Data,
    out: Path,
    options: RunOptions,
    before: Callable[[], RunState] | None = None,
) -> bool:
    """Train as `this_rank`; returns whether a signal stopped the run before its end.

    ``before`` (`prepare`) runs on rank 0 first; None under our agents. An unexpected error is raised as `RankCrash`, so
    that the exit status tells supervisors to restart.
    """
    rank = this_rank()
    if rank.launcher == "local":
        die_with_parent()
    leads = before is not None and rank.rank == 0
    with _lock_as_leader(out, patient=rank.is_restart) if leads else nullcontext():
        try:
            if rank.launcher == "torchrun" and leads:
                supervise.check_elastic_restart(out)
            from .worker import run_rank  # noqa: PLC0415  (imports torch, DeepSpeed and megatron-core)

            stop_signal = run_rank(recipe, data, out, options, before)
        except Exception as error:  # noqa: BLE001  (any, to give it its status)
            failure = supervise.as_rank_failure(error)
            supervise.report_rank_failure(out, failure)
            raise failure from (error if failure is not error else error.__cause__)
    if leads and (out / SUMMARY).exists():
        say(_outcome(out))
    return bool(stop_signal)


@contextmanager
def _lock_as_leader(out: Path, patient: bool) -> Iterator[None]:
    """`lock_folder` for the leader of an attempt. Raises ``FolderInUse`` if another run is active in ``out``.

    If ``patient`` (at a restart, and in our Slurm jobs, which start after the previous one has ended), retries for
    `LOCK_PATIENCE` seconds: the lock may belong to a lost node, and the file server keeps it for a while.
    """
    deadline = time.monotonic() + (LOCK_PATIENCE if patient else 0.0)
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock_folder(out))
                break
            except FolderInUse:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(1.0)
        yield


def _rank_command(data: Path | str, out: Path, options: RunOptions) -> list[str]:
    return [sys.executable, "-m", "mtnlg_parallel.cli", "train", *rank_arguments(data, out, options)]


def rank_arguments(data: Path | str, out: Path, options: RunOptions) -> list[str]:
    """Arguments of ``mtnlg-parallel train`` that make a process a rank of the run prepared in ``out``."""
    arguments = [str(out / RECIPE), "--data", str(data), "--out", str(out), "--debug"]
    arguments += [f"--wandb={options.wandb}"] if options.wandb is not None else []
    arguments += [f"--profile={options.profile[0]}:{options.profile[-1]}"] if options.profile else []
    arguments += ["--device=cpu"] if options.device == "cpu" else []
    return arguments


def initial_weights(given: Path | str, out: Path | None) -> str:
    """The recipe override that starts a new run from a step-N folder, its URL, or a Hugging Face folder.

    A folder of checkpoints is refused, since its newest one changes. A URL is downloaded into ``out``. Raises
    ``UsageFailure`` if there are no weights, unless ``out`` has checkpoints of its own to resume from.
    """
    resumes = out is not None and latest(out / CHECKPOINTS) is not None
    checkpoint = location(given)
    if isinstance(checkpoint, Url):
        from mtnlg_parallel.training.copies import download  # noqa: PLC0415  (seldom needed)

        url, checkpoint = checkpoint, (out or Path()) / INITIAL / checkpoint.name
        if not (resumes or out is None or checkpoint.exists()):
            download(url, checkpoint.parent)
    if not resumes and not (checkpoint / MANIFEST).is_file() and not is_huggingface(checkpoint):
        newest = resolve_checkpoint(checkpoint)
        hint = f"its newest is {newest}" if newest != checkpoint else "give a step-N folder, or one of Hugging Face's"
        raise UsageFailure(f"--from {checkpoint}: no checkpoint; {hint}")
    return f"train.initial={json.dumps(str(checkpoint.absolute()))}"


def prepare(  # noqa: PLR0917  (as train)
    recipe: Recipe,
    data: Path | str | Data,
    out: Path,
    options: RunOptions,
    resume: bool,
    cluster: str | None,
    force: bool,
) -> RunState:
    """Check that the run can fit, prepare ``out``, and announce the run.

    Without ``resume`` the first attempt deletes an earlier run. Also raises ``UsageFailure`` if torchrun's restarts
    cannot work (`supervise.check_torchrun`).
    """
    supervise.check_torchrun(out, resume)
    expected = forecast(recipe, cluster, force, options.device, data)
    return _prepare(recipe, _fingerprint(data, recipe), out, resume, expected)


def _fingerprint(data: Path | str | Data, recipe: Recipe) -> DataFingerprint:
    """The data's fingerprint; prints which samples the run reads, and a line for each source that is left out."""
    opened = open_data(data, recipe)
    for line in opened.left_out:
        say(f"WARNING: {line}; the source is left out, and its weight goes to the others")
    start, samples = recipe.train.start_sample, recipe.train.samples
    passes = f"of the {opened.corpus:,} in one pass over the corpus, so {samples / opened.corpus:.3g} passes"
    place = type(data.train).__name__ if isinstance(data, Data) else data
    say(f"{place}: samples {start:,} to {start + samples:,} of the token stream, {passes}")
    return opened.fingerprint


def _prepare(recipe: Recipe, data: DataFingerprint, out: Path, resume: bool, expected: Forecast | None) -> RunState:
    from mtnlg_parallel.engine.build import supported_engine  # noqa: PLC0415  (imports torch)
    from mtnlg_parallel.training.copies import fetch_newest  # noqa: PLC0415  (seldom needed)

    supported_engine(recipe)
    resume = resume or read_environment().is_restart
    if recipe.train.copy_to:
        fetch_newest(recipe.train.copy_to, out / CHECKPOINTS, resume)
    state = prepare_run_dir(out, recipe, data, resume)
    if not state.complete:
        announce(recipe, state, expected)
    return state


def announce(recipe: Recipe, state: RunState, expected: Forecast | None) -> None:
    """Print what will be trained, the forecast, and notes."""
    parameters = f"{recipe.model.parameters:,} parameters"
    say(f"training {parameters} over {recipe.layout}, step {state.step} to {state.steps}")
    if expected:
        say(str(expected))
    for note in recipe.warnings:
        say(note)


def _outcome(out: Path) -> str:
    """The last line of a complete run."""
    summary = read_summary(out)
    validation = summary["validation_loss"]
    held_out = "" if validation is None else f", {validation:.4f} held out"
    figures = f"{summary['tokens']:,} tokens in {summary['seconds']:.0f} s, loss {summary['loss']:.4f}{held_out}"
    return f"trained {summary['steps']} steps, {figures}; {out / 'checkpoints'} holds the decoder"
