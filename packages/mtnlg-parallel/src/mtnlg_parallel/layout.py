"""Where everything lies: ranks in three dimensions, and the decoder's layers over pipeline stages. No torch here.

Ranks count tensor-parallel first, then data-parallel, pipeline stage outermost (paper.md section 3)

    rank = (pipeline stage * dp + data-parallel rank) * tp + tensor-parallel rank

so that a node's fast links carry the largest volume and the network between nodes the smallest. DeepSpeed's
``PipeModelDataParallelTopology`` (axes pipe, data, model) and megatron-core's default order count alike.

Stages are cut where the slowest is fastest. Cost of a token forward, in operations (Narayanan et al. 2021)

    layer  24 h² + 4 h s        head  2 h V        embedding  2 h (two rows read and added)

and twice that backward. Full recomputation does a layer's forward once more, selective its attention core, 4 h s; the
head is never done again. The head takes its tokens a chunk at a time.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from math import ceil, prod
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_model.checkpoint import manifest
from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_model.config import ModelConfig

Axis = Literal["tp", "pp", "dp"]
Recompute = Literal["none", "selective", "full"]
"""What of a layer is run again backward: nothing, the attention core (Korthikanti et al. 2022), or all of it."""

CUTS: Final[dict[str, int]] = {
    "token.weight": 0,
    "attention.qkv.weight": 0,
    "attention.qkv.bias": 0,
    "attention.out.weight": 1,
    "mlp.up.weight": 0,
    "mlp.up.bias": 0,
    "mlp.down.weight": 1,
}
"""The axis along which tensor parallelism cuts a parameter, by its name within its part; all others are whole."""

CHUNK: Final = 128
"""Tokens of a chunk of the head are a multiple of it, which no matrix product likes to see cut."""

LEAST_CHUNK: Final = 1024
"""Tokens of a chunk at least, where there are more: its weight gradient takes N / 2 FLOP a byte that it reads and
writes, and an H100 that does fewer than 300 waits for its memory."""


class Coordinates(NamedTuple):
    """A rank's place on each axis."""

    tp: int
    pp: int
    dp: int

    def __str__(self) -> str:
        """In words."""
        return f"tp {self.tp}, pp {self.pp}, dp {self.dp}"


class Layout(manifest.Layout):
    """Degrees of tensor, pipeline and data parallelism; checkpoints record them as they are."""

    def __str__(self) -> str:
        """As ``--layout`` takes it."""
        return f"tp={self.tp},pp={self.pp},dp={self.dp}"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.dp

    def rank(self, tp: int, pp: int, dp: int) -> int:
        """The rank at these coordinates."""
        return (pp * self.dp + dp) * self.tp + tp

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands. Raises ``ValueError`` outside [0, world)."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is outside the {self.world} ranks of {self}")
        rest, tp = divmod(rank, self.tp)
        pp, dp = divmod(rest, self.dp)
        return Coordinates(tp=tp, pp=pp, dp=dp)

    def groups(self, axis: Axis) -> list[list[int]]:
        """The ranks that differ on this axis alone, group by group; together they hold every rank once."""
        members: dict[Coordinates, list[int]] = {}
        for rank in range(self.world):
            members.setdefault(self.coordinates(rank)._replace(**{axis: 0}), []).append(rank)
        return list(members.values())


