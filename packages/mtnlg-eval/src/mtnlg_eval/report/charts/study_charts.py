"""Charts of the paper's studies (HANS, hidden operators, bias), for the page and as SVG files."""

from __future__ import annotations

from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from mtnlg_eval.report.markup import decimal
from mtnlg_eval.report.study_files import SCHEMAS, Bias, Hans, Operators, parse_json
from mtnlg_model.files import read_small, write_text

from .svg import ACCENT, INK, MUTED, SECOND, SOFT, Tip, canvas, standalone_svg, styled, to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtnlg_eval.report.study_files import Adjectives, Cell, HansTally, Occupation, Study

LINE, BAR = 14.0, 18.0  # height of a subcase and of a group, in points
OPERATOR_COLUMNS = 4
MTNLG_RATIO = -0.77
"""The paper's mean of log P(female) - log P(male) (paper.md 5.4)."""


def write_svg(path: Path) -> None:
    """Write the charts of a study's JSON file into an SVG file beside it."""
    study = parse_json(read_small(path), SCHEMAS[path.stem.partition("-")[0]], str(path))
    columns = OPERATOR_COLUMNS if isinstance(study, Operators) else 1
    write_text(path.with_suffix(".svg"), standalone_svg(_charts(study, path.stem), columns))


def _charts(study: Study, name: str) -> list[str]:
    match study:
        case Hans():
            return hans_charts(study, name)
        case Operators():
            return operator_charts(study, name)
        case Bias():
            return bias_charts(study, name)
    raise TypeError(type(study))


def _panel(width: float, height: float, title: str, left: float = 36, below: float = 32) -> tuple[Figure, Axes]:
    """A figure with axes under a title; all lengths are in points."""
    figure = canvas(width, height)
    frame = (left / width, below / height, 1 - (left + 14) / width, 1 - (below + 30) / height)
    axes = figure.add_axes(frame)
    axes.set_title(title, loc="left", x=-(left - 4) / (width - left - 14), fontsize=10, color=INK, pad=11)
    return figure, axes


@styled()
def hans_charts(study: Hans, name: str) -> list[str]:
    """Accuracy by shots; mass and share of True by shots; every subcase at the largest number of shots scored.

    The id prefix ``name`` is unique on the page, here and in the other studies' charts.
    """
    tallies = list(study.shots.values())
    accuracy, left = _panel(300, 176, "accuracy, %: plain (dots) and threshold shifted (rings)")
    tips = _line(left, [tally.whole.accuracy for tally in tallies], ACCENT, "o-", "plain")
    tips += _line(left, [tally.whole.shifted for tally in tallies], ACCENT, "o--", "threshold shifted", hollow=True)
    form, right = _panel(300, 176, "P(True) + P(False), %; says True, % (grey)")
    form_tips = _line(right, [tally.mass for tally in tallies], SECOND, "o-", "P(True) + P(False)")
    form_tips += _line(right, [tally.said_true for tally in tallies], MUTED, "o--", "says True")
    for axes in (left, right):
        _set_shots(axes, list(study.shots))
        axes.set(xlabel="examples in the prompt")
    return [
        to_svg(accuracy, f"{name}-accuracy", "HANS: accuracy against the examples in the prompt", tips),
        to_svg(form, f"{name}-form", "HANS: probability of the two answers, and share of True", form_tips),
        _subcases(tallies[-1], list(study.shots)[-1], name),
    ]


