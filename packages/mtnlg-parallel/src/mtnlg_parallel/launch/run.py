"""Start a training run: on this machine, as a Slurm job, or as one rank of a job that another launcher started."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from mtnlg_model.console import say
from mtnlg_parallel.recipe import Recipe, RunOptions, load_recipe
from mtnlg_parallel.record.run_dir import RECIPE, SUMMARY, RunState, prepare_run_dir, read_summary
from mtnlg_parallel.record.trackers import check_wandb
from mtnlg_parallel.training.samples import open_data

from . import slurm
from .local import STOP_SIGNALS, record_signals, run_local, stopped_line
from .preflight import Forecast, compare_step_time, forecast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def train(
    recipe: Path | Recipe,
    data: Path,
    out: Path,
    *,
    resume: bool = True,
    options: RunOptions = RunOptions(),  # noqa: B008  (a tuple)
    cluster: str | None = None,
    force: bool = False,
) -> dict[str, Any] | None:
    """Train on this machine, one process per rank; return summary.json, or None where a signal stopped the run.

    ``data`` is the folder that ``mtnlg-data run`` made. The run resumes from the newest checkpoint in ``out``, in any
    layout; without ``resume`` an earlier run there is deleted. SIGTERM and SIGUSR1 end it after a last checkpoint, so
    call this from the main thread. Raises ``UsageFailure`` where the recipe cannot work, or cannot fit this machine (or
    ``cluster``) by the planner's forecast, unless ``force``; ``Failure`` where a rank fails.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if options.wandb is not None:
        check_wandb()
    expected = forecast(recipe, cluster, force)
    state = _prepare(recipe, data, out, resume, expected)
    if state.complete:
        say(f"already {_outcome(out)}")
        return read_summary(out)
    command = [sys.executable, "-m", "mtnlg_parallel.cli", "train", *_rank_arguments(data, out, options)]
    stop_signal = run_local(recipe.layout, command, out, state)
    complete = (out / SUMMARY).exists()
    say(_outcome(out) if complete else stopped_line(out, stop_signal))
    if line := compare_step_time(out, recipe, expected):
        say(line)
    return read_summary(out) if complete else None


def submit(  # noqa: PLR0917  (as train)
    recipe: Recipe,
    data: Path,
    out: Path,
    resume: bool,
    options: RunOptions,
    cluster: str | None,
    force: bool,
    sbatch_options: Sequence[str],
    ranks_per_node: int,
) -> None:
    """Submit the run as a Slurm job, unless it is complete. There is a forecast only for a named ``cluster``."""
    expected = forecast(recipe, cluster, force) if cluster is not None else None
    if _prepare(recipe, data, out, resume, expected).complete:
        say(f"already {_outcome(out)}")
        return
    job = slurm.submit(recipe.layout, _rank_arguments(data, out, options), out, sbatch_options, ranks_per_node)
    say(f"submitted {out / slurm.SCRIPT} as job {job}; squeue --job {job} shows it")


def join(
    recipe: Recipe, data: Path, out: Path, options: RunOptions, before: Callable[[], RunState] | None = None
) -> None:
    """Be the rank that the environment names. ``before`` runs on rank 0 first (`prepare`); None under `train`."""
    with record_signals(*STOP_SIGNALS) as signals:
        from .worker import run_rank  # noqa: PLC0415  (imports torch, DeepSpeed and megatron-core)

        run_rank(recipe, data, out, options, signals, before)
    if before and os.environ["RANK"] == "0" and (out / SUMMARY).exists():
        say(_outcome(out))


def prepare(  # noqa: PLR0917  (as train)
    recipe: Recipe, data: Path, out: Path, resume: bool, cluster: str | None, force: bool
) -> RunState:
    """Check that the run can fit, prepare ``out``, and announce the run."""
    return _prepare(recipe, data, out, resume, forecast(recipe, cluster, force))


def _prepare(recipe: Recipe, data: Path, out: Path, resume: bool, expected: Forecast | None) -> RunState:
    state = prepare_run_dir(out, recipe, open_data(data, recipe).train.fingerprint, resume)
    if not state.complete:
        announce(recipe, state, expected)
    return state


def announce(recipe: Recipe, state: RunState, expected: Forecast | None) -> None:
    """Print what will be trained, the forecast, and what is worth a note."""
    parameters = f"{recipe.model.parameters:,} parameters"
    say(f"training {parameters} over {recipe.layout}, step {state.step} to {state.steps}")
    if expected:
        say(str(expected))
    if rounding := recipe.batch_size.rounding:
        say(rounding)
    if recipe.train.kernels:
        from mtnlg_parallel.kernels import build  # noqa: PLC0415  (imports torch)

        if (gpu := build.this_gpu()) and (line := build.not_built_warning(recipe, gpu)):
            say(line)


def _rank_arguments(data: Path, out: Path, options: RunOptions) -> list[str]:
    """The words after ``mtnlg-parallel train`` that make a process a rank of the run prepared in ``out``."""
    arguments = [str(out / RECIPE), "--data", str(data), "--out", str(out), "--debug"]
    arguments += [f"--wandb={options.wandb}"] if options.wandb is not None else []
    arguments += [f"--profile={options.profile[0]}:{options.profile[-1]}"] if options.profile else []
    return arguments


def _outcome(out: Path) -> str:
    """The last line of a complete run."""
    summary = read_summary(out)
    validation = summary["validation_loss"]
    held_out = "" if validation is None else f", {validation:.4f} held out"
    figures = f"{summary['tokens']:,} tokens in {summary['seconds']:.0f} s, loss {summary['loss']:.4f}{held_out}"
    return f"trained {summary['steps']} steps, {figures}; {out / 'checkpoints'} holds the decoder"
