"""The page's part on scores: nine tasks at 0, 1 and few shots beside the published figures.

How scores move with the examples in the prompt and with the tokens of training: a small picture a task.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from mtnlg_eval.tasks.published import SHOTS

from .markup import DASH, absent, count, decimal, figure, short, text
from .results import interval, scored
from .svg import ACCENT, INK, MUTED, SECOND, canvas, inline, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtnlg_eval.tasks.published import Model, Shots, Task

    from .run_files import Evaluation, Run, Score


COMMAND = "mtnlg-eval run CHECKPOINT --data ROWS --out DIR/eval"
COLUMNS = ("this run", "95\N{NARROW NO-BREAK SPACE}%", "MT-NLG", "GPT-3", "Gopher", "used", "rows")
OWN_ROWS = ("quickstart", "rows")
MTNLG_PARAMETERS = 529_600_819_200  # paper.md 1
MTNLG_TOKENS = 270e9
NOTES = "*\N{DAGGER}\N{DOUBLE DAGGER}"


def section(run: Run) -> str:
    """What may be read out of the table, then the table."""
    if run.evaluation is None:
        return absent("Nothing has been scored yet", "eval/summary.json", COMMAND)
    numbers = "".join(f'<th class="n" scope="col">{name}</th>' for name in COLUMNS)
    head = (
        f'<thead><tr><th scope="col">task</th><th scope="col">shots</th>{numbers}'
        f'<th class="mark" scope="col">{_legend()}</th></tr></thead>'
    )
    bodies = "\n".join(_task(task, scores) for task, scores in scored(run.evaluation))
    return (
        f"{_caution(run, run.evaluation)}\n"
        f'<div class="scroll"><table class="wide">{head}\n{bodies}\n</table></div>\n{_footnotes(run.evaluation)}\n'
        f"{_trends(run, run.evaluation)}"
    )


def _trends(run: Run, evaluation: Evaluation) -> str:
    """Scores against shots, and against tokens where several checkpoints were scored."""
    tasks = [task for task, scores in scored(evaluation) if scores]
    if not tasks:
        return ""
    note = "accuracy in percent with its interval; diamonds MT-NLG, broken line chance"
    drawn = _panels("Score against examples in the prompt", [by_shots(evaluation, task) for task in tasks], note)
    if len(run.history) > 1:
        note = "accuracy in percent at no example, at one (broken line) and at few (strong)"
        drawn += "\n" + _panels("Score against tokens", [by_tokens(run.history, task) for task in tasks], note)
    return drawn


def _panels(caption: str, pictures: Sequence[str], note: str) -> str:
    return figure(caption, f'<div class="panels wider">{"".join(pictures)}</div>', note)


def _caution(run: Run, evaluation: Evaluation) -> str:
    """Whose rows these are and how small the model is: said before any figure is read."""
    path = PurePath(evaluation.rows_from)
    rows = path.relative_to(path.anchor).parts[-3:]
    place = f"<code>{text('/'.join(rows))}</code>"
    if rows[-2:] == OWN_ROWS:
        whose = (
            f"The rows scored here ({place}) were written for this project, a dozen or so a task, to show that the "
            "machinery runs; they are not the benchmarks' rows, and these scores mean nothing more."
        )
    elif any(s.documents < task.rows for task, scores in scored(evaluation) for s in scores.values()):
        whose = f"The rows scored here ({place}) are fewer than the benchmarks' published splits."
    else:
        whose = f"The rows come from {place}."
    beside = "MT-NLG, GPT\N{NON-BREAKING HYPHEN}3 and Gopher stand beside them for orientation only."
    return f'<p class="caution">{whose} {_size(run, evaluation)} {beside}</p>'


def _size(run: Run, evaluation: Evaluation) -> str:
    parameters = run.training.parameters if run.training else None
    read = f"it has read {short(evaluation.tokens)} tokens, MT-NLG 270\N{NARROW NO-BREAK SPACE}B"
    if not parameters:
        return f"As for the model, {read}."
    times = MTNLG_PARAMETERS / parameters
    tiny = f"The model is tiny: {short(parameters)} parameters, where MT-NLG has {_rounded(times)} times as many"
    return f"{tiny if times >= 100 else f'The model has {short(parameters)} parameters'}; {read}."


def _rounded(times: float) -> str:
    """A ratio in two figures: nobody needs more of it."""
    return count(float(f"{times:.1e}"))


def _legend() -> str:
    dot = '<circle cx="5" cy="6" r="3" fill="var(--accent)"/>'
    parts = [
        ("this run", dot),
        ("MT-NLG", '<path d="M5 1v10" stroke="var(--second)" stroke-width="2"/>'),
        ("chance", '<path d="M5 1v10" stroke="var(--muted)" stroke-dasharray="2 2"/>'),
    ]
    drawn = (
        f'<svg viewBox="0 0 10 12" style="width:10px;height:12px;display:inline">{mark}</svg> {name}'
        for name, mark in parts
    )
    return "\N{EM SPACE}".join(drawn)


def _task(task: Task, scores: dict[Shots, Score]) -> str:
    rows: list[str] = []
    for shots in SHOTS:
        name = (
            f'<th scope="rowgroup" rowspan="{len(SHOTS)}"><strong>{text(task.title)}</strong><br><span class="quiet">'
            f"{text(_metric(scores))}</span></th>"
        )
        rows.append(f"<tr>{name if shots == SHOTS[0] else ''}{_cells(task, shots, scores.get(shots))}</tr>")
    body = "\n".join(rows)
    return f'<tbody class="task">\n{body}\n</tbody>'


def _metric(scores: dict[Shots, Score]) -> str:
    return ", ".join(dict.fromkeys(score.metric for score in scores.values())) or "not scored"


def _cells(task: Task, shots: Shots, score: Score | None) -> str:
    asked = f"few ({task.few})" if shots == "few" else shots
    others: tuple[Model, ...] = ("MT-NLG", "GPT-3" if "GPT-3" in task.figures else "GPT-2", "Gopher")
    theirs = [_published(task, model, shots) for model in others]
    if score is None:
        own, basis = [DASH, DASH], [DASH, DASH]
    else:
        used = f"{score.shots_used:.1f}".removesuffix(".0")
        low, high = interval(score)
        own = [f"{100 * score.value:.1f}", f"{low:.1f}{DASH}{high:.1f}"]
        basis = [used, count(score.documents)]
    kinds = ("n own", "n quiet", "n", "n", "n", "n quiet", "n quiet")
    cells = "".join(
        f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, (*own, *theirs, *basis), strict=True)
    )
    return f'<td class="shots">{asked}</td>{cells}<td class="mark">{_mark(task, shots, score)}</td>'


def _published(task: Task, model: Model, shots: Shots) -> str:
    printed = decimal(task.figures[model].at(shots) if model in task.figures else None, 2)
    if model == "GPT-2":
        return f"{printed}<sup>{NOTES[0]}</sup>"
    return f"{printed}<sup>{NOTES[1]}</sup>" if (model, shots) in task.footnotes else printed


def _mark(task: Task, shots: Shots, score: Score | None) -> str:
    """The row as a picture on a scale from 0 to 100 %: interval and score, MT-NLG's figure, chance."""
    theirs = task.figures["MT-NLG"].at(shots)
    drawn = ['<path d="M0 7h400" stroke="var(--rule)"/>']
    if task.chance is not None:
        drawn.append(f'<path d="M{4 * task.chance:.1f} 1v12" stroke="var(--muted)" stroke-dasharray="2 2"/>')
    if theirs is not None:
        drawn.append(f'<path d="M{4 * theirs:.1f} 1v12" stroke="var(--second)" stroke-width="2"/>')
    if score is not None:
        low, high = interval(score)
        drawn.append(f'<path d="M{4 * low:.1f} 7H{4 * high:.1f}" stroke="var(--accent)" stroke-width="1.6"/>')
        drawn.append(f'<circle cx="{400 * score.value:.1f}" cy="7" r="3.4" fill="var(--accent)"/>')
    return f'<svg viewBox="0 0 400 14" preserveAspectRatio="xMinYMid meet" aria-hidden="true">{"".join(drawn)}</svg>'


