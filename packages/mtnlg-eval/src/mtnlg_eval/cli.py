"""The command ``mtnlg-eval``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from mtnlg_eval.tasks.published import TASKS
from mtnlg_model.console import Failure, UsageFailure, application, print_json, run, say
from mtnlg_model.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

app = application("mtnlg-eval", "Score an MT-NLG checkpoint on the paper's nine tasks, and draw the report of a run.")

NAMES = tuple(task.name for task in TASKS)
NINE = ",".join(NAMES)
Model = Annotated[
    Path,
    typer.Argument(metavar="CHECKPOINT", help="A checkpoint, a folder of them (its newest), or Hugging Face's GPT-2."),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Rows as published, one folder a task; without it they come from the hub."),
]
Slices = Annotated[
    str | None, typer.Option(metavar="tp=2,pp=2,dp=1", help="Cut the model over so many processes (GPUs).")
]
Tasks = Annotated[str, typer.Option(metavar="A,B", help=f"Some of {', '.join(NAMES)}.", show_default="all nine")]


@app.command("run")
def score(  # noqa: PLR0917  (typer names them)
    checkpoint: Model,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where scores go; the same command again goes on there.")],
    tasks: Tasks = NINE,
    shots: Annotated[
        str, typer.Option(metavar="0,1,few", help="Examples in the prompt; few is GPT-3's K.")
    ] = "0,1,few",
    data: Data = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N rows of a task.")] = None,
    layout: Slices = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens that go through the model at once; no score depends on it.")
    ] = 8192,
    style: Annotated[
        Literal["paper", "gpt3", "lm_eval"],
        typer.Option(help="Prompts and scores of MT-NLG, GPT-3 or lm-eval."),
    ] = "paper",
    each: Annotated[bool, typer.Option("--each", help="Every step-N of the folder, into --out/step-N.")] = False,
    shot_source: Annotated[
        Literal["any", "other_subcases"], typer.Option(help="HANS: whether shots may be of the row's own subcase.")
    ] = "any",
    shot_labels: Annotated[
        Literal["drawn", "interleaved", "negative"],
        typer.Option(help="HANS: labels of the shots as drawn, by turns, or non-entailment alone."),
    ] = "drawn",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON instead of a table.")] = False,
) -> None:
    """Score a checkpoint on the paper's nine tasks at 0, 1 and few shots.

    Writes results.json (lm-eval's schema), summary.json and samples/ into --out.

    A task that cannot run is named, the others go on, and the exit status is 1.
    """
    names, asked = _names(tasks), _numbers(shots)
    _refuse_missing(data)
    if (shot_source, shot_labels) != ("any", "drawn") and names != ["hans"]:
        raise UsageFailure("--shot-source and --shot-labels are modes of the HANS study: --tasks hans goes with them")

    from .quiet import quiet  # noqa: PLC0415  (slow to import, and --help shall be fast)

    quiet()
    from mtnlg_eval.scoring.harness import Evaluation  # noqa: PLC0415  (as above)
    from mtnlg_eval.scoring.open_model import model, opened, steps  # noqa: PLC0415  (as above)
    from mtnlg_eval.tasks.shots import Choice  # noqa: PLC0415  (as above)

    from .table import show  # noqa: PLC0415  (as above)

    gaps: list[dict[str, str]] = []
    for step, folder in steps(checkpoint, out) if each else [(checkpoint, out)]:
        started, found = time.monotonic(), opened(step, folder)
        with model(found, folder, layout) as lm:
            if lm is None:
                continue
            lm.batch_tokens = batch_tokens
            evaluation = Evaluation(names, asked, data, limit, choice=Choice(shot_source, shot_labels), style=style)
            evaluation.run(lm, folder)
            summary = evaluation.write(lm, found, folder, time.monotonic() - started)
        gaps += evaluation.not_run
        if each:
            say(f"{step.name}: {summary['tokens']:,} tokens read")
        if as_json:
            print_json(summary)
        else:
            show(summary, asked)
    _end(list({gap["task"]: gap for gap in gaps}.values()), names)


@app.command()
def texts(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON lines to write.")],
    data: Data = None,
    tasks: Tasks = NINE,
) -> None:
    """Write what must not be trained on, for the decontamination of mtnlg-data.

    Passages, questions and options of the rows that are scored, one object a line: task, id, text.
    """
    names = _names(tasks)
    _refuse_missing(data)
    written, gaps = 0, []
    with replacing(out) as file:
        for name in names:
            try:
                for row, text in _texts(name, data):
                    file.write(json.dumps({"task": name, "id": row, "text": text}, ensure_ascii=False).encode() + b"\n")
                    written += 1
            except Failure as failure:
                gaps.append({"task": name, "why": str(failure)})
        if len(gaps) == len(names):
            raise Failure(f"no task can be read; {gaps[0]['task']}: {gaps[0]['why']}")
    for gap in gaps:
        say(f"{gap['task']}: not read: {gap['why']}")
    say(f"{written} texts of {len(names) - len(gaps)} tasks in {out}")
    _end(gaps, names)


@app.command()
def hans(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `run --tasks hans --out DIR` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the study as JSON instead of a table.")] = False,
) -> None:
    """Break the scored HANS rows down by heuristic, label and subcase, and write DIR/hans.json and DIR/hans.svg.

    Accuracy → accuracy with the threshold shifted to the mean of P(True), in percent, at each number of shots:
    [bold]run --tasks hans --shots 0,1,2,4,8,16,32[/bold] gives the paper's figure 5.
    """
    from mtnlg_eval.report.study_charts import draw  # noqa: PLC0415  (as above)
    from mtnlg_eval.studies.hans import lines, study  # noqa: PLC0415  (--help shall be fast)

    told = study(folder)
    draw(folder / "hans.json")
    if as_json:
        print_json(told)
        return
    from .table import show_rows  # noqa: PLC0415  (as above)

    show_rows("HANS", [f"{asked} shots" for asked in told["shots"]], lines(told))


@app.command()
def operators(  # noqa: PLR0917  (as above)
    checkpoint: Model,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where answers go; the same command again goes on there.")],
    shots: Annotated[str, typer.Option(metavar="1,2,4", help="Examples before the question.")] = "1,2,4,8",
    layout: Slices = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems of each operator, disguise and number of shots.")] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON instead of a table.")] = False,
) -> None:
    """Ask what arithmetic stands behind a strange sign: 17 # 5 = 22, 31 # 4 = 35, 11 # 2 = ?

    Writes operators.json (counts with 95 % intervals), operators.jsonl (a problem a line) and a picture into --out.
    """
    asked = _numbers(shots)
    if "few" in asked:
        raise UsageFailure(f"--shots {shots}: operators take numbers of examples, such as 1,2,4,8")

    from .quiet import quiet  # noqa: PLC0415  (slow to import, and --help shall be fast)

    quiet()
    from mtnlg_eval.report.study_charts import draw  # noqa: PLC0415  (as above)
    from mtnlg_eval.scoring.open_model import model, opened, subject  # noqa: PLC0415  (as above)
    from mtnlg_eval.studies.operators import measure, rows  # noqa: PLC0415  (as above)

    found = opened(checkpoint, out)
    with model(found, out, layout) as lm:
        if lm is None:
            return
        cells = measure(lm, subject(found), out, [int(number) for number in asked], problems)
    draw(out / "operators.json")
    if as_json:
        print_json([cell._asdict() for cell in cells])
    else:
        from .table import show_rows  # noqa: PLC0415  (as above)

        show_rows("operator, disguise", [f"{number} shots" for number in asked], rows(cells))


@app.command()
def bias(  # noqa: PLR0917  (as above)
    checkpoint: Model,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where answers go; the same command again goes on there.")],
    kinds: Annotated[
        str, typer.Option(metavar="A,B", help="Some of occupation, gender, ethnicity, religion.")
    ] = "occupation,gender,ethnicity,religion",
    layout: Slices = None,
    samples: Annotated[int, typer.Option(min=1, help="Texts drawn for each prompt; the paper drew 800.")] = 800,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON instead of tables.")] = False,
) -> None:
    """Ask what the model takes people for: the gender of occupations' holders, adjectives by group, their sentiment.

    Writes bias.json and bias.svg into --out.
    """
    from .quiet import quiet  # noqa: PLC0415  (slow to import, and --help shall be fast)

    quiet()
    from mtnlg_eval.report.study_charts import draw  # noqa: PLC0415  (as above)
    from mtnlg_eval.scoring.open_model import model, opened, subject  # noqa: PLC0415  (as above)
    from mtnlg_eval.studies.bias import kinds_of, measure  # noqa: PLC0415  (as above)

    asked = kinds_of(kinds)
    found = opened(checkpoint, out)
    with model(found, out, layout) as lm:
        if lm is None:
            return
        told = measure(lm, subject(found), out, asked, samples)
    draw(out / "bias.json")
    if as_json:
        print_json(told)
    else:
        from mtnlg_eval.studies.bias import show  # noqa: PLC0415  (as above)

        show(told)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run: data/, train/, eval/ in it.")],
) -> None:
    """Draw the report of a run: one page that needs nothing but itself, scores beside the published ones."""
    from .report import report as draw  # noqa: PLC0415  (--help shall be fast)

    say(f"report in {draw(folder)}")


def main() -> NoReturn:
    """Entry point of the console script."""
    run(app)


def _names(tasks: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    if unknown := [name for name in names if name not in NAMES]:
        raise UsageFailure(f"--tasks {tasks}: no task {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    if not names:
        raise UsageFailure(f"--tasks {tasks!r}: names no task; choose from {', '.join(NAMES)}")
    return names


def _numbers(shots: str) -> list[str]:
    numbers = list(dict.fromkeys(number.strip() for number in shots.split(",")))
    for number in numbers:
        if number != "few" and not (number.isascii() and number.isdigit() and str(int(number)) == number):
            raise UsageFailure(f"--shots {shots}: {number!r} is neither a number of examples nor few; such as 0,1,few")
    return numbers


def _refuse_missing(data: Path | None) -> None:
    if data is not None and not data.is_dir():
        raise Failure(f"{data}: no such folder")


def _texts(task: str, data: Path | None) -> Iterator[tuple[str, str]]:
    if data is not None:
        from mtnlg_eval.tasks.sources import read_texts  # noqa: PLC0415  (--help shall be fast)

        return read_texts(data, task)
    from .quiet import quiet  # noqa: PLC0415  (as above)

    quiet()
    from mtnlg_eval.scoring.harness import texts_from_hub  # noqa: PLC0415  (as above)

    return texts_from_hub(task)


def _end(gaps: list[dict[str, str]], names: list[str]) -> None:
    if gaps:
        told = ", ".join(gap["task"] for gap in gaps)
        raise Failure(f"{len(gaps)} of {len(names)} tasks are missing: {told}")
