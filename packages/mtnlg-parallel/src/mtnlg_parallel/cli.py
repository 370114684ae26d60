"""The command ``mtnlg-parallel``."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mtnlg_model.console import UsageFailure, application, print_json, run, say

from . import launch
from .folder import RECIPE, prepare, read_summary
from .layout import parse_layout
from .picture import draw, facts
from .recipe import load_recipe
from .samples import open_data

if TYPE_CHECKING:
    from .folder import Start
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
) -> None:
    """Train a recipe on tokens; run again, go on from the newest checkpoint.

    Starts one process a rank on this machine. Under torchrun (RANK in the environment) it joins as that rank.
    """
    chosen = load_recipe(recipe, [*_axes(layout), *(overrides or [])])
    if dry_run:
        _show_rank(chosen, rank)
        return
    if data is None or out is None:
        raise UsageFailure("train needs --data and --out, or --dry-run")
    if launch.die_with_parent():
        _be_a_rank(chosen, data, out, None)
    elif launch.is_rank():
        _be_a_rank(chosen, data, out, resume)
    else:
        start = prepare(out, chosen, open_data(data, chosen).train.fingerprint, resume)
        if not start.complete:
            say(
                f"training {chosen.model.parameters:,} parameters over {chosen.layout}, "
                f"step {start.step} to {start.steps}"
            )
            words = [str(out / RECIPE), "--data", str(data), "--out", str(out), "--debug"]
            launch.run_local(chosen.layout, [sys.executable, "-m", "mtnlg_parallel.cli", "train", *words], out, start)
        say(("already " if start.complete else "") + _outcome(out))


def _show_rank(recipe: Recipe, rank: int) -> None:
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core decorates with torch.compile what we never call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what megatron-core could use and we do not
        from . import shard  # noqa: PLC0415  (imports torch and megatron-core)
    shard.draw(shard.shard_of(recipe, rank), recipe)


def _be_a_rank(recipe: Recipe, data: Path, out: Path, resume: bool | None) -> None:
    """Train as one rank; ``resume`` None where the launcher has prepared ``out`` and shows the progress."""
    from .worker import run_rank  # noqa: PLC0415  (imports torch, DeepSpeed and megatron-core)

    def first() -> Start | None:
        if resume is None:
            return None
        return prepare(out, recipe, open_data(data, recipe).train.fingerprint, resume)

    run_rank(recipe, data, out, first)


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
        draw(chosen)


def _axes(layout: str | None) -> list[str]:
    return [f"layout.{axis}={degree}" for axis, degree in parse_layout(layout).items()] if layout else []


def main() -> NoReturn:
    """Entry point of the console script."""
    run(app)


if __name__ == "__main__":
    main()
