"""Directive ``schedules``: every schedule of the package, what it does, and its order drawn from the engine's own.

Forward takes one unit of time and backward two, or one for the inputs and one for the weights where they are apart; a
message takes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from mtnlg_parallel.schedules import OURS, Action, Order, load_schedule

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RANKS, MICRO_BATCHES = 4, 8
UNIT, ROW, LEFT = 18, 24, 62

Box = tuple[int, float, float, Action]


def boxes(made: tuple[Order, ...], chunks: int, *, split: bool) -> list[Box]:
    """Rank, start and length of each action, each begun as soon as its rank is free and its input is there."""
    ends: dict[tuple[str, int, int], float] = {}
    positions, free = [0] * len(made), [0.0] * len(made)
    placed: list[Box] = []
    while any(position < len(order) for position, order in zip(positions, made, strict=True)):
        for rank, order in enumerate(made):
            if positions[rank] == len(order):
                continue
            action = order[positions[rank]]
            needed = input_of(action, rank, len(made), chunks)
            if needed is not None and needed not in ends:
                continue
            start = max(free[rank], ends[needed] if needed else 0.0)
            length = (2.0 if action.kind == "backward" and not split else 1.0) / chunks
            free[rank] = ends[action.kind, action.micro_batch, action.chunk * len(made) + rank] = start + length
            positions[rank] += 1
            placed.append((rank, start, length, action))
    return placed


def input_of(action: Action, rank: int, ranks: int, chunks: int) -> tuple[str, int, int] | None:
    """What an action waits for: kind, micro-batch and virtual stage of another, or nothing."""
    stage = action.chunk * ranks + rank
    if action.kind == "weights":
        return "backward", action.micro_batch, stage
    if action.kind == "forward":
        return ("forward", action.micro_batch, stage - 1) if stage else None
    last = stage == ranks * chunks - 1
    return ("forward", action.micro_batch, stage) if last else ("backward", action.micro_batch, stage + 1)


def draw(name: str) -> str:
    """The picture as SVG, in the colours of the page."""
    schedule = load_schedule(name)
    chunks = schedule.fewest_chunks
    placed = boxes(schedule.orders(RANKS, chunks, MICRO_BATCHES), chunks, split=schedule.splits_backward)
    span = max(start + length for _, start, length, _ in placed)
    width, height = LEFT + UNIT * 36, ROW * RANKS + 22
    parts = [f'<div class="picture"><svg viewBox="0 0 {width} {height}" role="img" aria-label="Timeline of {name}">']
    parts += [f'<text x="0" y="{ROW * rank + 16}">stage {rank}</text>' for rank in range(RANKS)]
    for rank, start, length, action in placed:
        x, y, wide = LEFT + UNIT * start, ROW * rank + 2, UNIT * length
        shade = f" chunk-{action.chunk}" if chunks > 1 else ""
        parts.append(f'<rect class="{action.kind}{shade}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW - 4}"/>')
        if wide >= UNIT:
            parts.append(
                f'<text class="on-colour" x="{x + wide / 2:.1f}" y="{y + 14}" text-anchor="middle">'
                f"{action.micro_batch + 1}</text>"
            )
    work = MICRO_BATCHES * 3
    note = (
        f"{span:.0f} units, {work} of them work on each stage: idle time is {100 * (span / work - 1):.1f} % of the work"
    )
    return "".join(parts) + f'<text x="{LEFT}" y="{height - 5}">{note}</text></svg></div>'


class Schedules(SphinxDirective):
    """A paragraph and a picture of each schedule."""

    def run(self) -> list[nodes.Node]:
        """Draw them."""
        drawn: list[nodes.Node] = []
        for name in OURS:
            drawn += self.parse_text_to_nodes(f'`train.schedule = "{name}"` {load_schedule(name).help}')
            drawn.append(nodes.raw("", draw(name), format="html"))
        return drawn


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("schedules", Schedules)
    return {"parallel_read_safe": True}
