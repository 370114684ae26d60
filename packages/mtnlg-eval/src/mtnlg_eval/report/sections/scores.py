"""The page's section on scores: a table of each model's, runs compared, trends, and what every result depends on."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mtnlg_eval.report.blocks import Row, Section, Table, beside, lines, paragraph
from mtnlg_eval.report.charts.trends import trends
from mtnlg_eval.report.markup import DASH, MINUS, NARROW, count, decimal, short
from mtnlg_eval.results.compare import (
    common_tasks,
    difference,
    group_means,
    labels,
    macro,
    macro_difference,
    told_apart,
)
from mtnlg_eval.results.statistics import Z
from mtnlg_eval.table import differences_by_task
from mtnlg_eval.tasks.published import SHOTS, TASKS, TASKS_BY_NAME, title_of

from .answers import linked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_eval.report.run_files import Evaluation, Run
    from mtnlg_eval.results.compare import Cell
    from mtnlg_eval.results.compare import Run as ScoredRun
    from mtnlg_eval.results.result import Result
    from mtnlg_eval.results.statistics import Estimate
    from mtnlg_eval.tasks.published import Model, Shots

MODELS: tuple[Model, ...] = ("MT-NLG", "GPT-3", "GPT-2", "Gopher")
OWN_ROWS = ("quickstart", "rows")
MTNLG_PARAMETERS = 529_600_819_200  # paper.md 1
PRINTED_NOTE = "\N{DAGGER}"
LIKELIHOODS = {"log_likelihood": "log P(right)", "bits_per_byte": "bits/byte"}
FORMS = re.compile("_?(continuation|cloze)(_yaml)?")
"""Of lm-eval's names of a task's cloze form, beside its multiple-choice form."""


def section(run: Run) -> Section | None:
    """How to read the scores, a table of them, runs compared, the trends and every result."""
    if run.evaluation is None:
        return None
    evaluation = run.evaluation
    differs = differences_by_task(
        {
            task: {n: cell.differs for n, cell in evaluation.main.by_shots(task).items()}
            for task in evaluation.main.tasks()
        }
    )
    general = [
        f"{head}: {words}." for head, texts in differs.items() if head not in evaluation.main.names for words in texts
    ]
    return Section(
        "scores",
        "Scores",
        [
            _caveat(evaluation),
            *(paragraph(words, "caution") for words in general),
            _table(evaluation, differs),
            _footnotes(evaluation),
            *_comparison(evaluation),
            *trends(evaluation),
            _every_result(evaluation),
        ],
    )


def _caveat(evaluation: Evaluation) -> Markup:
    """Where the rows come from and how small the model is, to be read before any score."""
    results = [result for result in evaluation.main.results if result.task in TASKS_BY_NAME]
    size = _model_size(evaluation)
    if not results:
        return paragraph(size, "caution")
    path = PurePath(results[0].rows.source)
    rows = path.relative_to(path.anchor).parts[-3:]
    place = Markup("<code>{}</code>").format("/".join(rows))
    counts = {(result.task, result.rows.count) for result in results}
    if rows[-2:] == OWN_ROWS:
        origin = Markup(
            "The rows scored here ({}) were written for this project, about a dozen per task, to show that the "
            "pipeline runs. They are not the benchmarks' rows, so these scores say nothing about quality."
        )
    elif any((task.name, n) in counts for task in TASKS for _, n in counts if n != task.rows):
        origin = Markup("The rows scored here ({}) are not the benchmarks' published splits: see below each task.")
    else:
        origin = Markup("The rows come from {}.")
    others = "The published figures are for orientation only."
    return paragraph(Markup("{} {} {}").format(origin.format(place), size, others), "caution")


def _model_size(evaluation: Evaluation) -> str:
    """Parameters and training tokens of the scored model; of an imported one the tokens are not known."""
    model = evaluation.main.model
    trained = f"; it was trained on {short(model.tokens)} tokens, MT-NLG on 270{NARROW}B" if model.tokens else ""
    ratio = MTNLG_PARAMETERS / max(1, model.parameters)
    if ratio < 100:
        return f"{model.name} has {short(model.parameters)} parameters{trained}."
    two_figures = count(float(f"{ratio:.1e}"))
    return (
        f"{model.name} is tiny: {short(model.parameters)} parameters, MT-NLG has {two_figures} times as many{trained}."
    )


def _order(task: str) -> tuple[int, str, str]:
    """The paper's order, then by name, with the cloze form of a task behind its multiple-choice form."""
    number = next((n for n, each in enumerate(TASKS) if each.name == task), len(TASKS))
    return number, FORMS.sub("", task), task


