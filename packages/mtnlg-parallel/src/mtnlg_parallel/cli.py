"""The command line ``mtnlg-parallel``: train, restart, status, layout, plan, build-kernels, conform."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from mtnlg_model.console import UsageFailure, application, print_json, run, say
from mtnlg_model.local_paths import LocalPaths
from mtnlg_parallel.planner.command import plan_command
from mtnlg_parallel.record.status import status_command
from mtnlg_parallel.record.trackers import check_wandb

from .environment import read_environment
from .initial import initial_weights
from .launch import run as launch
from .launch.supervise import MAX_RESTARTS
from .layout import parse_layout
from .layout_report import layout_facts, print_layout
from .recipe import RunOptions
from .recipe_file import load_recipe
from .statuses import Exit

app = application("mtnlg-parallel", "Train the MT-NLG decoder with tensor, pipeline and data parallelism.")
app.info.cls = LocalPaths

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A train.toml, or the folder that holds it.")]
LayoutText = Annotated[
    str | None, typer.Option("--layout", metavar="tp=2,pp=2,dp=1", help="Replaces the recipe's layout.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key, such as train.lr=1e-4.")
]


@app.command()
def train(  # noqa: PLR0917  (typer names them)
    recipe: RecipePath,
    data: Annotated[Path, typer.Option(help="Output of mtnlg-data run: the folder that holds tokens/.")],
    out: Annotated[Path, typer.Option(help="Folder for metrics, checkpoints and logs.")],
    layout: LayoutText = None,
    resume: Annotated[
        bool, typer.Option(help="Resume from the newest checkpoint in --out, in any layout; --no-resume starts over.")
    ] = True,
    overrides: Overrides = None,
    initial: Annotated[
        str | None,
        typer.Option("--from", metavar="FOLDER", help="Start from a checkpoint, its URL, or a Hugging Face folder."),
    ] = None,
    new_tokenizer: Annotated[
        bool, typer.Option("--new-tokenizer", help="Use --from although its tokenizer differs from the data's.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Maximum restarts after failures, from the newest checkpoint.")
    ] = MAX_RESTARTS,
    device: Annotated[
        Literal["auto", "cpu"], typer.Option(help="cpu: train on the CPU even where there are GPUs.")
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the sbatch script of --launcher slurm.")] = False,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Also log to this Weights & Biases project.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Profile these steps into OUT/profile.")
    ] = None,
    launcher: Annotated[
        Literal["local", "slurm"], typer.Option(help="Start the ranks here, or submit a Slurm job.")
    ] = "local",
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Option for sbatch, such as --sbatch=--partition=batch.")
    ] = None,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Ranks per node with --launcher slurm.")] = 8,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Cluster for the planner's forecast; default this machine.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Train even if the planner predicts no fit.")] = False,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Train at a smaller dp if there are fewer ranks, with the same batches.")
    ] = False,
    agent: Annotated[int, typer.Option(hidden=True, help="Ranks that this agent of a Slurm job starts.")] = 0,
) -> None:
    """Train a recipe on tokens; the same command again resumes from the newest checkpoint.

    Starts one process per rank on this machine, and starts all again from the newest checkpoint where one fails. Under
    torchrun, srun, mpirun or Kubeflow it joins as a rank. SIGTERM, SIGUSR1 or SIGHUP: writes a checkpoint and exits
    with status 75.
    """
    weights = [initial_weights(initial, out, resume)] if initial else []
    weights += ["train.new_tokenizer=true"] * new_tokenizer
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or []), *weights], data)
    options = RunOptions(wandb, _profile_window(profile), device)
    if launcher == "local" and (sbatch or dry_run):
        raise UsageFailure("--sbatch and --dry-run need --launcher slurm")
    if wandb is not None:
        check_wandb()
    asked = launch.TrainingRun(chosen, data, out, options, resume, cluster, force, max_restarts, elastic)
    if agent:
        stopped = launch.run_node(asked, agent)
    elif launcher == "slurm" and read_environment().launcher == "none":
        launch.submit(asked, sbatch or [], ranks_per_node, dry_run)
        stopped = False
    else:
        stopped = launch.start(asked)
    if stopped:
        raise typer.Exit(Exit.STOPPED)


def _profile_window(profile: str | None) -> range | None:
    if profile is None:
        return None
    first, _, last = profile.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UsageFailure(f"--profile {profile}: write the first step and the last, such as 10:12")
    return range(int(first), int(last) + 1)


@app.command()
def restart(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The --out of the run whose ranks have failed.")],
    max_restarts: Annotated[int, typer.Option(min=0, help="As in train.")] = MAX_RESTARTS,
) -> None:
    """Tell a scheduler's script what follows a failure, in one line: restart, requeue, requeue NODE,NODE, or end.

    Reads the failure files in OUT/logs, waits before a restart that follows others, and writes the failure into
    OUT/history.jsonl. The nodes are those that failed twice within a day. Failures are counted within MTNLG_JOB, or
    else SLURM_JOB_ID.
    """
    typer.echo(launch.restart(out, max_restarts))


app.command("status")(status_command)


@app.command("layout")
def show_layout(
    recipe: RecipePath,
    layout: LayoutText = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every rank.")] = False,
) -> None:
    """Show what each rank holds: stages, layers, parameters, groups."""
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or [])])
    if as_json:
        print_json(layout_facts(chosen))
    else:
        print_layout(chosen)


@app.command("rollback")
def rollback_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a run that is not running.")],
    to: Annotated[str, typer.Option(metavar="step-N", help="Checkpoint to go back to.")],
    skip: Annotated[
        Literal["last"] | None, typer.Option(case_sensitive=False, help="last: skip all samples read since.")
    ] = None,
) -> None:
    """Go back to a checkpoint: later ones are removed, and the same train command resumes from it.

    With --skip only once your recipe has the ranges that it prints, as the run's own then has.
    """
    step = to.removeprefix("step-")
    if not step.isdecimal():
        raise UsageFailure(f"--to {to}: write step-N")
    from .record.rollback import rollback  # noqa: PLC0415  (seldom needed)

    train = rollback(out, int(step), bool(skip))
    resumes = "the same command resumes from it"
    if skip:
        tables = [("[train]", train.skip), *((f"the change at = {each.at}", each.skip) for each in train.change)]
        lines = " and ".join(f"skip = {[*map(list, ranges)]} in {table}" for table, ranges in tables if ranges)
        resumes = f"to resume from it, write {lines} of your recipe, or train {out / 'recipe.toml'}"
    say(f"{out}: step {step} is the newest checkpoint; {resumes}")


app.command("plan")(plan_command)


@app.command("build-kernels")
def build_kernels(  # noqa: PLR0917  (typer names them)
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Build the kernels of this recipe; default all variants.")
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="sm_80|sm_90|…", help="GPU to build for, repeatable; default this machine's."),
    ] = None,
    layout: LayoutText = None,
    overrides: Overrides = None,
    table: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write registers and memory to DIR/TARGET.csv.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print registers and memory as JSON.")] = False,
) -> None:
    """Compile the fused kernels ahead of time into Triton's cache; needs no GPU.

    Fails where a kernel spills registers or needs more shared memory than the target has.
    """
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or [])]) if recipe else None
    from .kernels.aot import build  # noqa: PLC0415  (imports torch)

    built = build.build_kernels(chosen, targets or [])
    for target, kernels in built.items():
        say(f"{target}: {build.summary(kernels)}")
    if table is not None:
        build.write_table(table, built)
    if as_json:
        print_json({target: [kernel._asdict() for kernel in kernels] for target, kernels in built.items()})


@app.command()
def conform(  # noqa: PLR0917  (typer names them)
    engine: Annotated[
        str,
        typer.Option(metavar="NAME", help="deepspeed, pipeline, an entry point, package.module:name or file.py:name."),
    ] = "pipeline",
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Check the fixed matrix, then random cases; start none after this time.")
    ] = 2.0,
    cases: Annotated[
        int | None, typer.Option(min=1, help="Check this many random cases instead.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of drawn cases.")] = 1,
    first: Annotated[int, typer.Option(min=0, help="Number of the first random case.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Cases at a time.")] = 1,
    device: Annotated[Literal["auto", "cpu"], typer.Option(help="auto: a GPU per rank, where there are GPUs.")] = "cpu",
) -> None:
    """Prove that an engine trains as a plain PyTorch loop does, or name the first parameter that differs.

    Each case is a decoder, layout, schedule and precision, trained for some steps by the engine on all ranks and by the
    loop in one process. Prints what was drawn and held; the exit status is 1 where a case differs.
    """
    from .conformance import command  # noqa: PLC0415  (imports torch)

    command.conform(engine, minutes=minutes, cases=cases, seed=seed, first=first, jobs=jobs, device=device)


def _axes(layout: str | None) -> list[str]:
    return [f"layout.{axis}={degree}" for axis, degree in parse_layout(layout).items()] if layout else []


def main() -> NoReturn:
    """Entry point of the console script."""
    run(app)


if __name__ == "__main__":
    main()
