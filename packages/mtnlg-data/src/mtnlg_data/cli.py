"""The command ``mtnlg-data``.

The commands that run one stage by itself: extract, score, clean, dedup, decontaminate, tokenize.

They take files and folders of any format, and what another of them has left::

    mtnlg-data extract web=crawl/ --out pages
    mtnlg-data score pages --positive books.jsonl.gz --out good
    mtnlg-data dedup books.jsonl.gz good --out unique
    mtnlg-data tokenize unique --weight documents=0.3 --weight web=0.7 --set vocabulary=50257 --out tokens
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .console import UsageFailure, application, print_json, run, say
from .engine import EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine, Summary


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
    from mtnlg_data.sources.remotes import base_of  # noqa: PLC0415
    from mtnlg_data.sources.snapshot import COMMON_CRAWL  # noqa: PLC0415
    from mtnlg_data.sources.snapshot import fetch as fetch_snapshot  # noqa: PLC0415

    from .console import Failure  # noqa: PLC0415

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


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files and folders: WARC, JSON lines (.gz, .zst), Parquet, or what another stage left; NAME=PATH names a "
        "source.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The folder that shards, manifests, summary and page are written to.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the stage.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes to use; all cores if not given.")]
OnEngine = Annotated[EngineName, typer.Option(help="Where it runs: processes of this machine, or a Ray cluster.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


@app.command()
def extract(
    inputs: Words,
    *,
    out: Out,
    field: Annotated[str, typer.Option(help="Key or column of the text, in JSON lines and Parquet.")] = "text",
    subset: Annotated[
        str | None, typer.Option(help="The inputs have the Pile's format: keep this pile_set_name of them.")
    ] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    as_json: AsJson = False,
) -> None:
    """Records to documents: charset, language, and of a page the text without its boilerplate."""
    from . import standalone  # noqa: PLC0415
    from .extract.text import ExtractSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(ExtractSettings, overrides or [])
    how = {"kind": "pile", "subset": subset} if subset is not None else {"field": field}
    found = standalone.inputs_of(inputs, raw=True, **how)
    _run(lambda on: standalone.extract(found, out, settings, on), engine, workers, as_json=as_json)


@app.command()
def score(
    inputs: Words,
    *,
    out: Out,
    positive: Annotated[
        list[str] | None,
        typer.Option(metavar="INPUT", help="Good documents: a classifier learns them from the inputs."),
    ] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    as_json: AsJson = False,
) -> None:
    """Train a quality classifier, score every document, and keep those that the Pareto draw keeps.

    [bold]--set model=FILE[/bold] takes a classifier that is trained already: some score's classifier.npy.
    """
    from . import standalone  # noqa: PLC0415
    from .quality.stage import QualitySettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(QualitySettings, overrides or [])
    found, good = standalone.inputs_of(inputs), standalone.inputs_of(positive or [], unnamed="positives")
    _run(lambda on: standalone.score(found, out, settings, on, positives=good), engine, workers, as_json=as_json)


@app.command()
def clean(
    inputs: Words,
    *,
    out: Out,
    rules: Annotated[
        str, typer.Option(help="Those to apply: unicode, whitespace, language, javascript, short.")
    ] = "unicode,language,javascript,short",
    overrides: Overrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    as_json: AsJson = False,
) -> None:
    """Repair Unicode and white space; drop other languages, JavaScript stubs and short documents."""
    from . import standalone  # noqa: PLC0415
    from .clean.stage import CleanSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(CleanSettings, overrides or [])
    found, chosen = standalone.inputs_of(inputs), standalone.rules_of(rules)
    _run(lambda on: standalone.clean(found, out, settings, on, rules=chosen), engine, workers, as_json=as_json)


@app.command()
def dedup(
    inputs: Words,
    *,
    out: Out,
    overrides: Overrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    as_json: AsJson = False,
) -> None:
    """Of near duplicates across all inputs keep one, of the source named first; OUT/removed.parquet lists the rest."""
    from . import standalone  # noqa: PLC0415
    from .dedup.stage import DeduplicateSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(DeduplicateSettings, overrides or [])
    found = standalone.inputs_of(inputs)
    _run(lambda on: standalone.dedup(found, out, settings, on), engine, workers, as_json=as_json)


@app.command()
def decontaminate(
    inputs: Words,
    *,
    out: Out,
    texts: Annotated[Path, typer.Option(help="Texts of the tasks, as mtnlg-eval texts writes them.")],
    overrides: Overrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    as_json: AsJson = False,
) -> None:
    """Cut the tasks' n-grams, and what stands around them, out of the documents."""
    from . import standalone  # noqa: PLC0415
    from .decontaminate.cut_planning import DecontaminateSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(DecontaminateSettings, overrides or [])
    found = standalone.inputs_of(inputs)
    _run(lambda on: standalone.decontaminate(found, out, settings, on, texts=texts), engine, workers, as_json=as_json)


@app.command()
def tokenize(
    inputs: Words,
    *,
    out: Out,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SHARE", help="A source's share of the training samples.")
    ] = None,
    overrides: Overrides = None,
    workers: Workers = None,
    engine: OnEngine = "local",
    as_json: AsJson = False,
) -> None:
    """Documents to Megatron's token stores and their blend.

    [bold]--set vocabulary=50257[/bold] trains a tokenizer; [bold]--set kind=gpt2 --set path=FOLDER[/bold] reads one.
    """
    from mtnlg_data.tokens.tokenizer import TokenizeSettings  # noqa: PLC0415

    from . import standalone  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(TokenizeSettings, overrides or [])
    found, weights = standalone.inputs_of(inputs), standalone.weights_of(weight or [])
    _run(lambda on: standalone.tokenize(found, out, settings, on, weights=weights), engine, workers, as_json=as_json)


def _run(work: Callable[[Engine], Summary], engine: EngineName, workers: int | None, *, as_json: bool) -> None:
    from .engine import engine_named  # noqa: PLC0415

    with engine_named(engine, workers) as runs:
        summary = work(runs)
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
    from mtnlg_data.report.inspection import inspected, show  # noqa: PLC0415

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
    from mtnlg_data.tokens.merge import merge  # noqa: PLC0415

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
