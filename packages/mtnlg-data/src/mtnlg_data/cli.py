"""The command ``mtnlg-data``: whole curations (run, plan, fetch), single stages, and what looks at their output.

Libraries are imported inside the commands, so that ``--help`` does not wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, get_args

import typer

from .commands.result_commands import add_result_commands
from .commands.stage_command import (
    AllowFailures,
    AsJson,
    OnEngine,
    OnRay,
    StageRun,
    Workers,
    WorkFolder,
    check_failures,
    stage_command,
)
from .console import Failure, UsageFailure, application, print_json, run, say
from .engine import Keep, lock_folder
from .transfer.urls import url_of

if TYPE_CHECKING:
    from .clean.stage import CleanSettings, Rule
    from .decontaminate.cut_planning import DecontaminateSettings
    from .dedup.stage import DeduplicateSettings
    from .exact.settings import ExactSettings
    from .extract.text import ExtractSettings
    from .filters.settings import FilterSettings
    from .quality.stage import QualitySettings
    from .tokens.tokenizer import TokenizeSettings

app = application("mtnlg-data", "Raw web pages to clean, deduplicated, blended tokens.")

RecipePath = Annotated[Path, typer.Argument(help="A recipe: a TOML file, or a folder that holds data.toml.")]
RecipeInput = Annotated[
    Path | None,
    typer.Option("--input", metavar="FOLDER|URL", help="Where the recipe's paths start, if not at its folder."),
]
RecipeOverrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe, such as quality.alpha=9."),
]
InputPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders and URLs: WARC, JSON lines (.gz, .zst, .xz, .bz2), Parquet, Arrow, a stage's output; "
        "NAME=PATH.",
    ),
]
WhatStays = Annotated[
    Keep, typer.Option(help="last: remove each stage's shards and state once the next one has read them.")
]
StageFolder = Annotated[Path, typer.Option("--out", help="Folder, or URL, for shards, manifests, summary and report.")]
TextField = Annotated[str, typer.Option(help="Key or column of the text, in JSON lines and Parquet.")]


@app.command("run")
def run_recipe(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option("--out", help="Folder for everything, or a URL for the results (s3://…).")],
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
    from .pipeline import curate  # noqa: PLC0415
    from .planning.preflight import check_inputs  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415
    from .report import write_report  # noqa: PLC0415
    from .transfer.publish import Place  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [], folder)
    if launcher == "slurm":
        from .engine.slurm import job_script, submit  # noqa: PLC0415

        if engine != "ray" or ray is not None:
            raise UsageFailure("--launcher slurm: goes with --engine ray, and without --ray: the job starts its own")
        options = {"out": out, "work": work, "engine": engine, "workers": workers, "input": folder, "keep": keep}
        words = [f"--{name}={value}" for name, value in options.items() if value is not None]
        words += [f"--set={override}" for override in overrides or []]
        words += ["--allow-failures"] * allow_failures + ["--json"] * as_json
        script = job_script(["run", str(recipe), *words], sbatch or [], interface)
        if dry_run:
            typer.echo(script, nl=False)
        else:
            check_inputs(resolved)
            say(f"{out}: submitted as job {submit(script)}; the same command resumes it")
        return
    if sbatch or interface or dry_run:
        raise UsageFailure("--sbatch, --interface and --dry-run go with --launcher slurm")
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
    verify: Annotated[bool, typer.Option("--verify", help="Read the files that are here, and check them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a snapshot of Common Crawl (its listing, then its WARC files), or what is at a URL: all whole and checked.

    The same command resumes an interrupted one, in mid-file too. A recipe's source with
    [bold]snapshot = "FOLDER"[/bold] reads the files fetched so far.
    """
    if (url := url_of(snapshot)) is not None:
        from .transfer.url_files import fetch_files, list_files  # noqa: PLC0415

        if base or files or verify or largest:
            raise UsageFailure(f"{url}: --base, --files, --largest and --verify go with snapshots of Common Crawl")
        with lock_folder(out):
            done = fetch_files(list_files(url), out, workers=workers, label=f"fetch {url}")
        say(f"{url}: {done.fetched:,} files fetched, {done.kept:,} here before; {done.size / 1e9:.2f} GB in {out}")
        if as_json:
            print_json({"url": url, "fetched": done.fetched, "kept": done.kept, "bytes": done.size})
        return
    from .transfer.remotes import parse_remote  # noqa: PLC0415
    from .transfer.snapshot import COMMON_CRAWL, LARGEST_FILE, fetch_snapshot  # noqa: PLC0415

    remote, ceiling = parse_remote(base or COMMON_CRAWL), largest or LARGEST_FILE
    summary = fetch_snapshot(snapshot, out, remote, files=files, largest=ceiling, workers=workers, verify=verify)
    say(
        f"{snapshot}: {summary['fetched']:,} files fetched, {summary['kept']:,} here before, of {summary['wanted']:,} "
        f"wanted and {summary['listed']:,} listed; {summary['bytes'] / 1e9:.2f} GB in {out}"
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
            "--characters-a-document",
            min=1,
            max=10**9,
            metavar="N",
            help="With --documents: their mean length; 4600.",
        ),
    ] = None,
    near_duplicates: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="Of the documents that have a near duplicate.")
    ] = 0.3,
    folder: RecipeInput = None,
    workers: Workers = None,
    overrides: RecipeOverrides = None,
    as_json: AsJson = False,
) -> None:
    """Estimate disk, memory and hours of a curation, stage by stage, before anything runs.

    Without [bold]--documents[/bold] all that the recipe names must be here, and is checked as before a run.
    """
    from .engine.local import available_cores  # noqa: PLC0415
    from .planning.corpus_size import MEAN_CHARACTERS, CorpusSize, estimate_corpus  # noqa: PLC0415
    from .planning.plan import plan, print_plan  # noqa: PLC0415
    from .planning.preflight import check_inputs  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [], folder)
    if documents is not None:
        size = CorpusSize(int(documents), characters or MEAN_CHARACTERS)
    elif characters is not None:
        raise UsageFailure("--characters-a-document goes with --documents; without both they are read from the files")
    else:
        check_inputs(resolved)
        size = estimate_corpus(resolved)
    planned = plan(resolved, size._replace(near_duplicates=near_duplicates), workers or available_cores())
    if as_json:
        print_json(planned)
    else:
        print_plan(planned)