def _table(evaluation: Evaluation, differs: dict[str, list[str]]) -> Table:
    """Every task at every number of shots of the first run, beside what is published."""
    main, label = evaluation.main, labels(evaluation.runs)[0]
    head = ["task", "shots", label, f"95{NARROW}%", *LIKELIHOODS.values(), *MODELS, "shown", "rows", _legend()]
    rows: list[Row] = []
    for task in sorted(main.tasks(), key=_order):
        cells = main.by_shots(task)
        metric = next(iter(cells.values())).first.metric
        for n, (asked, cell) in enumerate(cells.items()):
            name = Markup('<strong>{}</strong> <span class="quiet">{}</span>').format(title_of(task), metric)
            rows.append(Row([name if not n else "", *_cells(task, asked, cell, evaluation)], "" if n else "first"))
        if notes := [*differs.get(task, []), *_draws(cells)]:
            rows.append(Row([lines(notes)], "notes"))
    for group, by_shots in group_means(main.results).items():
        for asked, mean in by_shots.items():
            low, high = mean["interval_95"]
            texts = [f"{100 * mean['value']:.1f}", f"{100 * low:.1f}{DASH}{100 * high:.1f}"]
            empty = [""] * (len(LIKELIHOODS) + len(MODELS) + 1)
            rows.append(Row([f"mean of {group}", asked, *texts, *empty, count(mean["rows"]), ""], "total"))
    return Table(head, rows, f"Scores of {label}", "wide stack", marked=True)


def _cells(task: str, asked: str, cell: Cell, evaluation: Evaluation) -> list[Any]:
    published = TASKS_BY_NAME.get(task)
    shots = f"few ({cell.first.shots.count})" if asked == "few" else asked
    text, interval = _number(cell.estimate, cell)
    likelihoods = [
        f"{metric.value:.3g} ± {Z * metric.stderr:.2g}"
        if (metric := cell.first.metrics.get(name)) and metric.stderr
        else ""
        for name in LIKELIHOODS
    ]
    figures = [_published(task, model, asked) if published else "" for model in MODELS]
    shown = f"{cell.shown:.1f}".removesuffix(".0") if cell.shown < cell.first.shots.count else ""
    return [
        shots,
        linked(text, evaluation, [cell], "wrong"),
        interval,
        *likelihoods,
        *figures,
        shown,
        count(cell.first.rows.count),
        _mark(task, asked, cell),
    ]


def _number(estimate: Estimate, cell: Cell) -> tuple[str, str]:
    """A score and its interval as text, in percent where it is a share."""
    if cell.first.is_share:
        value, low, high = (100 * number for number in estimate)
        return f"{value:.1f}", f"{low:.1f}{DASH}{high:.1f}"
    value, low, high = estimate
    return f"{value:.4g}", f"{low:.4g}{DASH}{high:.4g}" if low < high else ""


def _draws(cells: dict[str, Cell]) -> list[str]:
    """What several draws of shots tell, and metrics beside the score, for every number of shots."""
    notes = []
    for asked, cell in cells.items():
        if cell.between_draws is not None:
            seeds = ", ".join(str(result.shots.seed) for result in cell.results)
            factor = 100 if cell.first.is_share else 1
            notes.append(f"{asked}-shot: mean of seeds {seeds}, standard error {factor * cell.between_draws:.2g}")
        others = {
            name: metric
            for name, metric in cell.first.metrics.items()
            if name not in LIKELIHOODS and name != cell.first.metric
        }
        texts = [
            f"{name} {m.value:.4g}" + (f" ± {Z * m.stderr:.2g}" if m.stderr is not None else "")
            for name, m in others.items()
        ]
        notes += [f"{asked}-shot: {', '.join(texts)}"] if texts else []
    return notes


def _published(task: str, model: Model, asked: str) -> str | Markup:
    found = TASKS_BY_NAME[task]
    shots: Shots | None = next((each for each in SHOTS if each == asked), None)
    if shots is None or model not in found.figures or (value := found.figures[model].at(shots)) is None:
        return ""
    note = Markup("<sup>{}</sup>").format(PRINTED_NOTE) if (model, shots) in found.footnotes else ""
    return Markup("{}{}").format(decimal(value, 2), note)


