"""Shows a layout: stages and groups of ranks, as a table or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .layout import Layout, stages
from .text import print_text, render

if TYPE_CHECKING:
    from .layout import Stage
    from .recipe import Recipe


def print_layout(recipe: Recipe) -> None:
    """Print stages and groups of ranks on stdout."""
    print_text(render("layout.txt", {"recipe": recipe, "cut": _cut(recipe)}, (abbreviated, parts, span)))


def _cut(recipe: Recipe) -> tuple[Stage, ...]:
    """The virtual stages; each pipeline rank holds ``train.chunks`` of them, every ``layout.pp``-th."""
    layout, train = recipe.layout, recipe.train
    virtual = Layout(tp=layout.tp, pp=layout.pp * train.chunks, dp=layout.dp)
    return stages(recipe.model, virtual, train.recompute)


def span(first: int, end: int) -> str:
    """Numbers from ``first`` up to ``end``, as text."""
    return f"{first}-{end - 1}" if end > first + 1 else f"{first}"


def parts(stage: Stage) -> str:
    """A stage's parts of the decoder, with a span for its layers."""
    start, layers = stage.parts.index(f"layers.{stage.layers.start}"), stage.layers
    named = f"layers.{span(layers.start, layers.stop)}"
    return ", ".join([*stage.parts[:start], named, *stage.parts[start + len(layers) :]])


def abbreviated(group: list[int]) -> str:
    """Ranks of a group in brackets; the first three and the last if there are more than eight."""
    ranks = group if len(group) <= 8 else [*group[:3], "…", group[-1]]
    return "[" + " ".join(map(str, ranks)) + "]"


def layout_facts(recipe: Recipe) -> dict[str, Any]:
    """Layout as JSON: every stage, rank and group."""
    layout, config = recipe.layout, recipe.model
    cut = _cut(recipe)
    return {
        "layout": layout.model_dump(),
        "world": layout.world,
        "parameters": config.parameters,
        "steps": recipe.steps,
        "stages": [
            {"stage": s.number, "parts": list(s.parts), "parameters_a_rank": s.parameters, "cost": s.cost} for s in cut
        ],
        "ranks": [layout.place_facts(rank) for rank in range(layout.world)],
        "groups": {axis: layout.groups(axis) for axis in layout.axes},
    }
