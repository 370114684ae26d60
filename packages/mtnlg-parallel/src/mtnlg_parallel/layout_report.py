"""Shows a layout: stages and groups of ranks, as a table or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from mtnlg_model.console import output

from .layout import Layout, stages

if TYPE_CHECKING:
    from rich.console import Console

    from .layout import Axis, Stage
    from .recipe import Recipe

SHOWN_GROUPS: Final = 4
WIDTH: Final = 120
"""Width of a table in characters if stdout is not a terminal."""


def console() -> Console:
    """Standard output, wide enough for a table if it is not a terminal."""
    out = output(soft_wrap=True)
    if not out.is_terminal:
        out.width = WIDTH
    return out


def print_layout(recipe: Recipe) -> None:
    """Print stages and groups of ranks on stdout."""
    layout, config, train = recipe.layout, recipe.model, recipe.train
    out = console()
    replicas = f"{layout.dp} replicas of {layout.world // layout.dp}"
    out.print(f"{config.parameters:,} parameters over {layout}: {layout.world:,} ranks, {replicas}")
    out.print(
        f"batch {train.batch} = {layout.dp} replicas x {train.batch // recipe.batch_size.multiple} micro-batches of "
        f"{train.micro_batch}; {recipe.steps:,} steps of {config.sequence} tokens per sample"
    )
    table = Table("stage", "ranks", "parts")
    for name in ("parameters per rank", "share of the time"):
        table.add_column(name, justify="right")
    for stage in _cut(recipe):
        first = layout.rank(tp=0, pp=stage.number % layout.pp, dp=0)
        last = layout.replicas(layout.tp - 1, stage.number % layout.pp)[-1]
        ranks = f"{first}" if first == last else f"{first}-{last}"
        table.add_row(str(stage.number), ranks, _parts_text(stage), f"{stage.parameters:,}", f"{stage.cost:.1%}")
    out.print(table)
    roles: dict[Axis, str] = {"tp": "slice a layer", "dp": "share a stage's gradients", "pp": "pass activations on"}
    roles["cp"] = "share a sequence"
    for axis in layout.axes:
        groups, role = layout.groups(axis), roles[axis]
        texts = "  ".join(_abbreviate(group) for group in groups[:SHOWN_GROUPS])
        more = f"  … {len(groups):,} groups" if len(groups) > SHOWN_GROUPS else ""
        out.print(f"{axis}: ranks that {role}: {texts}{more}")


def _cut(recipe: Recipe) -> tuple[Stage, ...]:
    """The virtual stages; each pipeline rank holds ``train.chunks`` of them, every ``layout.pp``-th."""
    layout, train = recipe.layout, recipe.train
    virtual = Layout(tp=layout.tp, pp=layout.pp * train.chunks, dp=layout.dp)
    return stages(recipe.model, virtual, train.recompute)


def _parts_text(stage: Stage) -> str:
    first, last = stage.layers.start, stage.layers.stop - 1
    layers = f"layers.{first}" if first == last else f"layers.{first}-{last}"
    start = stage.parts.index(f"layers.{first}")
    return ", ".join([*stage.parts[:start], layers, *stage.parts[start + len(stage.layers) :]])


def _abbreviate(group: list[int]) -> str:
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
