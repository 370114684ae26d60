"""Several runs in one table, with paired differences and macro averages, and the table of every result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_eval.report.attachments.browser import linked
from mtnlg_eval.report.attachments.tables import links
from mtnlg_eval.report.markup import DASH, MINUS, count, escape, row, short, table
from mtnlg_eval.results.compare import common_tasks, difference, labels, macro, macro_difference
from mtnlg_eval.tasks.published import SHOTS, title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_eval.report.run_files import Evaluation
    from mtnlg_eval.results.compare import Cell, Estimate, Run
    from mtnlg_eval.results.result import Result


def comparison(evaluation: Evaluation) -> str:
    """A row per task and number of shots, a column per run; nothing for a single run."""
    runs = evaluation.runs
    if len(runs) < 2:
        return ""
    names = [
        f"{escape(label)}<br>{short(run.model.tokens)} tokens" if run.model.tokens else escape(label)
        for label, run in zip(labels(runs), runs, strict=True)
    ]
    keys = [key for key in runs[0].cells if any(key in run.cells for run in runs[1:])]
    order = runs[0].tasks()
    keys.sort(key=lambda key: (order.index(key[0]), runs[0].cells[key].first.shots.count, key[1]))
    rows = [
        row([f"{escape(title_of(task))}, {_shots(asked)}", *_compared(evaluation, task, asked)]) for task, asked in keys
    ]
    rows += [row(_averages(runs, asked), "total") for asked in SHOTS if any(key[1] == asked for key in keys)]
    note = (
        '<p class="quiet"><small>Accuracy in percent with its 95 % interval; below it, for all runs but the first, the '
        "difference to the first with its interval, row by row over the same rows (Bonett and Price 2012); bold where "
        f"the interval leaves out 0, {DASH} where the rows are not the same.</small></p>"
    )
    compared = f'<div class="compared">{table(["task", *names], rows)}</div>'
    return f"<h3>Runs compared</h3>\n{compared}\n{links('comparison')}\n{note}"


def _shots(asked: str) -> str:
    return "few shots" if asked == "few" else f"{asked} shot{'' if asked == '1' else 's'}"


def _compared(evaluation: Evaluation, task: str, asked: str) -> list[str]:
    base = evaluation.main.cells[task, asked]

    def compare(cell: Cell | None) -> str:
        if cell is None:
            return DASH
        change = difference(cell, base)
        text = _change(change)
        return f"{_value(cell.estimate)}<br>{linked(text, evaluation, [base, cell], 'differ') if change else text}"

    return [_value(base.estimate), *(compare(run.cells.get((task, asked))) for run in evaluation.runs[1:])]


def _averages(runs: Sequence[Run], asked: str) -> list[str]:
    """The mean over all tasks of the first run; for the others over the tasks that they share with it."""
    tasks = common_tasks(runs[:1], asked)
    texts = [f"mean, {_shots(asked)}", f"{_value(macro(runs[0], tasks, asked))}<br>{_tasks(tasks)}"]
    for run in runs[1:]:
        if shared := common_tasks([runs[0], run], asked):
            change = _change(macro_difference(run, runs[0], shared, asked))
            texts.append(f"{_value(macro(run, shared, asked))}<br>{change}<br>{_tasks(shared)}")
        else:
            texts.append(DASH)
    return texts


def _tasks(names: Sequence[str]) -> str:
    return f'<span class="quiet">{len(names)} task{"" if len(names) == 1 else "s"}</span>'


def _value(estimate: Estimate) -> str:
    value, low, high = (100 * number for number in estimate)
    return f'{value:.1f} <span class="quiet">({low:.1f}{DASH}{high:.1f})</span>'


def _change(estimate: Estimate | None) -> str:
    if estimate is None:
        return f'<span class="quiet">{DASH}</span>'
    value, low, high = (f"{100 * number:+.1f}".replace("-", MINUS) for number in estimate)
    text = f"{value} ({low} to {high})"
    return f"<strong>{text}</strong>" if estimate.low > 0 or estimate.high < 0 else f'<span class="quiet">{text}</span>'


def every_result(evaluation: Evaluation) -> str:
    """All results with what they depend on, closed until it is opened."""
    results = evaluation.results
    head = ["result", "checkpoint", "style", "seed", "acc, %", "95 %", "rows", "shown", "shots from", "cut", "differs"]
    rows = [_result(head, result) for result in results]
    stacked = table(head, rows).replace("<table>", '<table class="stack">')
    return (
        f'<details class="every"><summary>Every result ({count(len(results))}) and what it depends on</summary>\n'
        f"{stacked}\n</details>"
    )


def _result(head: Sequence[str], result: Result) -> str:
    low, high = (100 * bound for bound in result.interval)
    shots, rows = result.shots, result.rows
    variant = f", {rows.variant}" if rows.variant else ""
    name, *cells = [
        f"{escape(title_of(result.task))}, {_shots(escape(shots.asked))}",
        escape(result.model.name),
        escape(result.style),
        DASH if shots.seed is None else str(shots.seed),
        f"{100 * result.accuracy:.1f}",
        f"{low:.1f}{DASH}{high:.1f}",
        f"{count(rows.count)} {escape(rows.split)}{escape(variant)}<br><code>{escape(rows.digest[:8])}</code>",
        f"{shots.mean:.1f} (least {shots.least})" if shots.count else DASH,
        f"{count(shots.pool_rows)} {escape(shots.pool)}" if shots.count else DASH,
        count(result.truncated),
        "<br>".join(map(escape, result.differs)) or "nothing",
    ]
    named = zip(head[1:], cells, strict=True)
    tail = "".join(f'<td class="n" data-name="{title}">{cell}</td>' for title, cell in named)
    return f'<tr><th scope="row">{name}</th>{tail}</tr>'
