"""The table of scores: nine tasks at 0, 1 and few shots beside the published figures, and what differs from them."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from mtnlg_eval.report.attachments.browser import linked
from mtnlg_eval.report.attachments.tables import links
from mtnlg_eval.report.markup import DASH, NARROW, count, decimal, escape, missing_part, row, short, table
from mtnlg_eval.results.compare import common_tasks, macro
from mtnlg_eval.table import differences_by_task
from mtnlg_eval.tasks.published import SHOTS, TASKS, TASKS_BY_NAME

from .comparison import comparison, every_result
from .trends import trends

if TYPE_CHECKING:
    from mtnlg_eval.report.run_files import Evaluation, Run
    from mtnlg_eval.results.compare import Cell
    from mtnlg_eval.tasks.published import Model, Shots, Task

COMMAND = "mtnlg-eval run CHECKPOINT --data ROWS --out DIR/eval"
COLUMNS = ("this run", f"95{NARROW}%", "MT-NLG", "GPT-3", "Gopher", "shown", "rows")
OWN_ROWS = ("quickstart", "rows")
MTNLG_PARAMETERS = 529_600_819_200  # paper.md 1
GPT2_NOTE, PRINTED_NOTE = "*", "\N{DAGGER}"
EXTRA_METRICS = {"acc_norm": 100.0, "perplexity": 1.0, "log_likelihood": 1.0}
"""Metrics of stock lm-eval beside accuracy, each with its factor for reading."""


def section(run: Run) -> str:
    """How to read the scores, the table of scores, runs compared, the trends and every result."""
    if run.evaluation is None:
        return missing_part("Nothing has been scored yet", "eval/results/", COMMAND)
    evaluation = run.evaluation
    numbers = "".join(f'<th class="n" scope="col">{name}</th>' for name in COLUMNS)
    head = (
        f'<thead><tr><th scope="col">task</th><th scope="col">shots</th>{numbers}'
        f'<th class="mark" scope="col">{_legend()}</th></tr></thead>'
    )
    cells = {task.name: evaluation.main.by_shots(task.name) for task in TASKS}
    shown: dict[str, dict[str, list[str]]] = {
        name: {n: cell.differs for n, cell in own.items() if n in SHOTS} for name, own in cells.items() if own
    }
    differs = differences_by_task(shown)
    bodies = "\n".join(_task(task, evaluation, cells[task.name], differs.pop(task.name, [])) for task in TASKS)
    return "\n".join(
        (
            _caveat(evaluation),
            *(
                f'<p class="caution">{escape(f"{head}: {words}")}.</p>'
                for head, lines in differs.items()
                for words in lines
            ),
            f'<div class="scroll"><table class="wide stack">{head}\n{bodies}\n</table></div>',
            links("scores", "results"),
            _footnotes(evaluation),
            _own_tasks(evaluation),
            comparison(evaluation),
            trends(evaluation),
            every_result(evaluation),
        )
    )


def _own_tasks(evaluation: Evaluation) -> str:
    """The scores of tasks that are not the paper's; nothing if there are none."""
    tasks = [task for task in evaluation.main.tasks() if task not in TASKS_BY_NAME]
    rows = []
    for name, cell in ((task, cell) for task in tasks for cell in evaluation.main.by_shots(task).values()):
        value, low, high = (100 * number for number in cell.estimate)
        shown = f"{cell.shown:.1f} of {cell.first.shots.count}"
        texts = [
            linked(f"{value:.1f}", evaluation, [cell], "wrong"),
            f"{low:.1f}{DASH}{high:.1f}",
            shown,
            count(cell.first.rows.count),
        ]
        rows.append(row([escape(name), *texts, escape("; ".join(cell.differs))]))
    head = ["task", "acc, %", "95 %", "shots shown", "rows", "differs"]
    return f"<h3>Other tasks</h3>\n{table(head, rows)}" if rows else ""


