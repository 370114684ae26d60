"""Charts of training as ``<svg>`` elements: loss, other curves over tokens, and the layout of the ranks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Rectangle

from mtnlg_eval.report.markup import DASH, short

from .svg import ACCENT, MUTED, RULE, SECOND, SOFT, Tip, canvas, chart, styled, to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from mtnlg_eval.report.run_files import Step, Training

MAX_POINTS = 800  # of a curve
MAX_DOTS = 40  # of a curve with markers
MAX_TIPS = 40  # of a curve
REPLICAS_WIDTH = 280.0  # points for all replicas shown
MAX_NUMBERED_RANKS = 128


@styled()
def losses(steps: Sequence[Step], unigram_entropy: float | None) -> str:
    """Training and validation loss over tokens, in nats per token, with the unigram entropy as a baseline."""
    tokens, loss = _series(steps, "loss")
    figure, axes = chart(410, 290, left=32, right=80)
    axes.plot(*downsample(tokens, loss), color=ACCENT)
    measured = [(s.tokens, s.validation_loss) for s in steps if s.validation_loss is not None]
    ends = [(loss[-1], "training", ACCENT)]
    if measured:
        x, y = (np.asarray(column, float) for column in zip(*measured, strict=True))
        marker = "o" if len(x) <= MAX_DOTS else ""
        axes.plot(*downsample(x, y), color=SECOND, marker=marker, markersize=3.5, linewidth=0.8, clip_on=False)
        ends.append((y[-1], "validation", SECOND))
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, color=MUTED, linewidth=0.8, dashes=(5, 3))
        ends.append((unigram_entropy, "unigram", MUTED))
    axes.set_xlim(0, tokens[-1] or 1)
    axes.set_xlabel("tokens", labelpad=2)
    axes.set_title("nats per token", loc="left", x=-0.075, fontsize=10, color=MUTED, pad=6)
    _label_ends(axes, ends)
    tips = _tips(axes, steps, "loss", "training loss")
    tips += [
        Tip(axes, s.tokens, s.validation_loss, f"step {s.step}, validation loss: {s.validation_loss:.3f}")
        for s in steps
        if s.validation_loss is not None
    ]
    return to_svg(figure, "loss", "Training and validation loss over tokens, and the unigram entropy", tips)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Label each line (value, name, colour) at its right end; labels that would overlap are moved up."""
    low, high = axes.get_ylim()
    spacing = 0.055 * (high - low)
    floor = -np.inf
    for value, name, color in sorted(end for end in ends if np.isfinite(end[0])):
        y = max(value, floor + spacing)
        floor = y
        axes.annotate(
            f"{name} {value:.2f}",
            (1, y),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=color,
        )


