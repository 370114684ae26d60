"""The command ``mtnlg-parallel``."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from mtnlg_model.console import UsageFailure, application, print_json, run, say
from mtnlg_parallel.launch.local import STOPPING, noted
from mtnlg_parallel.planner.command import plan
from mtnlg_parallel.training.preflight import compared, expect
from mtnlg_parallel.training.run_dir import RECIPE, SUMMARY, prepare, read_summary
from mtnlg_parallel.training.samples import open_data
from mtnlg_parallel.training.trackers import check_wandb

from .launch import local, slurm
from .layout import parse_layout
from .layout_report import draw_layout, facts
from .recipe import Wishes, load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_parallel.training.preflight import Expected
    from mtnlg_parallel.training.run_dir import Start

    from .recipe import Recipe

app = application("mtnlg-parallel", "Train the MT-NLG decoder over tensor, pipeline and data parallelism.")

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", help="A train.toml, or the folder that holds one.")]
LayoutText = Annotated[
    str | None, typer.Option("--layout", metavar="tp=2,pp=2,dp=1", help="Instead of the recipe's layout.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as train.lr=1e-4.")
]


@app.command()
def train(  # noqa: PLR0917  (typer names them)
    recipe: RecipePath,
    data: Annotated[
        Path | None, typer.Option(help="What mtnlg-data run made: the folder that holds tokens/.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where metrics, checkpoints and logs go.", show_default=False)
    ] = None,
    layout: LayoutText = None,
    resume: Annotated[
        bool, typer.Option(help="Go on from the newest checkpoint in --out, in any layout; --no-resume begins again.")
    ] = True,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build what --rank would hold, and tell its size.")
    ] = False,
    rank: Annotated[int, typer.Option(help="Which rank --dry-run shows.")] = 0,
    wandb: Annotated[str | None, typer.Option(metavar="PROJECT", help="Show the run at Weights & Biases too.")] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Profile these steps into --out/profile.")
    ] = None,
    launcher: Annotated[
        Literal["local", "slurm"], typer.Option(help="Start the ranks here, or submit a job that does.")
    ] = "local",
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Of sbatch, such as --sbatch=--partition=batch.")
    ] = None,
    ranks_a_node: Annotated[int, typer.Option(min=1, help="Of --launcher slurm.")] = 8,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="What the planner takes the machine for, if not itself.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Train though the planner says that it cannot fit.")] = False,
) -> None:
    """Train a recipe on tokens; run again, go on from the newest checkpoint.

    Starts one process a rank on this machine. Under torchrun (RANK in the environment) it joins as that rank. SIGTERM
    and SIGUSR1 have it write a checkpoint and end.
    """
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or [])])
    if dry_run:
        _show_rank(chosen, rank)
        return
    if data is None or out is None:
        raise UsageFailure("train needs --data and --out, or --dry-run")
    wishes = Wishes(wandb, _window(profile))
    if wandb is not None:
        check_wandb()
    if local.die_with_parent():
        _be_a_rank(chosen, data, out, None, wishes)
        return
    planned = None if launcher == "slurm" and cluster is None else partial(expect, chosen, cluster, force)
    if local.is_rank():
        _be_a_rank(chosen, data, out, resume, wishes, planned)
        return
    expected = planned() if planned else None
    start = prepare(out, chosen, open_data(data, chosen).train.fingerprint, resume)
    if start.complete:
        say(f"already {_outcome(out)}")
        return
    _announce(chosen, start, expected)
    words = [str(out / RECIPE), "--data", str(data), "--out", str(out), "--debug"]
    words += [f"--wandb={wandb}"] if wandb is not None else []
    words += [f"--profile={profile}"] if profile is not None else []
    if launcher == "slurm":
        job = slurm.submit(chosen.layout, words, out, sbatch or [], ranks_a_node)
        say(f"submitted {out / slurm.SCRIPT} as job {job}; squeue --job {job} shows it")
        return
    stopped = local.run_local(chosen.layout, [sys.executable, "-m", "mtnlg_parallel.cli", "train", *words], out, start)
    say(_outcome(out) if (out / SUMMARY).exists() else local.stopped_line(out, stopped))
    if expected and (line := compared(out, chosen, expected)):
        say(line)


def _announce(recipe: Recipe, start: Start, expected: Expected | None) -> None:
    parameters = f"{recipe.model.parameters:,} parameters"
    say(f"training {parameters} over {recipe.layout}, step {start.step} to {start.steps}")
    if expected:
        say(str(expected))
    if rounding := recipe.batch_size.rounding:
        say(rounding)
    if recipe.train.kernels:
        from .kernels import build  # noqa: PLC0415  (imports torch)

        if (gpu := build.this_gpu()) and (line := build.missing(recipe, gpu)):
            say(line)


def _window(profile: str | None) -> range | None:
    """The steps that ``--profile 10:12`` names."""
    if profile is None:
        return None
    first, _, last = profile.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UsageFailure(f"--profile {profile}: write the first step and the last, such as 10:12")
    return range(int(first), int(last) + 1)


def _show_rank(recipe: Recipe, rank: int) -> None:
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core decorates with torch.compile what we never call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what megatron-core could use and we do not
        from . import layout_report  # noqa: PLC0415  (imports torch and megatron-core)
    layout_report.draw_rank(layout_report.shard_of(recipe, rank), recipe)


def _be_a_rank(  # noqa: PLR0917  (as train)
    recipe: Recipe,
    data: Path,
    out: Path,
    resume: bool | None,
    wishes: Wishes,
    planned: Callable[[], Expected] | None = None,
) -> None:
    """Train as one rank; ``resume`` None where the launcher has prepared ``out`` and shows the progress."""

    def first() -> Start | None:
        if resume is None:
            return None
        expected = planned() if planned else None
        start = prepare(out, recipe, open_data(data, recipe).train.fingerprint, resume)
        _announce(recipe, start, expected)
        return start

    with noted(*STOPPING) as arrived:
        from mtnlg_parallel.launch.worker import run_rank  # noqa: PLC0415  (imports torch, DeepSpeed and megatron-core)

        run_rank(recipe, data, out, first, arrived, wishes)
    if resume is not None and os.environ["RANK"] == "0" and (out / SUMMARY).exists():
        say(_outcome(out))


def _outcome(out: Path) -> str:
    summary = read_summary(out)
    validation = summary["validation_loss"]
    held_out = "" if validation is None else f", {validation:.4f} held out"
    figures = f"{summary['tokens']:,} tokens in {summary['seconds']:.0f} s, loss {summary['loss']:.4f}{held_out}"
    return f"trained {summary['steps']} steps, {figures}; {out / 'checkpoints'} holds the decoder"


@app.command("layout")
def show_layout(
    recipe: RecipePath,
    layout: LayoutText = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, every rank by itself.")] = False,
) -> None:
    """Show which rank holds what: stages, layers, parameters, groups."""
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or [])])
    if as_json:
        print_json(facts(chosen))
    else:
        draw_layout(chosen)


app.command("plan")(plan)


@app.command("build-kernels")
def build_kernels(  # noqa: PLR0917  (typer names them)
    recipe: Annotated[
        Path | None, typer.Argument(metavar="RECIPE", help="Whose kernels to build; all variants if not given.")
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="sm_80|sm_90|…", help="For which GPU, if not this one; again for more."),
    ] = None,
    layout: LayoutText = None,
    overrides: Overrides = None,
    table: Annotated[Path | None, typer.Option(metavar="DIR", help="Write their figures to DIR/TARGET.csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print their figures as JSON.")] = False,
) -> None:
    """Compile the fused kernels ahead, into Triton's cache; no GPU is needed.

    Fails where a kernel spills registers or needs more shared memory than the target has.
    """
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or [])]) if recipe else None
    from .kernels import build  # noqa: PLC0415  (imports torch)

    built = build.build(chosen, targets or [])
    for target, kernels in built.items():
        say(f"{target}: {kernels}")
    if table is not None:
        build.write_table(table, built)
    if as_json:
        print_json({target: [kernel._asdict() for kernel in kernels.kernels] for target, kernels in built.items()})


def _axes(layout: str | None) -> list[str]:
    return [f"layout.{axis}={degree}" for axis, degree in parse_layout(layout).items()] if layout else []


def main() -> NoReturn:
    """Entry point of the console script."""
    run(app)


if __name__ == "__main__":
    main()
