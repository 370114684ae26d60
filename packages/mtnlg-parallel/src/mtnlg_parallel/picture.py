"""A layout as a table for a person, and as JSON for a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .layout import stages

if TYPE_CHECKING:
    from .layout import Axis, Stage
    from .recipe import Recipe

MOST_GROUPS = 4
WIDTH = 120


def draw(recipe: Recipe) -> None:
    """Print the stages and the groups of ranks on stdout."""
    layout, config, train = recipe.layout, recipe.model, recipe.train
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    replicas = f"{layout.dp} replicas of {layout.tp * layout.pp}"
    console.print(f"{config.parameters:,} parameters over {layout}: {layout.world:,} ranks, {replicas}")
    console.print(
        f"batch {train.batch} = {layout.dp} replicas x {train.batch // recipe.batch_size.multiple} micro-batches of "
        f"{train.micro_batch}; {recipe.steps:,} steps of {config.sequence} tokens a sample"
    )
    table = Table("stage", "ranks", "parts")
    for name in ("parameters a rank", "share of the time"):
        table.add_column(name, justify="right")
    for stage in stages(config, layout, train.recompute):
        first = layout.rank(tp=0, pp=stage.number, dp=0)
        last = layout.rank(tp=layout.tp - 1, pp=stage.number, dp=layout.dp - 1)
        ranks = f"{first}" if first == last else f"{first}-{last}"
        table.add_row(str(stage.number), ranks, _parts(stage), f"{stage.parameters:,}", f"{stage.cost:.1%}")
    console.print(table)
    works: dict[Axis, str] = {"tp": "slice a layer", "dp": "share a stage's gradients", "pp": "pass activations on"}
    for axis, work in works.items():
        groups = layout.groups(axis)
        shown = "  ".join(listed(group) for group in groups[:MOST_GROUPS])
        more = f"  … {len(groups):,} groups" if len(groups) > MOST_GROUPS else ""
        console.print(f"{axis}: ranks that {work}: {shown}{more}")


def facts(recipe: Recipe) -> dict[str, Any]:
    """The same, every rank and group by itself."""
    layout, config = recipe.layout, recipe.model
    cut = stages(config, layout, recipe.train.recompute)
    return {
        "layout": layout.model_dump(),
        "world": layout.world,
        "parameters": config.parameters,
        "steps": recipe.steps,
        "stages": [
            {"stage": s.number, "parts": list(s.parts), "parameters_a_rank": s.parameters, "cost": s.cost} for s in cut
        ],
        "ranks": [{"rank": rank, **layout.coordinates(rank)._asdict()} for rank in range(layout.world)],
        "groups": {axis: layout.groups(axis) for axis in ("tp", "dp", "pp")},
    }


def _parts(stage: Stage) -> str:
    first, last = stage.layers.start, stage.layers.stop - 1
    layers = f"layers.{first}" if first == last else f"layers.{first}-{last}"
    others = [part for part in stage.parts if not part.startswith("layers.")]
    place = int("embedding" in others)
    return ", ".join([*others[:place], layers, *others[place:]])


def listed(group: list[int]) -> str:
    """A group of ranks in brackets; of a large one the beginning and the end."""
    few = group if len(group) <= 8 else [*group[:3], "…", group[-1]]
    return "[" + " ".join(map(str, few)) + "]"
