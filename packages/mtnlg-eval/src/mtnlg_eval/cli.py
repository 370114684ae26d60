"""The command ``mtnlg-eval``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from mtnlg_model.console import Failure, UsageFailure, application, print_json, run, say
from mtnlg_model.files import atomic_open

from .evaluation import MOST, TASK_NAMES, check_data, check_tasks, evaluate, silence_lm_eval
from .table import print_rows, print_scores
from .tasks.examples import rows_help

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# Commands import what is slow to import when they run: --help shall be fast.

app = application("mtnlg-eval", "Score an MT-NLG checkpoint on the paper's nine tasks, and draw the report of a run.")

NINE = ",".join(TASK_NAMES)
CheckpointArgument = Annotated[
    Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, a folder of them (newest) or a Hugging Face folder.")
]
DataOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Published rows, one folder per task. Default: the Hugging Face hub.")
]
LayoutOption = Annotated[
    str | None, typer.Option(metavar="tp=2,pp=2,dp=1", help="Shard the model over so many processes (GPUs).")
]
TasksOption = Annotated[str, typer.Option(metavar="A,B", help=f"Some of {', '.join(TASK_NAMES)}.", show_default="all")]
StudyOut = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the answers; the same command resumes.")]


@app.command("run", epilog=rows_help())
def run_tasks(  # noqa: PLR0917  (typer names them)
    checkpoint: CheckpointArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of results: another command adds, the same resumes.")
    ],
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B", help=f"Some of {', '.join(TASK_NAMES)}. Default: all.")
    ] = None,
    task_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="TASK.yaml", help="A task of your own as lm-eval's YAML; alone, or beside --tasks."),
    ] = None,
    shots: Annotated[
        str, typer.Option(metavar="0,1,few", help="Examples in the prompt; few is GPT-3's K.")
    ] = "0,1,few",
    data: DataOption = None,
    revision: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=COMMIT", help="Commit of a task's rows on the hub; once a task. Default: newest."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MOST, metavar="N", help="Only a random sample of N rows.")
    ] = None,
    layout: LayoutOption = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Tokens per batch; scores do not depend on it.")
    ] = 8192,
    style: Annotated[
        Literal["paper", "gpt3", "lm_eval"],
        typer.Option(help="Prompts and scores of MT-NLG, GPT-3 or lm-eval."),
    ] = "paper",
    each: Annotated[bool, typer.Option("--each", help="Score every step-N of the folder.")] = False,
    shot_source: Annotated[
        Literal["any", "other_subcases"], typer.Option(help="HANS: shots of any subcase, or not of the row's own.")
    ] = "any",
    shot_labels: Annotated[
        Literal["drawn", "interleaved", "negative"],
        typer.Option(help="HANS: labels of the shots as drawn, alternating, or non-entailment only."),
    ] = "drawn",
    seeds: Annotated[
        str, typer.Option(metavar="1,2,3", help="Draws of the shots; several give the error between them.")
    ] = "1234",
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON instead of a table.")] = False,
) -> None:
    """Score a checkpoint on the paper's nine tasks at 0, 1 and few shots.

    Adds results/ and samples/ to --out and makes results.json (lm-eval's schema) of all that is there.

    If a task cannot run, the others go on and the exit status is 1.
    """
    names = None if tasks is None else _split(tasks)
    counts, draws, revisions = _split(shots), _parse_seeds(seeds), _parse_revisions(revision or ())
    silence_lm_eval()

    gaps: dict[str, None] = {}
    asked: dict[str, None] = {}
    summaries: dict[str, dict[str, Any]] = {}
    for path in _list_steps(checkpoint) if each else [checkpoint]:
        summary = evaluate(
            path,
            out,
            tasks=names,
            shots=counts,
            data=data,
            limit=limit,
            style=style,
            layout=layout,
            batch_tokens=batch_tokens,
            shot_source=shot_source,
            shot_labels=shot_labels,
            seeds=draws,
            task_files=task_file or (),
            revisions=revisions,
        )
        if not summary:  # a rank of torchrun other than 0
            continue
        gaps |= dict.fromkeys(gap["task"] for gap in summary["not_run"])
        summaries[path.name] = summary
        asked |= dict.fromkeys([*summary["tasks"], *gaps])
        if each:
            say(f"{path.name}: {summary['tokens']:,} tokens read")
        elif as_json:
            print_json(summary)
        else:
            print_scores(summary, counts)
    if each and as_json:
        print_json(list(summaries.values()))
    elif each and summaries:
        from mtnlg_eval.results.checkpoint_table import cells_of, print_checkpoints  # noqa: PLC0415

        print_checkpoints(list(summaries), [cells_of(summary, out) for summary in summaries.values()])
    _fail_if_missing(gaps, asked)


@app.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="--model_args checkpoint=DIR[,layout=tp=2,pp=2,dp=1] --tasks A,B [OPTIONS OF lm-eval run]",
)
def lm_eval(context: typer.Context) -> None:
    """Run lm-eval's own command with a checkpoint as its model: any of its tasks, or those of --include_path.

    Everything is passed on to [bold]lm-eval run[/bold], whose --help lists it: --tasks, --num_fewshot, --log_samples,
    --output_path and so on. --model_args are checkpoint, layout, store (a folder of answers: the same command resumes)
    and batch_tokens; --batch_size has no effect.
    """
    from mtnlg_eval.scoring.lm_eval_command import run_lm_eval  # noqa: PLC0415

    run_lm_eval(context.args)


@app.command()
def texts(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON lines to write.")],
    data: DataOption = None,
    tasks: TasksOption = NINE,
) -> None:
    """Write the texts that must not be trained on, for the decontamination of mtnlg-data.

    Passages, questions and options of the scored rows, one object per line: task, id, text.
    """
    names = _split(tasks)
    check_tasks(names)
    check_data(data)
    if out.is_symlink() or (out.exists() and not out.is_file()):
        raise Failure(f"{out}: not a regular file, or a link; name another")
    silence_lm_eval()
    written = 0
    gaps: dict[str, str] = {}
    with atomic_open(out) as file:
        for name in names:
            try:
                for row, text in _read_texts(name, data):
                    file.write(json.dumps({"task": name, "id": row, "text": text}, ensure_ascii=False).encode() + b"\n")
                    written += 1
            except Failure as failure:
                gaps[name] = str(failure)
        if len(gaps) == len(names):
            raise Failure(f"no task can be read; {names[0]}: {gaps[names[0]]}")
    for name, reason in gaps.items():
        say(f"{name}: not read: {reason}")
    say(f"{written} texts of {len(names) - len(gaps)} tasks in {out}")
    _fail_if_missing(gaps, names)


@app.command()
def hans(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `run --tasks hans --out DIR` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the study as JSON instead of a table.")] = False,
) -> None:
    """Break the scored HANS rows down by heuristic, label and subcase, and write DIR/hans.json and DIR/hans.svg.

    Shots chosen in another mode as well: also DIR/hans-MODE.json and .svg.

    Accuracy → accuracy with the threshold shifted to the mean of P(True), in percent, at each number of shots:
    [bold]run --tasks hans --shots 0,1,2,4,8,16,32[/bold] gives the paper's figure 5.
    """
    from mtnlg_eval.report.study_charts import write_svg  # noqa: PLC0415
    from mtnlg_eval.studies.hans import run_hans_study, table_rows  # noqa: PLC0415

    studies = run_hans_study(folder)
    for name, study in studies.items():
        write_svg(folder / name)
        if not as_json:
            print_rows(name, [f"{count} shots" for count in study["shots"]], table_rows(study))
    if as_json:
        print_json(studies)


@app.command()
def operators(  # noqa: PLR0917  (typer names them)
    checkpoint: CheckpointArgument,
    out: StudyOut,
    shots: Annotated[str, typer.Option(metavar="1,2,4", help="Examples before the question.")] = "1,2,4,8",
    layout: LayoutOption = None,
    problems: Annotated[
        int, typer.Option(min=1, max=10**4, help="Problems per operator, disguise and number of shots.")
    ] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON instead of a table.")] = False,
) -> None:
    """Test whether the model infers the arithmetic behind a strange sign: 17 # 5 = 22, 31 # 4 = 35, 11 # 2 = ?

    Writes operators.json (counts with 95 % intervals), operators.jsonl (one problem per line) and a picture into --out.
    """
    counts = _split(shots)
    if not counts or not all(re.fullmatch("[0-9]{1,2}", count) for count in counts):
        raise UsageFailure(f"--shots {shots[:40]}: operators take 0 to 99 examples, such as 1,2,4,8")
    silence_lm_eval()
    from mtnlg_eval.report.study_charts import write_svg  # noqa: PLC0415
    from mtnlg_eval.scoring.open_model import checkpoint_identity, open_checkpoint, open_lm  # noqa: PLC0415
    from mtnlg_eval.studies.operators import run_operators_study, table_rows  # noqa: PLC0415

    opened = open_checkpoint(checkpoint, out)
    with open_lm(opened, out, layout) as lm:
        if lm is None:
            return
        cells = run_operators_study(lm, checkpoint_identity(opened), out, [int(count) for count in counts], problems)
    write_svg(out / "operators.json")
    if as_json:
        print_json([cell._asdict() for cell in cells])
    else:
        print_rows("operator, disguise", [f"{count} shots" for count in counts], table_rows(cells))


@app.command()
def bias(  # noqa: PLR0917  (typer names them)
    checkpoint: CheckpointArgument,
    out: StudyOut,
    kinds: Annotated[
        str, typer.Option(metavar="A,B", help="Some of occupation, gender, ethnicity, religion.")
    ] = "occupation,gender,ethnicity,religion",
    layout: LayoutOption = None,
    samples: Annotated[
        int, typer.Option(min=1, max=10**5, help="Texts sampled per prompt; the paper sampled 800.")
    ] = 800,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of tables.")] = False,
) -> None:
    """Measure social bias: gender by occupation, and adjectives and their sentiment by group.

    Writes bias.json and bias.svg into --out; another command adds other kinds of the same checkpoint.
    """
    silence_lm_eval()
    from mtnlg_eval.report.study_charts import write_svg  # noqa: PLC0415
    from mtnlg_eval.scoring.open_model import checkpoint_identity, open_checkpoint, open_lm  # noqa: PLC0415
    from mtnlg_eval.studies.bias import parse_kinds, print_tables, run_bias_study  # noqa: PLC0415

    chosen = parse_kinds(kinds)
    opened = open_checkpoint(checkpoint, out)
    with open_lm(opened, out, layout) as lm:
        if lm is None:
            return
        results = run_bias_study(lm, checkpoint_identity(opened), out, chosen, samples)
    write_svg(out / "bias.json")
    if as_json:
        print_json(results)
    else:
        print_tables(results)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, with data/, train/ and eval/.")],
) -> None:
    """Draw the report of a run: one self-contained page, scores beside the published ones."""
    from .report import write_report  # noqa: PLC0415

    say(f"report in {write_report(folder)}")


def main() -> NoReturn:
    """Entry point of the console script."""
    run(app)


def _split(text: str) -> list[str]:
    """The parts of a comma-separated list that are not empty, each once."""
    return [part for part in dict.fromkeys(map(str.strip, text.split(","))) if part]


def _parse_seeds(text: str) -> list[int]:
    if not all(re.fullmatch("[0-9]{1,18}", seed) for seed in _split(text)):
        raise UsageFailure(f"--seeds {text[:40]}: needs numbers, such as 1,2,3, of 18 digits at most")
    return [int(seed) for seed in _split(text)]


def _parse_revisions(texts: Sequence[str]) -> dict[str, str]:
    revisions: dict[str, str] = {}
    for text in texts:
        task, _, revision = text.partition("=")
        if not revision or task in revisions:
            raise UsageFailure(f"--revision {text}: needs TASK=COMMIT, once a task, such as boolq=3de24cf8022e")
        revisions[task] = revision
    return revisions


def _list_steps(folder: Path) -> list[Path]:
    """Every checkpoint of a folder, oldest first."""
    from mtnlg_model.checkpoint.manifest import list_checkpoints  # noqa: PLC0415

    if steps := [path for _, path in list_checkpoints(folder)]:
        return steps
    raise Failure(f"{folder}: no checkpoints in it: no step-N/manifest.json")


def _read_texts(task: str, data: Path | None) -> Iterator[tuple[str, str]]:
    if data is not None:
        from mtnlg_eval.tasks.sources import read_texts  # noqa: PLC0415

        return read_texts(data, task)
    from mtnlg_eval.scoring.harness import read_hub_texts  # noqa: PLC0415

    return read_hub_texts(task)


def _fail_if_missing(missing: Collection[str], names: Collection[str]) -> None:
    if missing:
        raise Failure(f"{len(missing)} of {len(names)} tasks are missing: {', '.join(missing)}")
