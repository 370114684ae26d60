"""The command ``mtnlg-data``: whole curations (run, plan, fetch), single stages, and what looks at their output.

Libraries are imported inside the commands, so that ``--help`` does not wait for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .console import Failure, UsageFailure, application, print_json, run, say
from .engine import EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine, Summary

app = application("mtnlg-data", "Raw web pages to clean, deduplicated, blended tokens.")

RecipePath = Annotated[Path, typer.Argument(help="A recipe: a TOML file, or a folder that holds data.toml.")]
RecipeOverrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe, such as quality.alpha=9."),
]
InputPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files and folders: WARC, JSON lines (.gz, .zst, .xz, .bz2), Parquet, a stage's output; NAME=PATH.",
    ),
]
StageFolder = Annotated[Path, typer.Option("--out", help="Folder for shards, manifests, summary and report.")]
StageOverrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the stage.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of processes; all cores if not given.")]
OnEngine = Annotated[EngineName, typer.Option(help="Where to run: processes of this machine, or a Ray cluster.")]
AllowFailures = Annotated[
    bool, typer.Option("--allow-failures", help="Exit with 0 where files or records could not be read.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command("run")
def run_recipe(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option("--out", help="Folder for everything that is written.")],
    *,
    engine: OnEngine = "local",
    workers: Workers = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Run as task I (from 0) of N that share the folder.")
    ] = None,
    overrides: RecipeOverrides = None,
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage of a recipe: from raw sources to the tokens that training reads.

    The same command resumes an interrupted run, with any number of workers, and ends with the same bytes. Relative
    paths in the recipe start from its key "input": [bold]--set input=runs/quickstart[/bold].
    In a Slurm job array: [bold]--shard $SLURM_ARRAY_TASK_ID/16[/bold].
    """
    from .engine import open_engine  # noqa: PLC0415
    from .pipeline import curate  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415
    from .report import write_report  # noqa: PLC0415

    task = None if shard is None else _parse_shard(shard)
    resolved = load_recipe(recipe, overrides or [])
    with open_engine(engine, workers) as opened:
        summary = curate(resolved, out, opened, task)
    write_report(out)
    if as_json:
        print_json(summary)
    _check_failures(summary, allow=allow_failures)


def _check_failures(summary: Summary, *, allow: bool) -> None:
    """Raise ``Failure`` where files or too many records could not be read; with ``allow`` say so instead."""
    for stage in summary["stages"]:
        if failure := stage.get("failure"):
            if not allow:
                raise Failure(f"{failure}; all else is done; --allow-failures takes this for a success")
            say(f"allowed: {failure}")


def _parse_shard(shard: str) -> tuple[int, int]:
    """(I, N) of ``I/N``. Raises ``UsageFailure`` unless 0 <= I < N."""
    task, _, tasks = shard.partition("/")
    if not (task.isdecimal() and tasks.isdecimal() and int(task) < int(tasks)):
        raise UsageFailure(f"--shard {shard}: expected I/N with I from 0 to N - 1, such as 0/16")
    return int(task), int(tasks)


