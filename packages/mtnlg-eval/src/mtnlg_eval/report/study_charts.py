"""The pictures of the paper's own studies: HANS, hidden operators, bias.

Each study is a few small pictures, which the page lays out as it has room and which `draw` puts together in a file.
"""

from __future__ import annotations

from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from mtnlg_model.files import write_text

from .markup import decimal
from .study_files import SCHEMAS, Bias, Hans, Operators, parse
from .svg import ACCENT, INK, MUTED, SECOND, SOFT, canvas, inline, standing_alone, styled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .study_files import Adjectives, AtShots, Cell, Occupation, Study

LINE, BAR = 14.0, 18.0
PANELS_ACROSS = 4
MTNLG_RATIO = -0.77
"""The paper's mean of log P(female) - log P(male) (paper.md 5.4)."""


def draw(study: Path) -> None:
    """Draw the study that this JSON file holds into an SVG file beside it."""
    read = parse(study.read_bytes(), SCHEMAS[study.stem], str(study))
    across = PANELS_ACROSS if isinstance(read, Operators) else 1
    write_text(study.with_suffix(".svg"), standing_alone(pictures(read, study.stem), across))


def pictures(study: Study, name: str) -> list[str]:
    """The pictures of any study as ``<svg>`` elements; ``name`` is no other study's on the page."""
    match study:
        case Hans():
            return hans(study, name)
        case Operators():
            return operators(study, name)
        case Bias():
            return bias(study, name)
    raise TypeError(type(study))


def _panel(width: float, height: float, title: str, left: float = 36, below: float = 32) -> tuple[Figure, Axes]:
    """A figure of this many points with one pair of axes under a title."""
    figure = canvas(width, height)
    frame = (left / width, below / height, 1 - (left + 14) / width, 1 - (below + 30) / height)
    axes = figure.add_axes(frame)
    axes.set_title(title, loc="left", x=-(left - 4) / (width - left - 14), fontsize=10, color=INK, pad=11)
    return figure, axes


@styled()
def hans(study: Hans, name: str) -> list[str]:
    """Accuracy against shots; mass and bias against shots; every subcase at the most shots that were scored."""
    counts = study.shots
    whole = [at.whole for at in counts.values()]
    accuracy, axes = _panel(300, 176, "right, %: plain (dots) and threshold shifted (rings)")
    _line(axes, [part.accuracy for part in whole], ACCENT, "o-")
    _line(axes, [part.shifted for part in whole], ACCENT, "o--", hollow=True)
    form, beside = _panel(300, 176, "P(True) + P(False), %; says True, % (grey)")
    _line(beside, [at.mass for at in counts.values()], SECOND, "o-")
    _line(beside, [at.said_true for at in counts.values()], MUTED, "o--")
    for each in (axes, beside):
        _shots(each, list(counts))
        each.set(xlabel="examples in the prompt")
    asked = list(counts)[-1]
    return [
        inline(accuracy, f"{name}-accuracy", "HANS: accuracy against the examples in the prompt"),
        inline(form, f"{name}-form", "HANS: probability of the two answers, and how often True is said"),
        _subcases(counts[asked], asked, name),
    ]


