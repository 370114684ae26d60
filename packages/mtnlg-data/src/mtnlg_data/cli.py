"""The command ``mtnlg-data``: whole curations (run, plan, fetch), single stages, and commands that inspect results.

Libraries are imported inside the commands, so that ``--help`` does not wait for them.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import Annotated, Literal, NoReturn

import typer

from .commands.result_commands import add_result_commands
from .commands.step_command import (
    AllowFailures,
    AsJson,
    OnEngine,
    OnRay,
    Workers,
    WorkFolder,
    add_step_commands,
    check_failures,
    out_option,
)
from .console import Failure, UsageFailure, application, print_json, run, say
from .engine import Keep, lock_folder, make_folder
from .engine.local import OBJECTS_PER_COLLECTION
from .transfer.urls import Location, Url, location

app = application("mtnlg-data", "Raw web pages to clean, deduplicated, blended tokens.")

RecipePath = Annotated[
    Location,
    typer.Argument(help="A recipe: a TOML file, or a folder that holds data.toml.", parser=location),
]
RecipeInput = Annotated[
    Location | None,
    typer.Option(
        "--input", parser=location, metavar="FOLDER|URL", help="Base folder of the recipe's paths; default its own."
    ),
]
RunFolder = Annotated[Location, out_option("Folder for everything, or a URL for the results (s3://…).")]
RecipeOverrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe, such as quality.alpha=9."),
]
WhatStays = Annotated[
    Keep, typer.Option(help="last: remove each stage's shards and state after the next stage has read them.")
]


@app.command("run")
def run_recipe(
    recipe: RecipePath,
    out: RunFolder,
    *,
    work: WorkFolder = None,
    engine: OnEngine = "local",
    ray: OnRay = None,
    workers: Workers = None,
    folder: RecipeInput = None,
    keep: WhatStays = "all",
    overrides: RecipeOverrides = None,
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
    launcher: Annotated[
        Literal["local", "slurm"], typer.Option(help="Run here, or submit a Slurm job that runs it on its own Ray.")
    ] = "local",
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Option for sbatch, such as --sbatch=--nodes=16.")
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="Line of bash that the Slurm job runs first, as you, such as module load."),
    ] = None,
    srun: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Option for srun, such as --srun=--container-image=/images/mtnlg.sqsh."),
    ] = None,
    interface: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network interface of the Slurm job's Ray, such as ib0.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the Slurm job's script, and submit nothing.")
    ] = False,
) -> None:
    """Run every stage of a recipe: from raw sources to the tokens that training reads.

    The same command resumes an interrupted run, with any number of workers, and ends with the same bytes.
    """
    from .engine import open_engine  # noqa: PLC0415
    from .pipeline import check_inputs, curate  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415
    from .report import write_report  # noqa: PLC0415
    from .transfer.publish import Place  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [], folder)
    if launcher == "slurm":
        from .engine.slurm import job_script, submit  # noqa: PLC0415

        if engine != "ray" or ray is not None:
            raise UsageFailure("--launcher slurm needs --engine ray and no --ray, since the job starts its own Ray")
        options = {"out": out, "work": work, "engine": engine, "workers": workers, "input": folder, "keep": keep}
        words = [f"--{name}={value}" for name, value in options.items() if value is not None]
        words += [f"--set={override}" for override in overrides or []]
        words += ["--allow-failures"] * allow_failures + ["--json"] * as_json
        place_of = str(out if isinstance(out, Url) else out.resolve())
        script = job_script(
            ["run", str(recipe), *words], sbatch or [], interface, out=place_of, setup=setup or [], srun=srun or []
        )
        if dry_run:
            typer.echo(script, nl=False)
        else:
            check_inputs(resolved)
            if not isinstance(out, Url):
                make_folder(out)  # for the log
            say(f"{out}: submitted as job {submit(script=script)}; the same command resumes it")
        return
    if sbatch or setup or srun or interface or dry_run:
        raise UsageFailure("--sbatch, --setup, --srun, --interface and --dry-run go with --launcher slurm")
    place = Place.of(out, work)
    with open_engine(engine, workers, ray) as opened:
        summary = curate(resolved, place.folder, opened, keep)
    write_report(place.folder)
    place.publish()
    if as_json:
        print_json(summary)
    check_failures(summary, allow=allow_failures)


@app.command()
def fetch(
    snapshot: Annotated[
        str, typer.Argument(help="A snapshot of Common Crawl, such as CC-MAIN-2020-50, or a URL such as s3://…")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    base: Annotated[
        str | None, typer.Option(metavar="URL|FOLDER", help="Another server, or a folder that mirrors one.")
    ] = None,
    files: Annotated[int | None, typer.Option(min=1, max=10**9, help="Fetch only this many files.")] = None,
    largest: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 50, metavar="BYTES", help="Refuse files of a snapshot longer than this; 8 GiB."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="Files to fetch at a time.")] = 4,
    verify: Annotated[bool, typer.Option("--verify", help="Read the files already fetched, and check them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a snapshot of Common Crawl (its listing, then its WARC files), or what is at a URL: all whole and checked.

    The same command resumes an interrupted one, in mid-file too. A recipe's source with
    [bold]snapshot = "FOLDER"[/bold] reads the files fetched so far.
    """
    from .report.numbers import data_size  # noqa: PLC0415

    if isinstance(url := location(snapshot), Url):
        from .transfer.url_files import fetch_files, list_files  # noqa: PLC0415

        if base or files or verify or largest:
            raise UsageFailure(f"{url}: --base, --files, --largest and --verify are for snapshots of Common Crawl")
        remote = list_files(url)
        with lock_folder(out):
            done = fetch_files(remote, out, workers=workers, label=f"fetch {url}")
        say(f"{url}: {done.fetched:,} files fetched, {done.kept:,} here before; {data_size(done.size)} in {out}")
        if as_json:
            print_json({"url": url, "fetched": done.fetched, "kept": done.kept, "bytes": done.size})
        return
    from .transfer.snapshot import COMMON_CRAWL, LARGEST_FILE, fetch_snapshot  # noqa: PLC0415

    place, ceiling = base or COMMON_CRAWL, largest or LARGEST_FILE
    summary = fetch_snapshot(snapshot, out, place, files=files, largest=ceiling, workers=workers, verify=verify)
    say(
        f"{snapshot}: {summary['fetched']:,} files fetched, {summary['kept']:,} here before, of {summary['wanted']:,} "
        f"wanted and {summary['listed']:,} listed; {data_size(summary['bytes'])} in {out}"
    )
    if as_json:
        print_json(summary)
    if failed := summary["failed"]:
        raise Failure(f"{len(failed)} of {summary['wanted']} files could not be fetched; the first: {failed[0]['why']}")


