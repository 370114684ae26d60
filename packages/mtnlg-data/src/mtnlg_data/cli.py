"""The command ``mtnlg-data``."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import Annotated, NoReturn

import typer

from .console import application, print_json, run

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

app = application("mtnlg-data", "Raw web pages to clean, deduplicated, blended tokens.")


@app.command("run")
def run_recipe(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file, or a folder that holds data.toml.")],
    out: Annotated[Path, typer.Option("--out", help="The folder that everything is written to.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes to use.")] = CORES,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe, such as quality.alpha=9."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run every stage of a recipe: from raw sources to tokens that training reads.

    The same command again goes on from the last finished part, with any number of workers, and ends with the same
    bytes. Relative paths in the recipe start from its key "input": [bold]--set input=runs/quickstart[/bold].
    """
    # Here and not above, so that --help need not wait for the libraries.
    from .engine import Local  # noqa: PLC0415
    from .pipeline import curate  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [])
    with closing(Local(workers)) as engine:
        summary = curate(resolved, out, engine)
    if as_json:
        print_json(summary)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A Parquet file of documents, a token store, or a folder of either.")],
    documents: Annotated[int, typer.Option(min=0, help="How many documents to show.")] = 3,
    characters: Annotated[int, typer.Option(min=1, help="How much of each to show.")] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Show what a folder, a Parquet file or a token store holds: counts by source, and decoded documents."""
    from .inspection import inspected, show  # noqa: PLC0415

    found = inspected(path, documents, characters)
    if as_json:
        print_json(found)
    else:
        show(found)


def main() -> NoReturn:
    """Run the command line."""
    run(app)
