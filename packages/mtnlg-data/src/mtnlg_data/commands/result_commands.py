"""Commands on the output of runs and stages: inspect, why, report, export."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mtnlg_data.console import print_json, say
from mtnlg_data.transfer.urls import Location, local_only, location

from .step_command import AsJson, WorkFolder, out_option

if TYPE_CHECKING:
    from collections.abc import Callable


Inspected = Annotated[
    Location,
    typer.Argument(
        help="A Parquet file, a token store, or a folder of either; or a URL of such.",
        parser=location,
    ),
]
ExportFolder = Annotated[Location, out_option("Folder or URL for the files, such as hf://datasets/ME/NAME.")]
LOCAL: dict[str, Any] = {"parser": local_only}


def add_result_commands(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for name, command in COMMANDS.items():
        app.command(name)(command)


def inspect(
    path: Inspected,
    documents: Annotated[int, typer.Option(min=0, max=10**9, help="Number of documents to show.")] = 3,
    characters: Annotated[int, typer.Option(min=1, max=10**9, help="Characters of each to show.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Show what a run, a folder, a Parquet file or a token store holds: counts by source, and a few documents."""
    from mtnlg_data.report.inspection import inspect_path, print_inspection  # noqa: PLC0415

    inspection = inspect_path(path, documents, characters)
    if as_json:
        print_json(inspection)
    else:
        print_inspection(inspection)


def why(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or of a single stage.", **LOCAL)],
    document: Annotated[str, typer.Argument(metavar="ID", help="A document's id as its source has it, or its key.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Say what became of a document at each stage: kept, cut, or dropped, for what reason and as whose duplicate."""
    from mtnlg_data.report.why import explain, print_fates  # noqa: PLC0415

    documents = explain(folder, document)
    if as_json:
        print_json(documents)
    else:
        print_fates(documents)


def draw_report(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run or of a single stage: it holds summary.json.", **LOCAL)
    ],
) -> None:
    """Write FOLDER/report.html again, from FOLDER/summary.json."""
    from mtnlg_data.report import write_report  # noqa: PLC0415

    say(f"{write_report(folder)}: what was kept, what was dropped, and why")


def export(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run or of a single stage, or of Parquet shards.", **LOCAL)
    ],
    *,
    out: ExportFolder,
    kind: Annotated[
        Literal["datasets", "parquet", "jsonl"] | None,
        typer.Option(
            "--format",
            help="What to write; datasets is Parquet with a card, as the Hub wants it. "
            "Default what a suffix of --out names (out.jsonl, out.parquet), else datasets.",
        ),
    ] = None,
    work: WorkFolder = None,
    as_json: AsJson = False,
) -> None:
    """Write the documents as Parquet, JSON lines or a data set that [bold]datasets.load_dataset[/bold] reads.

    The same command resumes an interrupted one.
    """
    from mtnlg_data.transfer.export import export_documents  # noqa: PLC0415
    from mtnlg_data.transfer.publish import Place  # noqa: PLC0415

    place = Place.of(out, work)
    counts = export_documents(folder, place.folder, kind)
    place.publish()
    say(f"{place.url or out}: {', '.join(f'{name} {rows:,}' for name, rows in counts.items())} documents")
    if as_json:
        print_json({"path": place.url or str(out), "documents": counts})


COMMANDS: dict[str, Callable[..., Any]] = {
    "inspect": inspect,
    "why": why,
    "report": draw_report,
    "export": export,
}
