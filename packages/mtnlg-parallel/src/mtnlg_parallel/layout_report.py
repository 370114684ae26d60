"""Shows a layout: stages and groups as a table or JSON, and what one rank holds (``train --dry-run``).

Bytes of state per parameter in DeepSpeed's engine, under bf16 with fp32 accumulation (paper.md section 3) and ZeRO-1
over dp x cp ranks:

    2 weight + 2 gradient + 4 accumulated gradient + (4 master weight + 8 moments) / (dp cp)

and under fp32 4 + 4 + (4 + 8) / (dp cp), since DeepSpeed's ZeRO keeps a master copy there too. Our own engine has
neither that copy nor separate gradients in bf16.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.table import Table

from mtnlg_model.console import UsageFailure, output

from .layout import Layout, part_parameters, stages

if TYPE_CHECKING:
    from rich.console import Console

    from .layout import Axis, Coordinates, Stage
    from .recipe import Recipe

RANK_BYTES: Final = {
    ("bf16", True): {"weights": 2, "gradients": 2, "accumulated gradients": 4},
    ("bf16", False): {"weights": 2, "accumulated gradients": 4},
    ("fp32", True): {"weights": 4, "gradients": 4},
    ("fp32", False): {"weights": 4, "accumulated gradients": 4},
}
"""Bytes per parameter of a rank's slices that are not sharded, by storage and whether the engine is DeepSpeed's."""

ZERO_BYTES: Final = {"master weights": 4, "moments": 8}
"""Bytes per parameter that ZeRO-1 shards over the data-parallel ranks."""

SHOWN_GROUPS: Final = 4
WIDTH: Final = 120
"""Width of a table in characters if stdout is not a terminal."""


class RankShard(NamedTuple):
    """One rank's part of the decoder: parameters by part, and bytes of state by kind."""

    rank: int
    place: Coordinates
    parts: dict[str, int]
    state: dict[str, int]

    @property
    def parameters(self) -> int:
        """Parameters of all parts."""
        return sum(self.parts.values())


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
    for name in ("parameters a rank", "share of the time"):
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
        shown = "  ".join(_abbreviate(group) for group in groups[:SHOWN_GROUPS])
        more = f"  … {len(groups):,} groups" if len(groups) > SHOWN_GROUPS else ""
        out.print(f"{axis}: ranks that {role}: {shown}{more}")


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
    shown = group if len(group) <= 8 else [*group[:3], "…", group[-1]]
    return "[" + " ".join(map(str, shown)) + "]"


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


def rank_shard(recipe: Recipe, rank: int) -> RankShard:
    """The part of the decoder that a rank holds. Raises ``UsageFailure`` if there is no such rank."""
    layout, train, config = recipe.layout, recipe.train, recipe.model
    if not 0 <= rank < layout.world:
        raise UsageFailure(f"--rank {rank}: layout {layout} has ranks 0 to {layout.world - 1}")
    place = layout.coordinates(rank)
    parts = {
        part: part_parameters(config, layout, part)
        for stage in _cut(recipe)[place.pp :: layout.pp]
        for part in stage.parts
        if part != "head" or layout.pp > 1 or not config.tied  # else the head is the embedding's table
    }
    parameters = sum(parts.values())
    is_deepspeed = train.engine == "deepspeed"
    state = {kind: parameters * size for kind, size in RANK_BYTES[train.storage, is_deepspeed].items()}
    if train.gradients == "bf16":
        state["accumulated gradients"] //= 2
    shared = {kind: ceil(parameters / layout.copies) * size for kind, size in ZERO_BYTES.items()}
    if train.precision == "fp32" and not is_deepspeed:
        del shared["master weights"]
    state |= shared
    return RankShard(rank, place, parts, state)


def print_rank(shard: RankShard, recipe: Recipe) -> None:
    """Print a rank's parameters, state and groups on stdout."""
    layout, out = recipe.layout, output(soft_wrap=True)
    out.print(f"rank {shard.rank} of {layout.world:,} ({shard.place}) of {recipe.model.parameters:,} parameters")
    table = Table("part", show_footer=True)
    table.columns[0].footer = "all"
    table.add_column("parameters here", justify="right", footer=f"{shard.parameters:,}")
    for part, parameters in shard.parts.items():
        table.add_row(part, f"{parameters:,}")
    out.print(table)
    kinds = "  ".join(f"{kind} {size / 1e9:,.2f} GB" for kind, size in shard.state.items())
    out.print(f"state: {sum(shard.state.values()):,} bytes in {recipe.train.precision}: {kinds}")
    for axis in layout.axes:
        group = [layout.rank(**{**shard.place._asdict(), axis: n}) for n in range(getattr(layout, axis))]
        out.print(f"{axis}: in the group {_abbreviate(group)}")
