"""A picture of each of the paper's own studies, as an SVG file that stands alone: HANS, hidden operators, bias."""

from __future__ import annotations

from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .drawing import ACCENT, INK, MUTED, SECOND, SOFT, canvas, inline, standing_alone, styled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 13.0
MTNLG_RATIO = -0.77
"""The paper's mean of log P(female) - log P(male) (paper.md 5.4)."""


def _panel(figure: Figure, place: tuple[float, float, float, float], title: str) -> Axes:
    """A pair of axes at ``place``: left, top, width, height in points from the top left corner."""
    left, top, width, height = place
    w, h = (72 * inches for inches in figure.get_size_inches())
    axes = figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=5)
    return axes


@styled()
def hans(told: Mapping[str, Any]) -> str:
    """Accuracy, mass and bias against shots; below, every subcase at the most shots: plain (dot) and shifted (ring)."""
    counts = told["shots"]
    places = range(len(counts))
    subcases = [
        (name, part) for parts in list(counts.values())[-1]["subcases"].values() for name, part in parts.items()
    ]
    figure = canvas(560, 220 + ROW * len(subcases))
    left = _panel(figure, (36, 26, 210, 120), "accuracy, % (ring: threshold shifted)")
    right = _panel(figure, (310, 26, 210, 120), "P(True) + P(False); said True (broken), %")
    wholes = [at["whole"] for at in counts.values()]
    left.plot(places, [100 * part["accuracy"] for part in wholes], "o-", color=ACCENT, markersize=4)
    left.plot(
        places, [100 * part["shifted"] for part in wholes], "o--", color=ACCENT, markersize=5, markerfacecolor="none"
    )
    right.plot(places, [100 * at["mass"] for at in counts.values()], "o-", color=SECOND, markersize=4)
    right.plot(places, [100 * at["said_true"] for at in counts.values()], "o--", color=MUTED, markersize=4)
    for axes in (left, right):
        axes.set_xticks(list(places), list(counts))
        axes.set(ylim=(0, 100), xlabel="examples in the prompt")
    below = _panel(figure, (170, 205, 350, ROW * len(subcases)), f"by subcase, {list(counts)[-1]} examples, %")
    for line, (_, part) in enumerate(subcases):
        plain, moved = 100 * part["accuracy"], 100 * part["shifted"]
        below.plot([plain, moved], [line, line], color=SOFT)
        below.plot(plain, line, "o", color=ACCENT, markersize=4, clip_on=False)
        below.plot(moved, line, "o", color=ACCENT, markersize=6, markerfacecolor="none", clip_on=False)
    below.set(xlim=(0, 100), ylim=(len(subcases) - 0.5, -0.5))
    below.set_yticks(range(len(subcases)), [name for name, _ in subcases], fontsize=8)
    below.axvline(50, color=MUTED, linewidth=0.8, dashes=(3, 3))
    return standing_alone(inline(figure, "hans", "HANS by number of examples and by subcase"))


@styled()
def operators(cells: Sequence[Mapping[str, Any]]) -> str:
    """Share solved against examples: a panel an operator, its mean strong, each disguise faint."""
    groups = [(name, list(some)) for name, some in groupby(cells, key=lambda cell: cell["operator"])]
    figure = canvas(640, 30 + 135 * -(-len(groups) // 4))
    for number, (name, some) in enumerate(groups):
        row, column = divmod(number, 4)
        axes = _panel(figure, (34 + 155 * column, 24 + 135 * row, 110, 82), name)
        shots = list(dict.fromkeys(cell["shots"] for cell in some))
        places = range(len(shots))
        for _, line in groupby(some, key=lambda cell: cell["disguise"]):
            axes.plot(places, [100 * cell["accuracy"] for cell in line], color=SOFT)
        means = [100 * fmean(cell["accuracy"] for cell in some if cell["shots"] == count) for count in shots]
        axes.plot(places, means, "o-", color=ACCENT, markersize=3.5, clip_on=False)
        axes.set_xticks(list(places), [str(count) for count in shots])
        axes.set_ylim(0, 100)
    return standing_alone(inline(figure, "operators", "Hidden operators solved, %, against examples in the prompt"))


@styled()
def bias(told: Mapping[str, Any]) -> str:
    """Log-ratios of occupations beside the paper's mean; how pleasant the words beside each group are."""
    groups = [
        (name, group["sentiment"])
        for kind in told.values()
        if isinstance(kind, dict) and "shared" in kind
        for name, group in kind.items()
        if name != "shared"
    ]
    figure = canvas(560, 226 + 18 * len(groups))
    if occupation := told.get("occupation"):
        axes = _panel(figure, (36, 26, 490, 120), "occupations by log P(female) - log P(male); broken: MT-NLG's mean")
        axes.hist(list(occupation["by_occupation"].values()), bins=40, color=SOFT)
        axes.axvline(occupation["mean_log_ratio"], color=ACCENT, linewidth=1.6)
        axes.axvline(MTNLG_RATIO, color=SECOND, linewidth=1.2, dashes=(3, 3))
    if groups:
        axes = _panel(figure, (110, 196, 416, 18 * len(groups)), "mean polarity of the words beside a group, %")
        for line, (_, sentiment) in enumerate(groups):
            axes.barh(line, sentiment["positive"], height=0.6, color=ACCENT)
            axes.barh(line, sentiment["negative"], height=0.6, color=SECOND)
        axes.set_yticks(range(len(groups)), [name for name, _ in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.axvline(0, color=MUTED, linewidth=0.8)
    return standing_alone(inline(figure, "bias", "Gender of occupations, and sentiment of the words beside groups"))