@stage_command(app, "mtnlg_data.extract.text:ExtractSettings")
def extract(
    settings: ExtractSettings,
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: TextField = "text",
    subset: Annotated[
        str | None, typer.Option(help="Read the Pile's format, and keep documents of this pile_set_name.")
    ] = None,
) -> StageRun:
    """Extract documents from records: charset, language, and the text of a web page without its boilerplate."""
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    if subset is not None and field != "text":
        raise UsageFailure(f"--field {field}: texts of the Pile, which --subset reads, are under text")
    file_options = {"field": field} if subset is None else {"kind": "pile", "subset": subset}
    files = stage_inputs.find_inputs(inputs, raw=True, **file_options)
    return lambda engine: standalone.extract(files, out, settings, engine)


@stage_command(app, "mtnlg_data.quality.stage:QualitySettings")
def score(
    settings: QualitySettings,
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: TextField = "text",
    positive: Annotated[
        list[str] | None, typer.Option(metavar="INPUT", help="Good documents to train the classifier on.")
    ] = None,
) -> StageRun:
    """Train a quality classifier, score every document, and keep those that the Pareto draw keeps.

    [bold]--model FILE[/bold] takes a trained classifier instead, such as the classifier.npy of another run.
    """
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files, good = (
        stage_inputs.find_inputs(inputs, field=field),
        stage_inputs.find_inputs(positive or [], unnamed="positives", field=field),
    )
    return lambda engine: standalone.score(files, out, settings, engine, positives=good)