def _footnotes(evaluation: Evaluation) -> str:
    told = [
        "Accuracy in percent; the interval is Wilson's, 95 %.",
        "<em>Used</em> is the mean number of examples that fitted into the context;",
        "few asks for as many as GPT-3 was given, the number in brackets.",
        "Published figures: Smith et al. 2022, tables 2 to 6.",
        f"{NOTES[0]} GPT-2's: the paper compares HANS with no other. {NOTES[1]} Printed with a footnote in the paper.",
    ]
    told += [f"Not run: {text(gap.task)}, {text(gap.why)}." for gap in evaluation.not_run]
    return f'<p class="quiet"><small>{" ".join(told)}</small></p>'


WIDTH, HEIGHT = 220.0, 130.0
LINES = {"0": (MUTED, "-"), "1": (ACCENT, "--"), "few": (ACCENT, "-")}


@styled()
def by_shots(evaluation: Evaluation, task: Task) -> str:
    """Accuracy with its interval at every number of shots that was scored, beside MT-NLG's (a diamond) and chance."""
    figure, axes = _panel(task)
    scores = sorted(((_count(task, asked), score) for asked, score in evaluation.tasks[task.name].items()))
    places = {shown: place for place, shown in enumerate(dict.fromkeys(shown for shown, _ in scores))}
    for shown, score in scores:
        low, high = interval(score)
        axes.plot([places[shown]] * 2, [low, high], color=ACCENT, linewidth=1.4)
        axes.plot(places[shown], 100 * score.value, "o", color=ACCENT, markersize=4)
    for shots, theirs in zip(SHOTS, task.figures["MT-NLG"], strict=True):
        if theirs is not None and _count(task, shots) in places:
            axes.plot(places[_count(task, shots)], theirs, "D", color=SECOND, markersize=3)
    axes.set_xticks(list(places.values()), [str(count) for count in places])
    axes.set_xlim(-0.5, len(places) - 0.5)
    return inline(figure, f"by-shots-{task.name}", f"{task.title}: accuracy against the examples in the prompt")


