"""The command ``mtnlg-eval``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from mtnlg_model.console import Failure, UsageFailure, application, print_json, run, say
from mtnlg_model.files import atomic_open
from mtnlg_model.local_paths import LocalPaths

from .evaluation import TASK_NAMES, check_arguments, check_parallel, evaluate, silence_lm_eval
from .table import print_checkpoints, print_scores, print_table
from .tasks.examples import rows_help

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mtnlg_eval.studies.study import Study

# Commands import slow modules only when they run, so that --help is fast.

app = application(
    "mtnlg-eval", "Score a model on the paper's nine tasks or any of lm-eval's, and draw the report of a run."
)
app.info.cls = LocalPaths

NINE = ",".join(TASK_NAMES)
CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A checkpoint, a folder of them or a run (newest), a Hugging Face folder or hub id."
    ),
]
DataOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Published rows, one folder per task. Default: the Hugging Face hub.")
]
LayoutOption = Annotated[
    str | None, typer.Option(metavar="tp=2,pp=2,dp=1", help="Shard the model over this many processes (GPUs).")
]
ModelArgsOption = Annotated[
    str,
    typer.Option(
        metavar="K=V,K=V",
        help="dtype, max_length, revision, enable_thinking, think_end_token, as of lm-eval's hf backend.",
    ),
]
TasksOption = Annotated[str, typer.Option(metavar="A,B", help=f"Some of {', '.join(TASK_NAMES)}.", show_default="all")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-task-code", help="Run code that a task's YAML names (!function) and metrics that it fetches."
    ),
]
StudyOut = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the answers; the same command resumes.")]


@app.command("run", epilog=rows_help())
def run_tasks(  # noqa: PLR0917  (typer names them)
    context: typer.Context,
    checkpoint: CheckpointArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of results: another command adds, the same resumes.")
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help=f"Some of {', '.join(TASK_NAMES)}, lm-eval's names, or TASK.yaml. Default: the nine."
        ),
    ] = None,
    task_file: Annotated[list[Path] | None, typer.Option(hidden=True)] = None,
    include_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of more tasks as lm-eval's YAML, for --tasks.")
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,few", help="Examples in the prompt; few is a task's own K. Default of the nine: all."
        ),
    ] = None,
    data: DataOption = None,
    revision: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK=COMMIT", help="Commit of a task's rows on the hub; repeatable. Default: newest."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Score only a random sample of N rows.")] = None,
    layout: LayoutOption = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens per batch; scores do not depend on it.")
    ] = 8192,
    model_args: ModelArgsOption = "",
    style: Annotated[
        Literal["paper", "gpt3"], typer.Option(help="The nine tasks' prompts: MT-NLG's or GPT-3's.")
    ] = "paper",
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Prompts as chats, by the model's template.")
    ] = False,
    trust_task_code: TrustOption = False,
    each: Annotated[bool, typer.Option("--each", help="Score every step-N of the folder.")] = False,
    shot_source: Annotated[
        Literal["any", "other_subcases"], typer.Option(help="HANS: shots of any subcase, or only of other subcases.")
    ] = "any",
    shot_labels: Annotated[
        Literal["drawn", "interleaved", "negative"],
        typer.Option(help="HANS: labels of the shots as drawn, alternating, or non-entailment only."),
    ] = "drawn",
    seeds: Annotated[
        str, typer.Option(metavar="1,2,3", help="Seeds of shots and texts; several give the spread between them.")
    ] = "1234",
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON instead of a table.")] = False,
    launcher: Annotated[
        Literal["local", "slurm"],
        typer.Option(help="Score here, or submit a Slurm job, which the same command resumes."),
    ] = "local",
    slurm: Annotated[
        Path | None,
        typer.Option(metavar="RECIPE", help="train.toml whose [slurm] the job uses; setup runs as you."),
    ] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Option for sbatch, such as --sbatch=--partition=batch.")
    ] = None,
    srun: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Option for srun, such as --srun=--container-image=FILE.")
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="Line of bash that runs first, as you: module load cuda."),
    ] = None,
    ranks_per_node: Annotated[  # noqa: ARG001  (`submit` reads it)
        int, typer.Option(min=1, help="Ranks per node with --launcher slurm.")
    ] = 8,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job's script.")] = False,
) -> None:
    """Score a model on the paper's nine tasks at 0, 1 and few shots, or on any of lm-eval's.

    Adds results/ and samples/ to --out and makes results.json (lm-eval's schema) of all that is there.

    If a task cannot run, the others go on and the exit status is 1.
    """
    draws = _numbers("--seeds", seeds, 18)
    if task_file:
        say("--task-file will be removed in 0.5; use --tasks FILE")
    if launcher == "slurm":
        check_parallel("--launcher slurm")
        from mtnlg_eval.sharded.job import submit  # noqa: PLC0415  (an extra)

        submit(context)
        return
    if slurm or sbatch or srun or setup or dry_run:
        raise UsageFailure("--slurm, --sbatch, --srun, --setup and --dry-run go with --launcher slurm")
    named = [*_split(tasks or ""), *map(str, task_file or ())]
    revisions = dict(text.partition("=")[::2] for text in revision or ())
    if revision and len(revisions) < len(revision):
        raise UsageFailure(f"--revision {', '.join(revision)}: a task is given twice; choose one commit")
    summaries: dict[str, dict[str, Any]] = {}
    for path in _list_steps(Path(checkpoint)) if each else [checkpoint]:
        summary = evaluate(
            path,
            out,
            tasks=named if named or tasks is not None else None,
            shots=None if shots is None else _split(shots),
            data=data,
            limit=limit,
            style=style,
            shot_source=shot_source,
            shot_labels=shot_labels,
            seeds=draws,
            include_path=include_path,
            revisions=revisions,
            model_args=_model_options(model_args, layout) | {"batch_tokens": batch_tokens},
            lm_eval={"apply_chat_template": apply_chat_template, "trust_task_code": trust_task_code},
        )
        if not summary:  # a rank of torchrun other than 0
            continue
        summaries[Path(path).name] = summary
        if each:
            say(f"{Path(path).name}: {summary['tokens']:,} tokens read")
    show(summaries, each=each, as_json=as_json)


def show(summaries: Mapping[str, dict[str, Any]], *, each: bool, as_json: bool) -> None:
    """Print the scores of each model; ``Failure`` if a task is missing."""
    gaps = dict.fromkeys(gap["task"] for summary in summaries.values() for gap in summary["not_run"])
    asked = dict.fromkeys([*(task for summary in summaries.values() for task in summary["tasks"]), *gaps])
    if as_json:
        print_json(list(summaries.values()) if each else next(iter(summaries.values()), {}))
    elif each and summaries:
        print_checkpoints(summaries)
    else:
        for summary in summaries.values():
            print_scores(summary)
    if gaps:
        raise Failure(f"{len(gaps)} of {len(asked)} tasks are missing: {', '.join(gaps)}")


@app.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="--model_args checkpoint=MODEL[,dtype=…] --tasks A,B --output_path DIR [OPTIONS OF lm-eval run]",
)
def lm_eval(context: typer.Context, trust_task_code: TrustOption = False) -> None:
    """Like `run`, with the words and the rules of [bold]lm-eval run[/bold]; the results are those of `run`.

    --model_args are checkpoint, those of `run --model-args`, layout, batch_tokens and store (the folder of the answers:
    the same command resumes); --batch_size has no effect.
    """
    from mtnlg_eval.lm_eval_words import parse_lm_eval  # noqa: PLC0415

    silence_lm_eval()
    arguments = parse_lm_eval(context.args)
    arguments["lm_eval"]["trust_task_code"] = trust_task_code
    summary = evaluate(**arguments)
    if summary:
        show({summary["name"]: summary}, each=False, as_json=False)


def _model_options(text: str, layout: str | None) -> dict[str, Any]:
    """The model arguments of K=V,K=V, as lm-eval reads them, and the layout."""
    options: dict[str, Any] = {"layout": layout} if layout else {}
    if not text:
        return options
    from lm_eval.utils import simple_parse_args_string  # noqa: PLC0415  (slow to import)

    return simple_parse_args_string(text) | options  # type: ignore[no-any-return]  # lm-eval carries no types


@app.command()
def texts(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The JSON lines to write.")],
    data: DataOption = None,
    tasks: TasksOption = NINE,
) -> None:
    """Write the texts that must not be trained on, for the decontamination of mtnlg-data.

    Passages, questions and options of the scored rows, one object per line: task, id, text.
    """
    names = _names("--tasks", tasks, TASK_NAMES)
    check_arguments(None, [0], data)
    silence_lm_eval()
    from mtnlg_eval.tasks.sources import open_rows  # noqa: PLC0415

    written = 0
    with atomic_open(out) as file:
        for name in names:
            for row, text in open_rows(name, data).texts():
                file.write(json.dumps({"task": name, "id": row, "text": text}, ensure_ascii=False).encode() + b"\n")
                written += 1
    say(f"{written} texts of {len(names)} tasks in {out}")


@app.command()
def hans(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `run --tasks hans --out DIR` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the study as JSON instead of a table.")] = False,
) -> None:
    """Break the scored HANS rows down by heuristic, label and subcase, and write DIR/hans.json and DIR/hans.svg.

    Of several models, styles or modes of shots each has a file of its name, the best one hans.json.

    Accuracy ± half its 95 % interval → accuracy with the threshold shifted to the mean of P(True), in percent:
    [bold]run --tasks hans --shots 0,1,2,4,8,16,32[/bold] gives the paper's figure 5.
    """
    from mtnlg_eval.studies.hans import run_hans_study  # noqa: PLC0415

    studies = run_hans_study(folder)
    if as_json:
        print_json({name: study.model_dump(exclude_unset=True) for name, study in studies.items()})
    for study in studies.values():
        _show_study(study, as_json)


@app.command()
def operators(  # noqa: PLR0917  (typer names them)
    checkpoint: CheckpointArgument,
    out: StudyOut,
    shots: Annotated[str, typer.Option(metavar="1,2,4", help="Examples before the question.")] = "1,2,4,8",
    layout: LayoutOption = None,
    model_args: ModelArgsOption = "",
    problems: Annotated[
        int, typer.Option(min=1, max=10**4, help="Problems per operator, disguise and number of shots.")
    ] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON instead of a table.")] = False,
) -> None:
    """Test whether the model infers the arithmetic behind a strange sign: 17 # 5 = 22, 31 # 4 = 35, 11 # 2 = ?

    Writes operators.json (counts with 95 % intervals) and operators.jsonl (one problem per line) into --out.
    """
    settings = {"shots": _numbers("--shots", shots, 2), "problems": problems}
    _study("operators", checkpoint, out, settings, layout, model_args, as_json=as_json)


@app.command()
def bias(  # noqa: PLR0917  (typer names them)
    checkpoint: CheckpointArgument,
    out: StudyOut,
    kinds: Annotated[
        str, typer.Option(metavar="A,B", help="Some of occupation, gender, ethnicity, religion.")
    ] = "occupation,gender,ethnicity,religion",
    layout: LayoutOption = None,
    model_args: ModelArgsOption = "",
    samples: Annotated[
        int, typer.Option(min=1, max=10**5, help="Texts sampled per prompt; the paper sampled 800.")
    ] = 800,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of tables.")] = False,
) -> None:
    """Measure social bias: gender by occupation, and adjectives and their sentiment by group.

    Writes bias.json into --out.
    """
    from mtnlg_eval.studies.bias import ALL_KINDS  # noqa: PLC0415

    settings = {"kinds": _names("--kinds", kinds, ALL_KINDS), "samples": samples}
    _study("bias", checkpoint, out, settings, layout, model_args, as_json=as_json)


def _study(  # noqa: PLR0917  (the commands' own words)
    name: str, checkpoint: str, out: Path, settings: dict[str, Any], layout: str | None, words: str, *, as_json: bool
) -> None:
    from mtnlg_eval.studies.study import run_study  # noqa: PLC0415

    study = run_study(name, checkpoint, out, settings, _model_options(words, layout))
    if study is None:  # a rank of torchrun other than 0
        return
    if as_json:
        print_json(study.model_dump(exclude_unset=True))
    _show_study(study, as_json)


def _show_study(study: Study, as_json: bool) -> None:
    for table in () if as_json else study.tables():
        print_table(table, study.name)


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of a run with data/, train/ and eval/, or of a training or `run` alone."
        ),
    ],
) -> None:
    """Draw the report of a run: one self-contained page, scores beside the published ones."""
    from .report import write_report  # noqa: PLC0415

    say(f"report in {write_report(folder)}")


@app.command(
    "watch",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="--out DIR [OPTIONS] [OPTIONS OF run]",
)
def watch_run(  # noqa: PLR0917  (typer names them)
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The --out of mtnlg-parallel train.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of results, and of the page, report.html.")],
    launch: Annotated[
        str, typer.Option(metavar="WORDS", help="Command that runs each scoring, such as 'srun --gpus=8'.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between checks for a new checkpoint.")] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="End when all present checkpoints are scored.")] = False,
) -> None:
    """Score each checkpoint of a run as it appears, until the run is complete, with the options of `run`.

    What is there already is scored first. A checkpoint that is being scored is not removed by the run.
    """
    from .watch import watch  # noqa: PLC0415

    watch(folder, out, context.args, launch=launch, seconds=seconds, once=once)


def main() -> NoReturn:
    """Entry point of the console script."""
    run(app)


def _split(text: str) -> list[str]:
    """The parts of a comma-separated list that are not empty, each once."""
    return [part for part in dict.fromkeys(map(str.strip, text.split(","))) if part]


def _names(option: str, text: str, choices: Sequence[str]) -> list[str]:
    names = _split(text)
    if not names or not {*names} <= {*choices}:
        raise UsageFailure(f"{option} {text[:40]}: choose from {', '.join(choices)}")
    return names


def _numbers(option: str, text: str, digits: int) -> list[int]:
    numbers = _split(text)
    if not numbers or not all(re.fullmatch("[0-9]+", number) and len(number) <= digits for number in numbers):
        raise UsageFailure(f"{option} {text[:40]}: needs numbers, such as 1,2,3, of {digits} digits at most")
    return list(map(int, numbers))


def _list_steps(folder: Path) -> list[Path]:
    """Every checkpoint of a folder, oldest first."""
    from mtnlg_model.checkpoint.manifest import list_checkpoints  # noqa: PLC0415

    if steps := [path for _, path in list_checkpoints(folder)]:
        return steps
    raise Failure(f"{folder}: no checkpoints: no step-N/manifest.json")


if __name__ == "__main__":
    main()