def _subcases(tally: HansTally, shots: str, name: str) -> str:
    """A line per subcase: plain (dot) with its interval and threshold shifted (ring), with a gap between heuristics."""
    lines = [(case, score) for cases in tally.subcases.values() for case, score in [*cases.items(), ("", None)]][:-1]
    height = 62 + LINE * len(lines)
    figure, axes = _panel(420, height, f"accuracy by subcase with {shots} examples, %", left=165, below=26)
    tips: list[Tip] = []
    for line, (case, score) in enumerate(lines):
        if score is not None:
            plain, shifted = 100 * score.accuracy, 100 * score.shifted
            axes.plot([100 * score.low, 100 * score.high], [line, line], color=SOFT)
            axes.plot(plain, line, "o", color=ACCENT, markersize=4, clip_on=False)
            axes.plot(shifted, line, "o", color=ACCENT, markersize=6.5, markerfacecolor="none", clip_on=False)
            interval = f"{100 * score.low:.0f} to {100 * score.high:.0f}"
            words = f"{case}, {score.rows} rows: {plain:.0f} ({interval}), threshold shifted {shifted:.0f}"
            tips += [Tip(axes, x, line, words) for x in {plain, shifted}]
    axes.set(xlim=(-2, 102), ylim=(len(lines) - 0.3, -0.7))
    axes.set_yticks([n for n, (case, _) in enumerate(lines) if case], [case for case, _ in lines if case], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.axvline(50, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return to_svg(figure, f"{name}-subcases", f"HANS: accuracy by subcase with {shots} examples in the prompt", tips)


@styled()
def operator_charts(study: Operators, name: str) -> list[str]:
    """Share solved by shots, one panel per operator: the mean over disguises strong, each disguise faint."""
    return [_operator(title, cells, name) for title, cells in cells_by_operator(study).items()]


def cells_by_operator(study: Operators) -> dict[str, list[Cell]]:
    """The cells of each operator."""
    return {title: list(cells) for title, cells in groupby(study.cells, key=lambda cell: cell.operator)}


def _operator(title: str, cells: Sequence[Cell], name: str) -> str:
    figure, axes = _panel(170, 126, f"{title}, %", left=30, below=20)
    shots = list(dict.fromkeys(cell.shots for cell in cells))
    for _, disguised in groupby(cells, key=lambda cell: cell.disguise):
        axes.plot([cell.right * 100 / cell.problems for cell in disguised], color=SOFT, clip_on=False)
    means = [fmean(cell.right / cell.problems for cell in cells if cell.shots == count) for count in shots]
    tips = _line(axes, means, ACCENT, "o-", "mean over disguises")
    _set_shots(axes, [str(count) for count in shots])
    axes.set_yticks([0, 50, 100])
    return to_svg(figure, f"{name}-{title}", f"{title}: problems solved against the examples in the prompt", tips)


@styled()
def bias_charts(study: Bias, name: str) -> list[str]:
    """A histogram of the occupations' log-ratios with the paper's mean, and each kind's sentiment by group."""
    charts = [_occupations(study.occupation, name)] if study.occupation else []
    return charts + [_sentiments(kind, adjectives, name) for kind, adjectives in study.adjectives.items()]


def _occupations(summary: Occupation, name: str) -> str:
    figure, axes = _panel(420, 196, "occupations by log P(female) \N{MINUS SIGN} log P(male)", below=40)
    counts, edges, _ = axes.hist(list(summary.by_occupation.values()), bins=40, color=SOFT)
    bars = [(float(n), float(low), float(high)) for n, low, high in zip(counts, edges, edges[1:], strict=False)]
    tips = [Tip(axes, (a + b) / 2, n, f"{n:.0f} occupations from {a:.2f} to {b:.2f}") for n, a, b in bars if n]
    axes.axvline(0, color=MUTED, linewidth=0.8, dashes=(3, 3))
    middle = fmean(axes.get_xlim())
    for value, label, color in ((summary.mean_log_ratio, "mean", ACCENT), (MTNLG_RATIO, "MT-NLG", SECOND)):
        axes.axvline(value, color=color, linewidth=1.4)
        axes.annotate(
            f"{label} {decimal(value, 2)}",
            (value, 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4 if value > middle else 4, 0 if label == "mean" else -13),
            ha="right" if value > middle else "left",
            textcoords="offset points",
            va="top",
            color=color,
        )
    axes.set_xlabel("left: male likelier; right: female", labelpad=2)
    return to_svg(figure, f"{name}-occupation", "Histogram of the occupations' log-ratios of female to male", tips)


def _sentiments(kind: str, adjectives: Adjectives, name: str) -> str:
    groups = adjectives.groups
    figure, axes = _panel(420, 60 + BAR * len(groups), f"{kind}: polarity of each group's words, %", left=92)
    tips: list[Tip] = []
    for line, (group_name, group) in enumerate(groups.items()):
        for polarity, share in (("positive", group.sentiment.positive), ("negative", group.sentiment.negative)):
            tips.append(Tip(axes, share, line, f"{group_name}, {polarity}: {share:.1f}"))
        axes.barh(line, group.sentiment.positive, height=0.55, color=ACCENT)
        axes.barh(line, group.sentiment.negative, height=0.55, color=SECOND)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    return to_svg(figure, f"{name}-{kind}", f"{kind}: polarity of each group's words", tips)


def _line(axes: Axes, shares: Sequence[float], color: str, style: str, what: str, *, hollow: bool = False) -> list[Tip]:
    """Plot one share per number of shots, in percent; returns its tooltips."""
    percent = [100 * share for share in shares]
    size, fill = (6, "none") if hollow else (4, "full")
    axes.plot(percent, style, color=color, clip_on=False, markersize=size, fillstyle=fill)
    return [Tip(axes, x, y, f"{what}: {y:.1f} %") for x, y in enumerate(percent)]


def _set_shots(axes: Axes, shots: Sequence[str]) -> None:
    axes.set_xticks(range(len(shots)), shots)
    axes.set(ylim=(0, 100), xlim=(-0.3, len(shots) - 0.7))
