"""What one rank of a job holds, found by building it: on the meta device, without the others and without memory.

Of the model's state a parameter takes, under bf16 with fp32 accumulation (paper.md section 3) and ZeRO-1 over dp ranks

    2 weight + 2 gradient + 4 accumulated gradient + (4 master weight + 8 moments) / dp     bytes

and under fp32 4 + 4 + (4 + 8) / dp: ZeRO keeps a master copy there too.

A layout as a table for a person, and as JSON for a machine.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from mtnlg_model.console import UsageFailure

from .layout import stages

if TYPE_CHECKING:
    from torch import nn

    from mtnlg_parallel.model.slicing import Slicing

    from .layout import Axis, Coordinates, Stage
    from .recipe import Recipe


WHOLE: Final = {
    "bf16": {"weights": 2, "gradients": 2, "accumulated gradients": 4},
    "fp32": {"weights": 4, "gradients": 4},
}
SHARED: Final = {"master weights": 4, "moments": 8}
"""Bytes a parameter: of what every rank has of its slices, and of what ZeRO-1 shares out among the replicas."""


class Shard(NamedTuple):
    """One rank's part of the decoder: parameters by part of the decoder, and bytes of state by kind."""

    rank: int
    place: Coordinates
    parts: dict[str, int]
    state: dict[str, int]

    @property
    def parameters(self) -> int:
        """Of all parts together."""
        return sum(self.parts.values())


def shard_of(recipe: Recipe, rank: int) -> Shard:
    """Build this rank's stage from meta tensors, and count. Raises ``UsageFailure`` where there is no such rank."""
    from mtnlg_parallel.model.slicing import imagined  # noqa: PLC0415  (imports torch and megatron-core)

    layout, train = recipe.layout, recipe.train
    if not 0 <= rank < layout.world:
        raise UsageFailure(f"--rank {rank}: layout {layout} has ranks 0 to {layout.world - 1}")
    place = layout.coordinates(rank)
    stage = stages(recipe.model, layout, train.recompute)[place.pp]
    with imagined(place.tp, layout.tp, train.sequence_parallel) as slicing:
        # On the only stage the head is the embedding's own table.
        built = {part: _built(recipe, part, slicing) for part in stage.parts if part != "head" or place.pp}
    parts = {part: sum(parameter.numel() for parameter in module.parameters()) for part, module in built.items()}
    held = sum(parts.values())
    state = {kind: held * each for kind, each in WHOLE[train.precision].items()}
    state |= {kind: ceil(held / layout.dp) * each for kind, each in SHARED.items()}
    return Shard(rank, place, parts, state)


def _built(recipe: Recipe, part: str, slicing: Slicing) -> nn.Module:
    import torch  # noqa: PLC0415  (as above)

    from mtnlg_parallel.model.stage_modules import Embedding, Head, Layer, Norm  # noqa: PLC0415  (as above)

    config, meta = recipe.model, torch.device("meta")
    if part.startswith("layers."):
        return Layer(config, int(part.removeprefix("layers.")), slicing, recipe.train.recompute, meta)
    kinds: dict[str, type[Embedding | Norm | Head]] = {"embedding": Embedding, "final_norm": Norm, "head": Head}
    return kinds[part](config, slicing, meta)


def draw_rank(shard: Shard, recipe: Recipe) -> None:
    """Print it on stdout."""
    layout, console = recipe.layout, Console(highlight=False, soft_wrap=True)
    console.print(f"rank {shard.rank} of {layout.world:,} ({shard.place}) of {recipe.model.parameters:,} parameters")
    table = Table("part", show_footer=True)
    table.columns[0].footer = "all"
    table.add_column("parameters here", justify="right", footer=f"{shard.parameters:,}")
    for part, parameters in shard.parts.items():
        table.add_row(part, f"{parameters:,}")
    console.print(table)
    each = "  ".join(f"{kind} {count / 1e9:,.2f} GB" for kind, count in shard.state.items())
    console.print(f"state: {sum(shard.state.values()):,} bytes in {recipe.train.precision}: {each}")
    for axis in ("tp", "dp", "pp"):
        group = [layout.rank(**{**shard.place._asdict(), axis: n}) for n in range(getattr(layout, axis))]
        console.print(f"{axis}: in the group {listed(group)}")


MOST_GROUPS = 4
WIDTH = 120


def draw_layout(recipe: Recipe) -> None:
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
