"""The page's section on scores: nine tasks at 0, 1 and few shots beside the published figures, and two trends.

The trends are small charts, one per task: scores against the examples in the prompt, and against training tokens.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING

from mtnlg_eval.tasks.published import SHOTS

from .markup import DASH, NARROW, count, decimal, escape, figure, missing_part, short
from .results import score_interval, scores_by_task
from .svg import ACCENT, INK, MUTED, SECOND, canvas, styled, to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtnlg_eval.tasks.published import Model, Shots, Task

    from .run_files import Evaluation, Run, Score

COMMAND = "mtnlg-eval run CHECKPOINT --data ROWS --out DIR/eval"
COLUMNS = ("this run", f"95{NARROW}%", "MT-NLG", "GPT-3", "Gopher", "used", "rows")
OWN_ROWS = ("quickstart", "rows")
MTNLG_PARAMETERS = 529_600_819_200  # paper.md 1
GPT2_NOTE, PRINTED_NOTE = "*", "\N{DAGGER}"
WIDTH, HEIGHT = 220.0, 130.0  # of a trend, in points
LINES = {"0": (MUTED, "-"), "1": (ACCENT, "--"), "few": (ACCENT, "-")}


def section(run: Run) -> str:
    """How to read the scores, the table of scores, and the trends."""
    if run.evaluation is None:
        return missing_part("Nothing has been scored yet", "eval/summary.json", COMMAND)
    numbers = "".join(f'<th class="n" scope="col">{name}</th>' for name in COLUMNS)
    head = (
        f'<thead><tr><th scope="col">task</th><th scope="col">shots</th>{numbers}'
        f'<th class="mark" scope="col">{_legend()}</th></tr></thead>'
    )
    bodies = "\n".join(_task(task, scores) for task, scores in scores_by_task(run.evaluation))
    return (
        f"{_caveat(run, run.evaluation)}\n"
        f'<div class="scroll"><table class="wide">{head}\n{bodies}\n</table></div>\n{_footnotes(run.evaluation)}\n'
        f"{_trends(run, run.evaluation)}"
    )


def _trends(run: Run, evaluation: Evaluation) -> str:
    """Scores against shots, and against training tokens if several checkpoints were scored."""
    tasks = [task for task, scores in scores_by_task(evaluation) if scores]
    if not tasks:
        return ""
    note = "accuracy in percent with its interval; diamond: MT-NLG, dashed line: chance"
    trends = _panels("Score against examples in the prompt", [by_shots(evaluation, task) for task in tasks], note)
    if len(run.history) > 1:
        note = "accuracy in percent with 0 examples (grey), 1 (dashed) and few (solid)"
        pictures = [by_tokens(run.history, task) for task in tasks]
        trends += "\n" + _panels("Score against training tokens", pictures, note)
    return trends


def _panels(caption: str, pictures: Sequence[str], note: str) -> str:
    return figure(caption, f'<div class="panels wider">{"".join(pictures)}</div>', note)


def _caveat(run: Run, evaluation: Evaluation) -> str:
    """Where the rows come from and how small the model is, to be read before any score."""
    path = PurePath(evaluation.rows_from)
    rows = path.relative_to(path.anchor).parts[-3:]
    place = f"<code>{escape('/'.join(rows))}</code>"
    if rows[-2:] == OWN_ROWS:
        origin = (
            f"The rows scored here ({place}) were written for this project, about a dozen per task, to show that the "
            "pipeline runs. They are not the benchmarks' rows, so these scores say nothing about quality."
        )
    elif any(s.documents < task.rows for task, scores in scores_by_task(evaluation) for s in scores.values()):
        origin = f"The rows scored here ({place}) are fewer than the benchmarks' published splits."
    else:
        origin = f"The rows come from {place}."
    others = "The figures of MT-NLG, GPT\N{NON-BREAKING HYPHEN}3 and Gopher are for orientation only."
    return f'<p class="caution">{origin} {_model_size(run, evaluation)} {others}</p>'


def _model_size(run: Run, evaluation: Evaluation) -> str:
    parameters = run.training.parameters if run.training else None
    tokens = f"was trained on {short(evaluation.tokens)} tokens, MT-NLG on 270{NARROW}B"
    if not parameters:
        return f"The model {tokens}."
    ratio = MTNLG_PARAMETERS / parameters
    if ratio < 100:
        return f"The model has {short(parameters)} parameters; it {tokens}."
    two_figures = count(float(f"{ratio:.1e}"))
    return f"The model is tiny: {short(parameters)} parameters; MT-NLG has {two_figures} times as many. It {tokens}."


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


def _task(task: Task, scores: dict[Shots, Score]) -> str:
    metric = ", ".join(dict.fromkeys(score.metric for score in scores.values())) or "not scored"
    name = (
        f'<th scope="rowgroup" rowspan="{len(SHOTS)}"><strong>{escape(task.title)}</strong><br><span class="quiet">'
        f"{escape(metric)}</span></th>"
    )
    rows = "</tr>\n<tr>".join(_cells(task, shots, scores.get(shots)) for shots in SHOTS)
    return f'<tbody class="task">\n<tr>{name}{rows}</tr>\n</tbody>'


def _cells(task: Task, shots: Shots, score: Score | None) -> str:
    label = f"few ({task.few})" if shots == "few" else shots
    models: tuple[Model, ...] = ("MT-NLG", "GPT-3" if "GPT-3" in task.figures else "GPT-2", "Gopher")
    value = bounds = used = rows = DASH
    if score is not None:
        low, high = score_interval(score)
        value, bounds = f"{100 * score.value:.1f}", f"{low:.1f}{DASH}{high:.1f}"
        used, rows = f"{score.shots_used:.1f}".removesuffix(".0"), count(score.documents)
    texts = (value, bounds, *(_published(task, model, shots) for model in models), used, rows)
    classes = ("n own", "n quiet", "n", "n", "n", "n quiet", "n quiet")
    cells = "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(classes, texts, strict=True))
    return f'<td class="shots">{label}</td>{cells}<td class="mark">{_mark(task, shots, score)}</td>'


def _published(task: Task, model: Model, shots: Shots) -> str:
    printed = decimal(task.figures[model].at(shots) if model in task.figures else None, 2)
    if model == "GPT-2":
        return f"{printed}<sup>{GPT2_NOTE}</sup>"
    return f"{printed}<sup>{PRINTED_NOTE}</sup>" if (model, shots) in task.footnotes else printed


def _mark(task: Task, shots: Shots, score: Score | None) -> str:
    """A bar from 0 to 100 % with the score and its interval, MT-NLG's figure and chance."""
    mtnlg = task.figures["MT-NLG"].at(shots)
    marks = ['<path d="M0 7h400" stroke="var(--rule)"/>']
    if task.chance is not None:
        marks.append(f'<path d="M{4 * task.chance:.1f} 1v12" stroke="var(--muted)" stroke-dasharray="2 2"/>')
    if mtnlg is not None:
        marks.append(f'<path d="M{4 * mtnlg:.1f} 1v12" stroke="var(--second)" stroke-width="2"/>')
    if score is not None:
        low, high = score_interval(score)
        marks.append(f'<path d="M{4 * low:.1f} 7H{4 * high:.1f}" stroke="var(--accent)" stroke-width="1.6"/>')
        marks.append(f'<circle cx="{400 * score.value:.1f}" cy="7" r="3.4" fill="var(--accent)"/>')
    return f'<svg viewBox="0 0 400 14" preserveAspectRatio="xMinYMid meet" aria-hidden="true">{"".join(marks)}</svg>'


