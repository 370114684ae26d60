"""The command ``mtnlg-data``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import Annotated, NoReturn

import typer

from .console import UsageFailure, application, print_json, run, say
from .engine import EngineName  # noqa: TC001  (typer reads the annotations)
from .stage_commands import COMMANDS

app = application("mtnlg-data", "Raw web pages to clean, deduplicated, blended tokens.")


@app.command("run")
def run_recipe(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file, or a folder that holds data.toml.")],
    out: Annotated[Path, typer.Option("--out", help="The folder that everything is written to.")],
    *,
    engine: Annotated[
        EngineName,
        typer.Option(help="Where it runs: processes of this machine, or a Ray cluster over one shared folder."),
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes to use; all cores of the machine or the cluster if not given.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="This is task I (from 0) of N that run this command over one shared folder."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe, such as quality.alpha=9."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Run every stage of a recipe: from raw sources to tokens that training reads.

    The same command again goes on from the last finished part, with any number of workers, and ends with the same
    bytes. Relative paths in the recipe start from its key "input": [bold]--set input=runs/quickstart[/bold].
    In a job array of Slurm: [bold]--shard $SLURM_ARRAY_TASK_ID/16[/bold].
    """
    # Here and not above, so that --help need not wait for the libraries.
    from .engine import engine_named  # noqa: PLC0415
    from .pipeline import curate  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415
    from .report import report  # noqa: PLC0415

    part = None if shard is None else part_of(shard)
    resolved = load_recipe(recipe, overrides or [])
    with engine_named(engine, workers) as runs:
        summary = curate(resolved, out, runs, part)
    report(out)
    if as_json:
        print_json(summary)


@app.command()
def fetch(
    snapshot: Annotated[str, typer.Argument(help="A snapshot of Common Crawl, such as CC-MAIN-2020-50.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="The folder that the files land in.")],
    base: Annotated[
        str | None, typer.Option(metavar="URL|FOLDER", help="Another server, or a folder that mirrors one.")
    ] = None,
    files: Annotated[int | None, typer.Option(min=1, help="The first so many files, and not all.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Files to fetch at a time.")] = 4,
    verify: Annotated[bool, typer.Option("--verify", help="Read what is there already, and check every byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was fetched as JSON.")] = False,
) -> None:
    """Fetch a snapshot of Common Crawl: its listing, then its WARC files, each whole and checked.

    The same command again goes on where it was, in mid-file too. A recipe's source reads the folder by
    [bold]snapshot = "FOLDER"[/bold], whatever of it has landed.
    """
    from .console import Failure  # noqa: PLC0415
    from .sources.bases import base_of  # noqa: PLC0415
    from .sources.snapshot import COMMON_CRAWL  # noqa: PLC0415
    from .sources.snapshot import fetch as fetch_snapshot  # noqa: PLC0415

    origin = base_of(base or COMMON_CRAWL)
    told = fetch_snapshot(snapshot, out, origin, files=files, workers=workers, verify=verify)
    done = f"{told['fetched']:,} files fetched, {told['kept']:,} there before, of {told['wanted']:,}"
    say(f"{snapshot}: {done} wanted and {told['listed']:,} listed; {told['bytes'] / 1e9:.2f} GB in {out}")
    if as_json:
        print_json(told)
    if failed := told["failed"]:
        raise Failure(f"{len(failed)} of {told['wanted']} files could not be fetched; the first: {failed[0]['why']}")


@app.command("plan")
def show_plan(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file, or a folder that holds data.toml.")],
    *,
    documents: Annotated[float, typer.Option(min=1, help="How many documents, such as 320e6.")],
    characters: Annotated[
        int, typer.Option("--characters-a-document", min=1, help="How long they are on average.")
    ] = 4600,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes to use; all cores of this machine if not given.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say what a curation would take of disk, memory and time, stage by stage, before anything runs."""
    from .engine import Local  # noqa: PLC0415
    from .plan import plan, show  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [])
    planned = plan(resolved, int(documents), characters, workers or Local(None).workers)
    if as_json:
        print_json(planned)
    else:
        show(planned)


for stage in COMMANDS:
    app.command()(stage)


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


@app.command("merge")
def merge_stores(
    stores: Annotated[list[Path], typer.Argument(help="Token stores: their prefixes, .bin or .idx files.")],
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="PREFIX", help="The store to write: PREFIX.bin, .idx and .crc.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Make one token store of several, without tokenizing again; the documents of each are spread evenly over it."""
    from .merging import merge  # noqa: PLC0415

    merged = merge([path.with_suffix("") if path.suffix in {".bin", ".idx"} else path for path in stores], out)
    told = {"prefix": str(out), "documents": len(merged), "tokens": merged.tokens, "sha256": merged.checksum()}
    say(f"{out}: {len(merged):,} documents, {merged.tokens:,} tokens of {merged.dtype}")
    if as_json:
        print_json(told)


def part_of(shard: str) -> tuple[int, int]:
    """The numbers of I/N. Raises ``UsageFailure`` where they are none, or I is none of N."""
    task, _, tasks = shard.partition("/")
    if not (task.isdecimal() and tasks.isdecimal() and int(task) < int(tasks)):
        raise UsageFailure(f"--shard {shard}: expected I/N with I from 0 to N - 1, such as 0/16")
    return int(task), int(tasks)


@app.command("report")
def draw_report(
    folder: Annotated[Path, typer.Argument(help="What a run, or a stage by itself, has left: it holds summary.json.")],
) -> None:
    """Draw the page of a curation again: FOLDER/report.html, from FOLDER/summary.json."""
    from .console import say  # noqa: PLC0415
    from .report import report  # noqa: PLC0415

    say(f"{report(folder)}: what was kept, what was dropped, and why")


def main() -> NoReturn:
    """Run the command line."""
    run(app)