@app.command("plan")
def show_plan(
    recipe: RecipePath,
    *,
    documents: Annotated[
        float | None,
        typer.Option(
            min=1, max=1e11, metavar="N", help="Number of documents, such as 320e6; else estimated from the files."
        ),
    ] = None,
    characters: Annotated[
        int | None,
        typer.Option(
            "--characters-per-document",
            min=1,
            max=10**9,
            metavar="N",
            help="With --documents: their mean length; 4600.",
        ),
    ] = None,
    near_duplicates: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Share of the documents that have a near duplicate.")
    ] = 0.3,
    folder: RecipeInput = None,
    workers: Workers = None,
    overrides: RecipeOverrides = None,
    as_json: AsJson = False,
) -> None:
    """Estimate disk, memory and hours of a curation, stage by stage, before anything runs.

    Without [bold]--documents[/bold] all that the recipe names must be here, and is checked as before a run.
    """
    from .engine.machine import cores  # noqa: PLC0415
    from .pipeline import check_inputs  # noqa: PLC0415
    from .planning.corpus_size import MEAN_CHARACTERS, assumed_corpus, estimate_corpus  # noqa: PLC0415
    from .planning.plan import plan, print_plan  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [], folder)
    if documents is not None:
        size = assumed_corpus(resolved, int(documents), characters or MEAN_CHARACTERS)
    elif characters is not None:
        raise UsageFailure("--characters-per-document goes with --documents; without both they are read from the files")
    else:
        check_inputs(resolved)
        size = estimate_corpus(resolved)
    planned = plan(resolved, size._replace(near_duplicates=near_duplicates), workers or cores())
    if as_json:
        print_json(planned)
    else:
        print_plan(planned)


add_step_commands(app)
add_result_commands(app)


def main() -> NoReturn:
    """Run the command line."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    faulthandler.enable(2)  # prints where a library crashes
    gc.freeze()
    atexit.register(gc.freeze)  # else the collector would search all modules for cycles at exit
    run(app)


if __name__ == "__main__":
    main()