@styled()
def curve(steps: Sequence[Step], quantity: str, name: str) -> str:
    """One quantity of the training log over tokens, with a y axis from zero."""
    tokens, values = _series(steps, quantity)
    figure, axes = chart(250, 158, left=44, top=8, ticks=(3, 4))
    drawstyle = "steps-post" if quantity == "batch_size" else "default"
    axes.plot(*downsample(tokens, values), color=ACCENT, drawstyle=drawstyle)
    axes.set_xlim(0, tokens[-1] or 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens", labelpad=1)
    words = quantity.replace("_", " ")
    return to_svg(figure, name, f"{words} over tokens", _tips(axes, steps, quantity, words))


def _tips(axes: Axes, steps: Sequence[Step], quantity: str, words: str) -> list[Tip]:
    """Tooltips along a curve, at most about ``MAX_TIPS``."""
    shown = [step for step in steps[:: -(-len(steps) // MAX_TIPS)] if getattr(step, quantity) is not None]
    return [
        Tip(axes, step.tokens, value, f"step {step.step}, {short(step.tokens)} tokens, {words}: {value:.4g}")
        for step, value in ((step, getattr(step, quantity)) for step in shown)
    ]


def _series(steps: Sequence[Step], quantity: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values = [getattr(step, quantity) for step in steps]
    return np.asarray([s.tokens for s in steps], float), np.asarray([np.nan if v is None else v for v in values], float)


def downsample(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """About ``MAX_POINTS`` points of a longer curve: the minimum and maximum of each interval, so that spikes stay."""
    if len(x) <= MAX_POINTS:
        return x, y
    keep = {0, len(x) - 1}
    for interval in np.array_split(np.arange(len(x)), MAX_POINTS // 2):
        finite = interval[np.isfinite(y[interval])]
        if len(finite):
            keep |= {int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])}
    order = sorted(keep)
    return x[order], y[order]


@styled()
def layout(training: Training) -> str:
    """The ranks: a row per pipeline stage with its layers, a column per tensor slice, a block per replica."""
    degrees = training.layout
    cell = 26.0 if degrees.pp <= 16 else 14.0
    block = degrees.tp * cell + 14
    shown = min(degrees.dp, max(1, int(REPLICAS_WIDTH // block)))
    labels = 150.0
    edge = labels + shown * block - 14
    width, height = edge + 70, 40 + degrees.pp * cell
    numbered = shown * degrees.tp * degrees.pp <= MAX_NUMBERED_RANKS
    figure = canvas(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    tips: list[Tip] = []
    for rank in training.ranks:
        if rank.dp < shown:
            x, y = labels + rank.dp * block + rank.tp * cell, 36 + rank.pp * cell
            axes.add_patch(Rectangle((x + 1, y + 1), cell - 2, cell - 2, facecolor=SOFT, linewidth=0))
            where = f"rank {rank.rank}: tensor {rank.tp}, stage {rank.pp}, replica {rank.dp}"
            tips.append(Tip(axes, x + cell / 2, y + cell / 2, where))
            if numbered:
                axes.text(x + cell / 2, y + cell / 2, str(rank.rank), ha="center", va="center", fontsize=10)
    for stage in training.stages:
        y = 36 + (stage.stage + 0.5) * cell
        axes.text(labels - 8, y, abbreviate_layers(stage.layers), ha="right", va="center", color=MUTED, fontsize=9.5)
        axes.text(width - 2, y, short(stage.parameters), ha="right", va="center", color=MUTED, fontsize=9.5)
    axes.text(width - 2, 11, "parameters", ha="right", va="center", color=MUTED, fontsize=9.5)
    for replica in range(shown):
        left = labels + replica * block
        axes.text(left, 11, f"replica {replica}", va="center", fontsize=9.5)
        for column in range(degrees.tp if cell > 20 else 0):
            axes.text(left + (column + 0.5) * cell, 27, str(column), ha="center", va="center", color=MUTED, fontsize=9)
    if degrees.dp > shown:
        more = f"and {degrees.dp - shown} more replicas"
        axes.text(labels - 8, 11, more, ha="right", va="center", color=MUTED, fontsize=9.5)
    axes.plot([labels, edge], [19, 19], color=RULE, linewidth=0.6)
    return to_svg(figure, "layout", f"Layout of {len(training.ranks)} ranks", tips)


def abbreviate_layers(names: Sequence[str]) -> str:
    """Layer names with runs of numbers as ranges: embedding, layers.0, layers.1 → embedding, layers 0-1."""

    def family(name: str) -> str:
        stem, _, number = name.rpartition(".")
        return stem if number.isdecimal() else name

    parts: list[str] = []
    for stem, group in groupby(names, key=family):
        members = list(group)
        numbers = [name.removeprefix(f"{stem}.") for name in members]
        if members[0] == stem:
            parts += members
        elif len(numbers) == 1:
            parts.append(f"{stem.removesuffix('s')} {numbers[0]}")
        else:
            parts.append(f"{stem} {numbers[0]}{DASH}{numbers[-1]}")
    return ", ".join(parts).replace("_", " ")