def _legend() -> Markup:
    dot = '<circle cx="5" cy="6" r="3" fill="var(--accent)"/>'
    parts = [
        ("score", dot),
        ("MT-NLG", '<path d="M5 1v10" stroke="var(--second)" stroke-width="2"/>'),
        ("chance", '<path d="M5 1v10" stroke="var(--muted)" stroke-dasharray="2 2"/>'),
    ]
    svg = '<svg viewBox="0 0 10 12" style="width:10px;height:12px;display:inline">{}</svg> {}'
    return Markup("\N{EM SPACE}").join(Markup(svg).format(Markup(mark), name) for name, mark in parts)


def _mark(task: str, asked: str, cell: Cell) -> Markup | str:
    """A bar from 0 to 100 % with the score and its interval, MT-NLG's figure and chance."""
    if not cell.first.is_share:
        return ""
    published = TASKS_BY_NAME.get(task)
    value, low, high = (400 * number for number in cell.estimate)
    marks = ['<path d="M0 7h400" stroke="var(--rule)"/><path d="M0 0h400v14h-400z" fill="transparent"/>']
    told = [f"score {value / 4:.1f} ({low / 4:.1f}{DASH}{high / 4:.1f})"]
    if published and published.chance is not None:
        told.append(f"chance {published.chance:.0f}")
        marks.append(f'<path d="M{4 * published.chance:.1f} 1v12" stroke="var(--muted)" stroke-dasharray="2 2"/>')
    if (
        published
        and (mtnlg := next((published.figures["MT-NLG"].at(n) for n in SHOTS if n == asked), None)) is not None
    ):
        told.append(f"MT-NLG {mtnlg:.1f}")
        marks.append(f'<path d="M{4 * mtnlg:.1f} 1v12" stroke="var(--second)" stroke-width="2"/>')
    marks.append(f'<path d="M{low:.1f} 7H{high:.1f}" stroke="var(--accent)" stroke-width="1.6"/>')
    marks.append(f'<circle cx="{value:.1f}" cy="7" r="3.4" fill="var(--accent)"/>')
    opening = '<svg viewBox="0 0 400 14" preserveAspectRatio="xMinYMid meet" aria-hidden="true">'
    return Markup(f"{opening}<title>{', '.join(told)}</title>{''.join(marks)}</svg>")


def _footnotes(evaluation: Evaluation) -> Markup:
    notes = [
        "Shares in percent with Wilson's 95 % interval, rows of one article, pair or template counting as dependent.",
        "log P(right): mean log-likelihood of the right answer in nats.",
        "Shown: the mean number of examples that fitted into the context, where that is not the number asked for.",
        "Below a task: what differs from the paper's setting.",
        "Published figures: Smith et al. 2022, tables 2 to 6.",
        f"{PRINTED_NOTE} Printed with a footnote in the paper.",
    ]
    for asked in SHOTS:
        if len(tasks := common_tasks([evaluation.main], asked)) > 1:
            value, low, high = (100 * number for number in macro(evaluation.main, tasks, asked))
            notes.append(
                f"Mean of {len(tasks)} of the paper's tasks at {asked} shots: {value:.1f} ({low:.1f}{DASH}{high:.1f})."
            )
    gaps = [(gap.task, PurePath(gap.checkpoint).name, gap.why) for gap in evaluation.not_run]
    notes += [f"Not run: {task} of {checkpoint}, {why}." for task, checkpoint, why in gaps]
    return Markup('<p class="quiet"><small>{}</small></p>').format(" ".join(notes))