@app.command()
def fetch(
    snapshot: Annotated[str, typer.Argument(help="A snapshot of Common Crawl, such as CC-MAIN-2020-50.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    base: Annotated[
        str | None, typer.Option(metavar="URL|FOLDER", help="Another server, or a folder that mirrors one.")
    ] = None,
    files: Annotated[int | None, typer.Option(min=1, help="Fetch only this many files.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Files to fetch at a time.")] = 4,
    verify: Annotated[bool, typer.Option("--verify", help="Read the files that are here, and check them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a snapshot of Common Crawl: its listing, then its WARC files, each whole and checked.

    The same command resumes an interrupted one, in mid-file too. A recipe's source with
    [bold]snapshot = "FOLDER"[/bold] reads the files fetched so far.
    """
    from .sources.remotes import parse_remote  # noqa: PLC0415
    from .sources.snapshot import COMMON_CRAWL, fetch_snapshot  # noqa: PLC0415

    remote = parse_remote(base or COMMON_CRAWL)
    summary = fetch_snapshot(snapshot, out, remote, files=files, workers=workers, verify=verify)
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
    documents: Annotated[float, typer.Option(min=1, help="Number of documents, such as 320e6.")],
    characters: Annotated[int, typer.Option("--characters-a-document", min=1, help="Their mean length.")] = 4600,
    workers: Workers = None,
    overrides: RecipeOverrides = None,
    as_json: AsJson = False,
) -> None:
    """Estimate disk, memory and hours of a curation, stage by stage, before anything runs."""
    from .engine.local import available_cores  # noqa: PLC0415
    from .plan import plan, print_plan  # noqa: PLC0415
    from .recipe import load_recipe  # noqa: PLC0415

    resolved = load_recipe(recipe, overrides or [])
    planned = plan(resolved, int(documents), characters, workers or available_cores())
    if as_json:
        print_json(planned)
    else:
        print_plan(planned)


@app.command()
def extract(
    inputs: InputPaths,
    *,
    out: StageFolder,
    field: Annotated[str, typer.Option(help="Key or column of the text, in JSON lines and Parquet.")] = "text",
    subset: Annotated[
        str | None, typer.Option(help="Read the Pile's format, and keep documents of this pile_set_name.")
    ] = None,
    overrides: StageOverrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Extract documents from records: charset, language, and the text of a web page without its boilerplate."""
    from . import standalone  # noqa: PLC0415
    from .extract.text import ExtractSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    file_options = {"field": field} if subset is None else {"kind": "pile", "subset": subset}
    settings = from_overrides(ExtractSettings, overrides or [])
    files = standalone.find_inputs(inputs, raw=True, **file_options)
    _run_stage(
        lambda on: standalone.extract(files, out, settings, on), engine, workers, allow_failures, as_json=as_json
    )


@app.command()
def score(
    inputs: InputPaths,
    *,
    out: StageFolder,
    positive: Annotated[
        list[str] | None, typer.Option(metavar="INPUT", help="Good documents to train the classifier on.")
    ] = None,
    overrides: StageOverrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Train a quality classifier, score every document, and keep those that the Pareto draw keeps.

    [bold]--set model=FILE[/bold] takes a trained classifier instead, such as the classifier.npy of another run.
    """
    from . import standalone  # noqa: PLC0415
    from .quality.stage import QualitySettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(QualitySettings, overrides or [])
    files, good = standalone.find_inputs(inputs), standalone.find_inputs(positive or [], unnamed="positives")
    _run_stage(
        lambda on: standalone.score(files, out, settings, on, positives=good),
        engine,
        workers,
        allow_failures,
        as_json=as_json,
    )


@app.command()
def clean(
    inputs: InputPaths,
    *,
    out: StageFolder,
    rules: Annotated[
        str, typer.Option(help="Rules to apply: unicode, whitespace, language, javascript, short.")
    ] = "unicode,language,javascript,short",
    overrides: StageOverrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Repair Unicode and white space; drop other languages, JavaScript stubs and short documents."""
    from . import standalone  # noqa: PLC0415
    from .clean.stage import CleanSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(CleanSettings, overrides or [])
    files, chosen = standalone.find_inputs(inputs), standalone.parse_rules(rules)
    _run_stage(
        lambda on: standalone.clean(files, out, settings, on, rules=chosen),
        engine,
        workers,
        allow_failures,
        as_json=as_json,
    )


@app.command()
def dedup(
    inputs: InputPaths,
    *,
    out: StageFolder,
    overrides: StageOverrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Keep one of near duplicates over all inputs, of the source named first; OUT/removed.parquet lists the others."""
    from . import standalone  # noqa: PLC0415
    from .dedup.stage import DeduplicateSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(DeduplicateSettings, overrides or [])
    files = standalone.find_inputs(inputs)
    _run_stage(lambda on: standalone.dedup(files, out, settings, on), engine, workers, allow_failures, as_json=as_json)


@app.command()
def decontaminate(
    inputs: InputPaths,
    *,
    out: StageFolder,
    texts: Annotated[Path, typer.Option(help="Texts of the evaluation tasks, written by mtnlg-eval texts.")],
    overrides: StageOverrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Cut the n-grams of the evaluation tasks, and the text around them, out of the documents."""
    from . import standalone  # noqa: PLC0415
    from .decontaminate.cut_planning import DecontaminateSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(DecontaminateSettings, overrides or [])
    files = standalone.find_inputs(inputs)
    _run_stage(
        lambda on: standalone.decontaminate(files, out, settings, on, texts=texts),
        engine,
        workers,
        allow_failures,
        as_json=as_json,
    )


@app.command()
def tokenize(
    inputs: InputPaths,
    *,
    out: StageFolder,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SHARE", help="A source's share of the training samples.")
    ] = None,
    overrides: StageOverrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    allow_failures: AllowFailures = False,
    as_json: AsJson = False,
) -> None:
    """Tokenize documents into Megatron token stores and their blend.

    [bold]--set vocabulary=50257[/bold] trains a tokenizer; [bold]--set kind=gpt2 --set path=FOLDER[/bold] reads one.
    """
    from . import standalone  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415
    from .tokens.tokenizer import TokenizeSettings  # noqa: PLC0415

    settings = from_overrides(TokenizeSettings, overrides or [])
    files, weights = standalone.find_inputs(inputs), standalone.parse_weights(weight or [])
    _run_stage(
        lambda on: standalone.tokenize(files, out, settings, on, weights=weights),
        engine,
        workers,
        allow_failures,
        as_json=as_json,
    )


def _run_stage(
    stage: Callable[[Engine], Summary], engine: EngineName, workers: int | None, allow_failures: bool, *, as_json: bool
) -> None:
    from .engine import open_engine  # noqa: PLC0415

    with open_engine(engine, workers) as opened:
        summary = stage(opened)
    if as_json:
        print_json(summary)
    _check_failures(summary, allow=allow_failures)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A Parquet file of documents, a token store, or a folder of either.")],
    documents: Annotated[int, typer.Option(min=0, help="Number of documents to show.")] = 3,
    characters: Annotated[int, typer.Option(min=1, help="Characters of each to show.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Show what a run, a folder, a Parquet file or a token store holds: counts by source, and a few documents."""
    from .report.inspection import inspect_path, print_inspection  # noqa: PLC0415

    inspection = inspect_path(path, documents, characters)
    if as_json:
        print_json(inspection)
    else:
        print_inspection(inspection)


@app.command("merge")
def merge_stores(
    stores: Annotated[list[Path], typer.Argument(help="Token stores: their prefixes, .bin or .idx files.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="PREFIX", help="Store to write: PREFIX.bin, .idx and .crc.")],
    as_json: AsJson = False,
) -> None:
    """Merge token stores into one without tokenizing again; the documents of each are spread evenly over it."""
    from .tokens.merge import merge  # noqa: PLC0415

    merged = merge([path.with_suffix("") if path.suffix in {".bin", ".idx"} else path for path in stores], out)
    say(f"{out}: {len(merged):,} documents, {merged.tokens:,} tokens of {merged.dtype}")
    if as_json:
        checksum = merged.checksum()
        print_json({"prefix": str(out), "documents": len(merged), "tokens": merged.tokens, "sha256": checksum})


@app.command("report")
def draw_report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a single stage: it holds summary.json.")],
) -> None:
    """Write FOLDER/report.html again, from FOLDER/summary.json."""
    from .report import write_report  # noqa: PLC0415

    say(f"{write_report(folder)}: what was kept, what was dropped, and why")


def main() -> NoReturn:
    """Run the command line."""
    run(app)