def parse_layout(text: str) -> dict[str, int]:
    """The axes that ``--layout tp=2,pp=2,dp=1`` names. Raises ``UsageFailure``."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, degree = part.strip().partition("=")
        if axis not in Layout.model_fields or not degree.isdecimal():
            raise UsageFailure(f"--layout {text}: {part!r} is not an axis and its degree; write tp=2,pp=2,dp=1")
        axes[axis] = int(degree)
    return axes


def refusal(layout: Layout, config: ModelConfig, sequence_parallel: bool = False) -> str | None:
    """Why this decoder cannot be cut so, naming the value and the valid choices; None when it can.

    What tp must divide further, hidden h and feed-forward width 4h, heads already divide.
    """
    keys = ("heads", "vocabulary", "sequence") if sequence_parallel else ("heads", "vocabulary")
    wholes: dict[str, int] = {key: getattr(config, key) for key in keys}
    for key, whole in wholes.items():
        if whole % layout.tp:
            valid = [n for n in _divisors(config.heads) if all(other % n == 0 for other in wholes.values())]
            way_out = ", or train.sequence_parallel = false" if key == "sequence" else ""
            return f"layout.tp = {layout.tp} does not divide model.{key} = {whole}; use {_listed(valid)}{way_out}"
    if layout.pp > config.layers:
        return f"layout.pp = {layout.pp} stages for model.layers = {config.layers}; use 1 to {config.layers}"
    return None


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


class Stage(NamedTuple):
    """What one pipeline stage holds: its parts, the parameters of each of its ranks, its share of the whole cost."""

    number: int
    layers: range
    parts: tuple[str, ...]
    parameters: int
    cost: float


def stages(config: ModelConfig, layout: Layout, recompute: Recompute) -> tuple[Stage, ...]:
    """The stages into which a decoder is cut."""
    h, core = config.hidden, 4 * config.hidden * config.sequence
    layer = 24 * h * h + core
    again = {"none": 0, "selective": core, "full": layer}[recompute]
    costs = [float(3 * layer + again)] * config.layers
    costs[0] += 3 * 2 * h
    costs[-1] += 3 * 2 * h * config.vocabulary
    bounds = balanced_cuts(tuple(costs), layout.pp)
    found = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        parts = [f"layers.{n}" for n in range(start, stop)]
        parts = ["embedding", *parts] if number == 0 else parts
        parts = [*parts, "final_norm", "head"] if number == layout.pp - 1 else parts
        parameters = sum(held_of_part(config, layout, part) for part in parts if part != "head" or number)
        cost = sum(costs[start:stop]) / sum(costs)
        found.append(Stage(number, range(start, stop), tuple(parts), parameters, cost))
    return tuple(found)


def held_of_part(config: ModelConfig, layout: Layout, part: str) -> int:
    """Parameters of a part (embedding, layers.3, final_norm, head) on each of its ranks."""
    if part.startswith("layers."):
        shapes = config.layer_shapes()
    else:
        prefix = "embedding.token." if part == "head" else f"{part}."
        outer = config.outer_shapes().items()
        shapes = {name.removeprefix("embedding."): shape for name, shape in outer if name.startswith(prefix)}
    return sum(prod(shape) // (layout.tp if name in CUTS else 1) for name, shape in shapes.items())


@cache
def balanced_cuts(costs: tuple[float, ...], parts: int) -> tuple[int, ...]:
    """Bounds of ``parts`` non-empty runs of ``costs`` whose dearest run is cheapest; of equals, the most even.

    ``parts + 1`` numbers from 0 to ``len(costs)``. Needs 1 <= parts <= len(costs).
    """
    before = [0.0, *accumulate(costs)]
    # best[n]: of the first n items in the runs so far, (dearest run, sum of squares), then the bounds.
    best: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {0: ((0.0, 0.0), (0,))}
    for _ in range(parts):
        reached = best
        best = {}
        for end in range(1, len(costs) + 1):
            found = [
                ((max(dearest, run), squares + run * run), (*bounds, end))
                for start, ((dearest, squares), bounds) in reached.items()
                if start < end
                for run in (before[end] - before[start],)
            ]
            if found:
                best[end] = min(found)
    return best[len(costs)][1]


def head_chunk(tokens: int, hidden: int, width: int) -> int:
    """Tokens that the head takes at once, for ``width`` tokens of the vocabulary on a rank: two chunks at least.

    Their logits take about the room of all of x at most, or are of `LEAST_CHUNK` tokens.
    """
    most = min(max(tokens * hidden // width, LEAST_CHUNK), ceil(tokens / 2))
    return ceil(ceil(tokens / ceil(tokens / most)) / CHUNK) * CHUNK