def _comparison(evaluation: Evaluation) -> list[Any]:
    """A row per task and number of shots, a column per run; nothing for a single run."""
    runs, base = evaluation.runs, evaluation.main
    if len(runs) < 2:
        return []
    names = [
        lines([label, f"{short(run.model.tokens)} tokens"]) if run.model.tokens else label
        for label, run in zip(labels(runs), runs, strict=True)
    ]
    keys = [key for key in base.cells if any(key in run.cells for run in runs[1:])]
    keys.sort(key=lambda key: (_order(key[0]), base.cells[key].first.shots.count, key[1]))
    pairs = {
        (n, key): (run.cells[key], base.cells[key])
        for n, run in enumerate(runs)
        if n
        for key in keys
        if key in run.cells
    }
    apart = told_apart(pairs)

    def cell(n: int, key: tuple[str, str]) -> Any:  # noqa: ANN401
        if (found := runs[n].cells.get(key)) is None:
            return DASH
        if not n:
            return _value(found.estimate, found)
        change = difference(found, base.cells[key])
        text = _change(change, apart.get((n, key), False), found.first.is_share)
        link = linked(text, evaluation, [base.cells[key], found], "differ") if change else text
        return lines([_value(found.estimate, found), link])

    rows = [
        Row([f"{title_of(task)}, {_shots(asked)}", *(cell(n, (task, asked)) for n in range(len(runs)))])
        for task, asked in keys
    ]
    rows += [
        Row(_averages(runs, asked), "total")
        for asked in SHOTS
        if common_tasks(runs[:1], asked) and any(key[1] == asked for key in keys)
    ]
    note = (
        "The score with its 95 % interval; below it, for all runs but the first, the difference to the first with its "
        "interval, row by row over the same rows (Bonett and Price 2012, by groups of rows); bold where Holm's "
        f"procedure at 5 % over this table tells it from chance, {DASH} where the rows are not the same."
    )
    table = Table(["task", *names], rows, f"Differences to {labels(runs)[0]}")
    return [
        Markup("<h3>Runs compared</h3>"),
        beside("compared", table),
        Markup('<p class="quiet"><small>{}</small></p>').format(note),
    ]


def _shots(asked: str) -> str:
    return "few shots" if asked == "few" else f"{asked} shot{'' if asked == '1' else 's'}"


def _averages(runs: Sequence[ScoredRun], asked: str) -> list[Any]:
    """The mean over all tasks of the first run; for the others over the tasks that they share with it."""
    tasks = common_tasks(runs[:1], asked)
    cell = runs[0].cells[tasks[0], asked]
    texts: list[Any] = [f"mean, {_shots(asked)}", lines([_value(macro(runs[0], tasks, asked), cell), _tasks(tasks)])]
    for run in runs[1:]:
        if shared := common_tasks([runs[0], run], asked):
            change = _change(macro_difference(run, runs[0], shared, asked), False, True)
            texts.append(lines([_value(macro(run, shared, asked), cell), change, _tasks(shared)]))
        else:
            texts.append(DASH)
    return texts


def _tasks(names: Sequence[str]) -> Markup:
    return Markup('<span class="quiet">{} task{}</span>').format(len(names), "" if len(names) == 1 else "s")


def _value(estimate: Estimate, cell: Cell) -> Markup:
    value, interval = _number(estimate, cell)
    return Markup('{} <span class="quiet">({})</span>').format(value, interval)


def _change(estimate: Estimate | None, apart: bool, share: bool) -> Markup:
    if estimate is None:
        return Markup('<span class="quiet">{}</span>').format(DASH)
    factor, form = (100, "+.1f") if share else (1, "+.3g")
    value, low, high = (f"{factor * number:{form}}".replace("-", MINUS) for number in estimate)
    kind = "<strong>{} ({} to {})</strong>" if apart else '<span class="quiet">{} ({} to {})</span>'
    return Markup(kind).format(value, low, high)


def _every_result(evaluation: Evaluation) -> Markup:
    """All results with what they depend on, closed until it is opened."""
    head = ["result", "model", "style", "seed", "score", "95 %", "rows", "shown", "shots from", "cut", "differs"]
    table = Table(head, [Row(_result(result)) for result in evaluation.results], kind="stack")
    summary = f"Every result ({count(len(evaluation.results))}) and what it depends on"
    return Markup('<details class="every"><summary>{}</summary>\n{}\n</details>').format(summary, table)


def _result(result: Result) -> list[Any]:
    shots, rows = result.shots, result.rows
    factor, form = (100, ".1f") if result.is_share else (1, ".4g")
    value, low, high = (f"{factor * number:{form}}" for number in result.estimate)
    variant = f", {rows.variant}" if rows.variant else ""
    return [
        f"{title_of(result.task)}, {_shots(shots.asked)}",
        f"{result.model.name} {result.model.digest[:8]}",
        result.style,
        DASH if shots.seed is None else str(shots.seed),
        f"{result.metric} {value}",
        f"{low}{DASH}{high}",
        lines([f"{count(rows.count)} {rows.split}{variant}", Markup("<code>{}</code>").format(rows.digest[:8])]),
        f"{shots.mean:.1f} (least {shots.least})" if shots.count else DASH,
        f"{count(shots.pool_rows)} {shots.pool}" if shots.count else DASH,
        count(result.truncated) if result.truncated else "",
        lines(result.differs) or "nothing",
    ]
