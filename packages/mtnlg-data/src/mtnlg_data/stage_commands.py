"""The commands that run one stage by itself: extract, score, clean, dedup, decontaminate, tokenize.

They take files and folders of any format, and what another of them has left::

    mtnlg-data extract web=crawl/ --out pages
    mtnlg-data score pages --positive books.jsonl.gz --out good
    mtnlg-data dedup books.jsonl.gz good --out unique
    mtnlg-data tokenize unique --weight documents=0.3 --weight web=0.7 --set vocabulary=50257 --out tokens
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import print_json
from .engine import EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Engine, Summary

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
    from . import stages  # noqa: PLC0415
    from .extract import ExtractSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(ExtractSettings, overrides or [])
    how = {"kind": "pile", "subset": subset} if subset is not None else {"field": field}
    found = stages.inputs_of(inputs, raw=True, **how)
    _run(lambda on: stages.extract(found, out, settings, on), engine, workers, as_json=as_json)


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
    from . import stages  # noqa: PLC0415
    from .quality import QualitySettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(QualitySettings, overrides or [])
    found, good = stages.inputs_of(inputs), stages.inputs_of(positive or [], unnamed="positives")
    _run(lambda on: stages.score(found, out, settings, on, positives=good), engine, workers, as_json=as_json)


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
    from . import stages  # noqa: PLC0415
    from .clean import CleanSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(CleanSettings, overrides or [])
    found, chosen = stages.inputs_of(inputs), stages.rules_of(rules)
    _run(lambda on: stages.clean(found, out, settings, on, rules=chosen), engine, workers, as_json=as_json)


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
    from . import stages  # noqa: PLC0415
    from .dedup import DeduplicateSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(DeduplicateSettings, overrides or [])
    found = stages.inputs_of(inputs)
    _run(lambda on: stages.dedup(found, out, settings, on), engine, workers, as_json=as_json)


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
    from . import stages  # noqa: PLC0415
    from .decontaminate import DecontaminateSettings  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415

    settings = from_overrides(DecontaminateSettings, overrides or [])
    found = stages.inputs_of(inputs)
    _run(lambda on: stages.decontaminate(found, out, settings, on, texts=texts), engine, workers, as_json=as_json)


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
    from . import stages  # noqa: PLC0415
    from .settings import from_overrides  # noqa: PLC0415
    from .tokenization import TokenizeSettings  # noqa: PLC0415

    settings = from_overrides(TokenizeSettings, overrides or [])
    found, weights = stages.inputs_of(inputs), stages.weights_of(weight or [])
    _run(lambda on: stages.tokenize(found, out, settings, on, weights=weights), engine, workers, as_json=as_json)


def _run(work: Callable[[Engine], Summary], engine: EngineName, workers: int | None, *, as_json: bool) -> None:
    from .engine import engine_named  # noqa: PLC0415

    with engine_named(engine, workers) as runs:
        summary = work(runs)
    if as_json:
        print_json(summary)


COMMANDS = (extract, score, clean, dedup, decontaminate, tokenize)