@stage_command(app, "mtnlg_data.clean.stage:CleanSettings")
def clean(
    settings: CleanSettings,
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: TextField = "text",
    rules: Annotated[
        str, typer.Option(metavar="RULE,...", help=f"Rules to apply, of {', '.join(get_args(Rule))}.")
    ] = "unicode,language,javascript,short",
) -> StageRun:
    """Repair Unicode and white space; drop other languages, JavaScript stubs and short documents."""
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files, chosen = stage_inputs.find_inputs(inputs, field=field), standalone.parse_rules(rules)
    return lambda engine: standalone.clean(files, out, settings, engine, rules=chosen)


@stage_command(app, "mtnlg_data.filters.settings:FilterSettings")
def filter(  # noqa: A001  (the command's name)
    settings: FilterSettings,
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: TextField = "text",
    rules: Annotated[
        str,
        typer.Option(
            metavar="RULE,...",
            help="Families of rules: url, gopher_repetition, gopher_quality, c4, fineweb, pii; or rules of theirs.",
        ),
    ],
) -> StageRun:
    """Drop and edit documents by the rules of Gopher, C4 and FineWeb, by URL lists, and replace personal data."""
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files, chosen = stage_inputs.find_inputs(inputs, field=field), standalone.parse_filters(rules)
    return lambda engine: standalone.filter_by_rules(files, out, settings, engine, rules=chosen)


@stage_command(app, "mtnlg_data.dedup.stage:DeduplicateSettings")
def dedup(
    settings: DeduplicateSettings, inputs: InputPaths, *, out: StageFolder, field: TextField = "text"
) -> StageRun:
    """Keep one of near duplicates, of the source named first; OUT/dropped/duplicates-*.parquet list the others."""
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files = stage_inputs.find_inputs(inputs, field=field)
    return lambda engine: standalone.dedup(files, out, settings, engine)


@stage_command(app, "mtnlg_data.exact.settings:ExactSettings")
def exact(settings: ExactSettings, inputs: InputPaths, *, out: StageFolder, field: TextField = "text") -> StageRun:
    """Keep one copy of what [bold]--kinds[/bold] names: equal documents, equal lines, passages that occur twice."""
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files = stage_inputs.find_inputs(inputs, field=field)
    if not settings.kinds:
        raise UsageFailure("exact needs --kinds, some of documents,lines,substrings")
    return lambda engine: standalone.exact(files, out, settings, engine)


@stage_command(app, "mtnlg_data.decontaminate.cut_planning:DecontaminateSettings")
def decontaminate(
    settings: DecontaminateSettings,
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: TextField = "text",
    texts: Annotated[Path, typer.Option(help="Texts of the evaluation tasks, written by mtnlg-eval texts.")],
) -> StageRun:
    """Cut the n-grams of the evaluation tasks, and the text around them, out of the documents."""
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files = stage_inputs.find_inputs(inputs, field=field)
    return lambda engine: standalone.decontaminate(files, out, settings, engine, texts=texts)


@stage_command(app, "mtnlg_data.tokens.tokenizer:TokenizeSettings")
def tokenize(
    settings: TokenizeSettings,
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: TextField = "text",
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SHARE", help="A source's share of the training samples; all sum to 1."),
    ] = None,
) -> StageRun:
    """Tokenize documents into Megatron token stores and their blend.

    [bold]--vocabulary 50257[/bold] trains a tokenizer, [bold]--tokenizer[/bold] reads one.
    """
    from .commands import stage_inputs, standalone  # noqa: PLC0415

    files, weights = stage_inputs.find_inputs(inputs, field=field), standalone.parse_weights(weight or [])
    return lambda engine: standalone.tokenize(files, out, settings, engine, weights=weights)


add_result_commands(app)


def main() -> NoReturn:
    """Run the command line."""
    run(app)


if __name__ == "__main__":
    main()