def _caveat(evaluation: Evaluation) -> str:
    """Where the rows come from and how small the model is, to be read before any score."""
    path = PurePath(evaluation.main.results[0].rows.source)
    rows = path.relative_to(path.anchor).parts[-3:]
    place = f"<code>{escape('/'.join(rows))}</code>"
    counts = {(result.task, result.rows.count) for result in evaluation.main.results}
    if rows[-2:] == OWN_ROWS:
        origin = (
            f"The rows scored here ({place}) were written for this project, about a dozen per task, to show that the "
            "pipeline runs. They are not the benchmarks' rows, so these scores say nothing about quality."
        )
    elif any((task.name, n) in counts for task in TASKS for _, n in counts if n != task.rows):
        origin = f"The rows scored here ({place}) are not the benchmarks' published splits: see below each task."
    else:
        origin = f"The rows come from {place}."
    others = "The figures of MT-NLG, GPT\N{NON-BREAKING HYPHEN}3 and Gopher are for orientation only."
    return f'<p class="caution">{origin} {_model_size(evaluation)} {others}</p>'


def _model_size(evaluation: Evaluation) -> str:
    """Parameters and training tokens of the scored model; of an imported one the tokens are not known."""
    model = evaluation.main.model
    trained = f"; it was trained on {short(model.tokens)} tokens, MT-NLG on 270{NARROW}B" if model.tokens else ""
    ratio = MTNLG_PARAMETERS / max(1, model.parameters)
    if ratio < 100:
        return f"The model has {short(model.parameters)} parameters{trained}."
    two_figures = count(float(f"{ratio:.1e}"))
    return f"The model is tiny: {short(model.parameters)} parameters, MT-NLG has {two_figures} times as many{trained}."


def _legend() -> str:
    dot = '<circle cx="5" cy="6" r="3" fill="var(--accent)"/>'
    parts = [
        ("this run", dot),
        ("MT-NLG", '<path d="M5 1v10" stroke="var(--second)" stroke-width="2"/>'),
        ("chance", '<path d="M5 1v10" stroke="var(--muted)" stroke-dasharray="2 2"/>'),
    ]
    return "\N{EM SPACE}".join(
        f'<svg viewBox="0 0 10 12" style="width:10px;height:12px;display:inline">{mark}</svg> {name}'
        for name, mark in parts
    )


def _task(task: Task, evaluation: Evaluation, cells: dict[str, Cell], differs: list[str]) -> str:
    metric = "acc" if cells else "not scored"
    name = (
        f'<th scope="rowgroup" rowspan="{len(SHOTS)}"><strong>{escape(task.title)}</strong><br><span class="quiet">'
        f"{metric}</span></th>"
    )
    rows = "</tr>\n<tr>".join(_cells(task, shots, evaluation, cells.get(shots)) for shots in SHOTS)
    return f'<tbody class="task">\n<tr>{name}{rows}</tr>\n{_notes(cells, differs)}</tbody>'


def _notes(cells: dict[str, Cell], differs: list[str]) -> str:
    """A row across the table: what differs from the paper's setting, draws of shots, and metrics beside accuracy."""
    lines = list(differs)
    for asked, cell in ((asked, cell) for asked, cell in cells.items() if asked in SHOTS):
        if cell.between_draws is not None:
            seeds = ", ".join(str(result.shots.seed) for result in cell.results)
            lines.append(f"{asked}-shot: mean of seeds {seeds}, standard error {100 * cell.between_draws:.1f}")
        metrics = cell.first.metrics
        extras = [
            f"{name} {factor * metrics[name].value:.4g}" for name, factor in EXTRA_METRICS.items() if name in metrics
        ]
        lines += [f"{asked}-shot: {', '.join(extras)}"] if extras else []
    text = "<br>".join(map(escape, lines))
    return f'<tr class="notes"><td colspan="{3 + len(COLUMNS)}"><div>{text}</div></td></tr>\n' if lines else ""