def _footnotes(evaluation: Evaluation) -> str:
    notes = [
        "Accuracy in percent with Wilson's 95 % interval.",
        "<em>Used</em> is the mean number of examples that fitted into the context;",
        "few is the number of examples that GPT-3 was given, in brackets.",
        "Published figures: Smith et al. 2022, tables 2 to 6.",
        f"{GPT2_NOTE} GPT-2's: on HANS the paper compares with no other model.",
        f"{PRINTED_NOTE} Printed with a footnote in the paper.",
    ]
    notes += [f"Not run: {escape(gap.task)}, {escape(gap.why)}." for gap in evaluation.not_run]
    return f'<p class="quiet"><small>{" ".join(notes)}</small></p>'


@styled()
def by_shots(evaluation: Evaluation, task: Task) -> str:
    """Accuracy with its interval at every number of shots scored, beside MT-NLG's (a diamond) and chance."""
    figure, axes = _panel(task)
    scored = ((_examples(task, shots), score) for shots, score in evaluation.tasks[task.name].items())
    scores = sorted(scored, key=itemgetter(0))
    x = {examples: place for place, examples in enumerate(dict.fromkeys(examples for examples, _ in scores))}
    for examples, score in scores:
        low, high = score_interval(score)
        axes.plot([x[examples]] * 2, [low, high], color=ACCENT, linewidth=1.4)
        axes.plot(x[examples], 100 * score.value, "o", color=ACCENT, markersize=4)
    for shots, mtnlg in zip(SHOTS, task.figures["MT-NLG"], strict=True):
        if mtnlg is not None and _examples(task, shots) in x:
            axes.plot(x[_examples(task, shots)], mtnlg, "D", color=SECOND, markersize=3)
    axes.set_xticks(list(x.values()), [str(examples) for examples in x])
    axes.set_xlim(-0.5, len(x) - 0.5)
    return to_svg(figure, f"by-shots-{task.name}", f"{task.title}: accuracy against the examples in the prompt")


@styled()
def by_tokens(history: Sequence[Evaluation], task: Task) -> str:
    """Accuracy over the training tokens of each scored checkpoint at 0, 1 and few shots."""
    figure, axes = _panel(task)
    for shots, (color, style) in LINES.items():
        scored = [e for e in history if shots in e.tasks.get(task.name, {})]
        values = [100 * e.tasks[task.name][shots].value for e in scored]
        axes.plot([e.tokens for e in scored], values, style, color=color, marker="o", markersize=3, clip_on=False)
    axes.set_xlim(0, max(e.tokens for e in history) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    return to_svg(figure, f"by-tokens-{task.name}", f"{task.title}: accuracy against training tokens")


def _panel(task: Task) -> tuple[Figure, Axes]:
    """A small figure with a y axis from 0 to 100 % and the task's chance as a dashed line."""
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.add_axes((30 / WIDTH, 24 / HEIGHT, 1 - 50 / WIDTH, 1 - 50 / HEIGHT))
    axes.set_title(task.title, loc="left", fontsize=10, color=INK, pad=7)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    axes.locator_params(axis="x", nbins=4)
    if task.chance is not None:
        axes.axhline(task.chance, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return figure, axes


def _examples(task: Task, shots: str) -> int:
    return task.few if shots == "few" else int(shots)