@styled()
def by_tokens(history: Sequence[Evaluation], task: Task) -> str:
    """Accuracy over the tokens that each scored checkpoint had read: no shots, one (broken), few (strong)."""
    figure, axes = _panel(task)
    for shots, (color, style) in LINES.items():
        points = [(e.tokens, e.tasks[task.name][shots]) for e in history if shots in e.tasks.get(task.name, {})]
        _line(axes, points, color, style)
    axes.set_xlim(0, max(e.tokens for e in history) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value else "0")
    return inline(figure, f"by-tokens-{task.name}", f"{task.title}: accuracy against the tokens that training had read")


def _line(axes: Axes, points: Sequence[tuple[int, Score]], color: str, style: str) -> None:
    tokens, values = [tokens for tokens, _ in points], [100 * score.value for _, score in points]
    axes.plot(tokens, values, style, color=color, marker="o", markersize=3, clip_on=False)


def _panel(task: Task) -> tuple[Figure, Axes]:
    """A small figure with one pair of axes, from 0 to 100 %, the task's chance as a line."""
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.add_axes((30 / WIDTH, 24 / HEIGHT, 1 - 50 / WIDTH, 1 - 50 / HEIGHT))
    axes.set_title(task.title, loc="left", fontsize=10, color=INK, pad=7)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    axes.locator_params(axis="x", nbins=4)
    if task.chance is not None:
        axes.axhline(task.chance, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return figure, axes


def _count(task: Task, asked: str) -> int:
    return task.few if asked == "few" else int(asked)