def _cells(task: Task, shots: Shots, evaluation: Evaluation, cell: Cell | None) -> str:
    label = f"few ({task.few})" if shots == "few" else shots
    models: tuple[Model, ...] = ("MT-NLG", "GPT-3" if "GPT-3" in task.figures else "GPT-2", "Gopher")
    value = bounds = shown = rows = DASH
    if cell is not None:
        mean, low, high = (100 * number for number in cell.estimate)
        value, bounds = linked(f"{mean:.1f}", evaluation, [cell], "wrong"), f"{low:.1f}{DASH}{high:.1f}"
        shown, rows = f"{cell.shown:.1f}".removesuffix(".0"), count(cell.first.rows.count)
    texts = (value, bounds, *(_published(task, model, shots) for model in models), shown, rows)
    classes = ("n own", "n quiet bounds", "n", "n", "n", "n quiet", "n quiet")
    names = (*COLUMNS[:3], models[1], *COLUMNS[4:])
    cells = "".join(
        f'<td class="{kind}" data-name="{name}">{text}</td>'
        for kind, name, text in zip(classes, names, texts, strict=True)
    )
    return f'<td class="shots">{label}</td>{cells}<td class="mark">{_mark(task, shots, cell)}</td>'


def _published(task: Task, model: Model, shots: Shots) -> str:
    printed = decimal(task.figures[model].at(shots) if model in task.figures else None, 2)
    if model == "GPT-2":
        return f"{printed}<sup>{GPT2_NOTE}</sup>"
    return f"{printed}<sup>{PRINTED_NOTE}</sup>" if (model, shots) in task.footnotes else printed


def _mark(task: Task, shots: Shots, cell: Cell | None) -> str:
    """A bar from 0 to 100 % with the score and its interval, MT-NLG's figure and chance."""
    mtnlg = task.figures["MT-NLG"].at(shots)
    marks, told = ['<path d="M0 7h400" stroke="var(--rule)"/><path d="M0 0h400v14h-400z" fill="transparent"/>'], []
    if task.chance is not None:
        told.append(f"chance {task.chance:.0f}")
        marks.append(f'<path d="M{4 * task.chance:.1f} 1v12" stroke="var(--muted)" stroke-dasharray="2 2"/>')
    if mtnlg is not None:
        told.append(f"MT-NLG {mtnlg:.1f}")
        marks.append(f'<path d="M{4 * mtnlg:.1f} 1v12" stroke="var(--second)" stroke-width="2"/>')
    if cell is not None:
        value, low, high = (400 * number for number in cell.estimate)
        told.append(f"this run {value / 4:.1f} ({low / 4:.1f}{DASH}{high / 4:.1f})")
        marks.append(f'<path d="M{low:.1f} 7H{high:.1f}" stroke="var(--accent)" stroke-width="1.6"/>')
        marks.append(f'<circle cx="{value:.1f}" cy="7" r="3.4" fill="var(--accent)"/>')
    title = f"<title>{', '.join(reversed(told))}</title>"
    opening = '<svg viewBox="0 0 400 14" preserveAspectRatio="xMinYMid meet" aria-hidden="true">'
    return f"{opening}{title}{''.join(marks)}</svg>"


def _footnotes(evaluation: Evaluation) -> str:
    notes = [
        "Accuracy in percent with Wilson's 95 % interval.",
        "<em>Shown</em> is the mean number of examples that fitted into the context;",
        "few is the number of examples that GPT-3 was given, in brackets.",
        "Below a task: what differs from the paper's setting.",
        "Published figures: Smith et al. 2022, tables 2 to 6.",
        f"{GPT2_NOTE} GPT-2's: on HANS the paper compares with no other model.",
        f"{PRINTED_NOTE} Printed with a footnote in the paper.",
    ]
    for asked in SHOTS:
        if len(tasks := common_tasks([evaluation.main], asked)) > 1:
            value, low, high = (100 * number for number in macro(evaluation.main, tasks, asked))
            notes.append(f"Mean of {len(tasks)} tasks at {asked} shots: {value:.1f} ({low:.1f}{DASH}{high:.1f}).")
    gaps = [(gap.task, PurePath(gap.checkpoint).name, gap.why) for gap in evaluation.not_run]
    notes += [f"Not run: {escape(task)} of {escape(checkpoint)}, {escape(why)}." for task, checkpoint, why in gaps]
    return f'<p class="quiet"><small>{" ".join(notes)}</small></p>'