def _subcases(at: AtShots, asked: str, name: str) -> str:
    """A line a subcase: plain (dot) and with the threshold shifted (ring); heuristics stand apart."""
    lines = [(case, part) for parts in at.subcases.values() for case, part in [*parts.items(), ("", None)]][:-1]
    height = 62 + LINE * len(lines)
    figure, axes = _panel(420, height, f"right by subcase with {asked} examples, %", left=165, below=26)
    for line, (_, part) in enumerate(lines):
        if part is not None:
            plain, moved = 100 * part.accuracy, 100 * part.shifted
            axes.plot([plain, moved], [line, line], color=SOFT)
            axes.plot(plain, line, "o", color=ACCENT, markersize=4, clip_on=False)
            axes.plot(moved, line, "o", color=ACCENT, markersize=6.5, markerfacecolor="none", clip_on=False)
    axes.set(xlim=(-2, 102), ylim=(len(lines) - 0.3, -0.7))
    axes.set_yticks([n for n, (case, _) in enumerate(lines) if case], [case for case, _ in lines if case], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.axvline(50, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return inline(figure, f"{name}-subcases", f"HANS: accuracy by subcase with {asked} examples in the prompt")


@styled()
def operators(study: Operators, name: str) -> list[str]:
    """Share solved against examples: a panel an operator, the mean over disguises strong, each disguise faint."""
    return [_operator(title, cells, name) for title, cells in by_operator(study).items()]


def by_operator(study: Operators) -> dict[str, list[Cell]]:
    """The cells of each operator."""
    return {title: list(cells) for title, cells in groupby(study.cells, key=lambda cell: cell.operator)}


def _operator(title: str, cells: Sequence[Cell], name: str) -> str:
    figure, axes = _panel(170, 126, f"{title}, %", left=30, below=20)
    shots = list(dict.fromkeys(cell.shots for cell in cells))
    for _, disguised in groupby(cells, key=lambda cell: cell.disguise):
        axes.plot([cell.right * 100 / cell.problems for cell in disguised], color=SOFT, clip_on=False)
    means = [fmean(cell.right / cell.problems for cell in cells if cell.shots == count) for count in shots]
    _line(axes, means, ACCENT, "o-")
    _shots(axes, [str(count) for count in shots])
    axes.set_yticks([0, 50, 100])
    return inline(figure, f"{name}-{title}", f"{title}: problems solved against the examples in the prompt")


@styled()
def bias(study: Bias, name: str) -> list[str]:
    """Log-ratios of occupations beside the paper's mean; how pleasant the words beside each group are, by kind."""
    told = [_occupations(study.occupation, name)] if study.occupation else []
    return told + [_sentiments(kind, adjectives, name) for kind, adjectives in study.adjectives.items()]


def _occupations(told: Occupation, name: str) -> str:
    figure, axes = _panel(420, 196, "occupations by log P(female) \N{MINUS SIGN} log P(male)", below=40)
    axes.hist(list(told.by_occupation.values()), bins=40, color=SOFT)
    axes.axvline(0, color=MUTED, linewidth=0.8, dashes=(3, 3))
    middle = fmean(axes.get_xlim())
    for value, label, color in ((told.mean_log_ratio, "mean", ACCENT), (MTNLG_RATIO, "MT-NLG", SECOND)):
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
    return inline(figure, f"{name}-occupation", "How many occupations have which ratio of female to male")


def _sentiments(kind: str, told: Adjectives, name: str) -> str:
    figure, axes = _panel(420, 60 + BAR * len(told.groups), f"{kind}: polarity of the words beside a group, %", left=92)
    for line, group in enumerate(told.groups.values()):
        axes.barh(line, group.sentiment.positive, height=0.55, color=ACCENT)
        axes.barh(line, group.sentiment.negative, height=0.55, color=SECOND)
    axes.set_yticks(range(len(told.groups)), list(told.groups))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(told.groups) - 0.5, -0.5)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    return inline(figure, f"{name}-{kind}", f"{kind}: how pleasant the words beside each group are")


def _line(axes: Axes, shares: Sequence[float], color: str, style: str, *, hollow: bool = False) -> None:
    """Shares in percent, one a number of shots."""
    percent = [100 * share for share in shares]
    size, fill = (6, "none") if hollow else (4, "full")
    axes.plot(percent, style, color=color, clip_on=False, markersize=size, fillstyle=fill)


def _shots(axes: Axes, counts: Sequence[str]) -> None:
    axes.set_xticks(range(len(counts)), counts)
    axes.set(ylim=(0, 100), xlim=(-0.3, len(counts) - 0.7))
