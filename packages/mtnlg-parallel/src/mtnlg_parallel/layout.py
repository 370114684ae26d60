"""The parallel layout: which rank is where, and which layers each pipeline stage holds. Imports no torch.

Ranks are ordered tensor parallel innermost, then context parallel, data parallel and pipeline stage (paper.md section
3, and megatron-core for cp)

    rank = ((pipeline stage * dp + data-parallel rank) * cp + context-parallel rank) * tp + tensor-parallel rank

so that the largest communication volume stays on a node's fast links and the smallest crosses the network. DeepSpeed's
``PipeModelDataParallelTopology`` (axes pipe, data, model) and megatron-core's default use the same order.

Stage bounds minimise the cost of the slowest stage. Forward cost of a GPT in FLOP per token (Narayanan et al. 2021):

    layer  24 h² + 4 h s        head  2 h V        embedding  2 h (two rows read and added)

For other decoders 24 h² becomes 2 W, with W weights in a layer's matrices, and h in 4 h s becomes heads x head size.

Backward costs twice as much. Full recomputation repeats a layer's forward, selective only its attention core, 4 h s;
the head is never recomputed. The head processes its tokens in chunks.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from math import ceil, lcm, prod
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_model.checkpoint import manifest
from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from mtnlg_model.config import ModelConfig

Axis = Literal["tp", "cp", "pp", "dp"]
Recompute = Literal["none", "selective", "full"]
"""Part of a layer recomputed in backward: nothing, its attention core (Korthikanti et al. 2022), or all of it."""

SLICED_AXES: Final[dict[str, int]] = {
    "embedding.token.weight": 0,
    "attention.qkv.weight": 0,
    "attention.qkv.bias": 0,
    "attention.out.weight": 1,
    "mlp.gate.weight": 0,
    "mlp.gate.bias": 0,
    "mlp.up.weight": 0,
    "mlp.up.bias": 0,
    "mlp.down.weight": 1,
    "head.weight": 0,
    "head.bias": 0,
}
"""Axis that tensor parallelism slices, by parameter name (of a layer's, within the layer); others are replicated."""

NORMS_OF_HEADS: Final = ("attention.q_norm.weight", "attention.k_norm.weight")
"""Replicated parameters that each tensor-parallel rank applies only to its own heads, so their gradients are summed."""

WAYS_OUT: Final = {
    "sequence": ", or train.sequence_parallel = false",
    "vocabulary": ", or pad it: mtnlg-model import --vocabulary-multiple, or model.vocabulary_padding",
}
"""Hint by size that tp does not divide: what helps besides another tp."""

MOST: Final = 1 << 20
"""Most ranks, nodes or sequences that a command accepts. No run has more; planning more takes minutes."""

MOST_LAYERS: Final = 4096
"""Most layers of a decoder; balancing the stages takes time and memory quadratic in the layers."""

CHUNK_MULTIPLE: Final = 128
"""The head's chunks are a multiple of this many tokens, the height of a matrix product's tile."""

PIECE_TOKENS: Final = 4096
"""Fewest tokens in a piece of a tensor-parallel product: thinner products lose more time than overlap hides."""

MIN_CHUNK: Final = 1024
"""Fewest tokens N in a chunk of the head, unless half of a micro-batch is less. The chunk's weight gradient does N / 2
FLOP per byte of traffic, and an H100 is memory bound below 300."""


class Coordinates(NamedTuple):
    """A rank's place on each axis."""

    tp: int
    pp: int
    dp: int
    cp: int = 0

    def __str__(self) -> str:
        """Text such as ``tp 0, pp 1, dp 3``, and ``cp 1`` if that is not 0."""
        return f"tp {self.tp}, pp {self.pp}, dp {self.dp}" + (f", cp {self.cp}" if self.cp else "")


class Layout(manifest.Layout):
    """Degrees of tensor, context, pipeline and data parallelism, as checkpoints record them."""

    def __str__(self) -> str:
        """Text in the format of ``--layout``."""
        return ",".join(f"{axis}={degree}" for axis, degree in self.model_dump().items())

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Its axes from the innermost on; cp only if its degree is not 1."""
        return ("tp", "cp", "dp", "pp") if self.cp > 1 else ("tp", "dp", "pp")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.pp * self.dp

    def rank(self, tp: int, pp: int, dp: int, cp: int = 0) -> int:
        """The rank at these coordinates."""
        return ((pp * self.dp + dp) * self.cp + cp) * self.tp + tp

    @property
    def copies(self) -> int:
        """Number of ranks that hold the same weights: all data-parallel and context-parallel ones."""
        return self.dp * self.cp

    def copy_number(self, rank: int) -> int:
        """The number of a rank among those that hold the same weights."""
        return rank // self.tp % self.copies

    def replicas(self, tp: int, pp: int) -> list[int]:
        """The ranks that hold the same weights, in order."""
        first = self.rank(tp, pp, dp=0)
        return [*range(first, first + self.tp * self.copies, self.tp)]

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a rank. Raises ``ValueError`` outside [0, world)."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is outside the {self.world} ranks of {self}")
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Coordinates(tp, pp, dp, cp)

    def place_facts(self, rank: int) -> dict[str, int]:
        """A rank and its coordinates, for JSON."""
        return {"rank": rank, **{axis: getattr(self.coordinates(rank), axis) for axis in self.model_dump()}}

    def groups(self, axis: Axis) -> list[list[int]]:
        """Groups of ranks that differ only on this axis; each rank is in exactly one."""
        members: dict[Coordinates, list[int]] = {}
        for rank in range(self.world):
            members.setdefault(self.coordinates(rank)._replace(**{axis: 0}), []).append(rank)
        return list(members.values())


def parse_layout(text: str) -> dict[str, int]:
    """Parse ``--layout tp=2,pp=2,dp=1`` into axis and degree; axes may be missing. Raises ``UsageFailure``."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, degree = part.strip().partition("=")
        if axis in axes:
            raise UsageFailure(f"--layout {text}: {axis} is given twice; write tp=2,pp=2,dp=1")
        if axis not in Layout.model_fields or (ranks := parse_count(degree)) is None:
            raise UsageFailure(f"--layout {text}: {part!r} is not AXIS=DEGREE; write tp=2,pp=2,dp=1")
        axes[axis] = ranks
    return axes


def parse_count(text: str) -> int | None:
    """A number from 1 to `MOST`; None for anything else."""
    digits = text.strip().lstrip("0")
    return int(digits) if digits.isdecimal() and len(digits) < 8 and int(digits) <= MOST else None


def layout_error(layout: Layout, config: ModelConfig, sequence_parallel: bool = False) -> str | None:
    """Why ``layout`` does not fit this decoder, with the valid degrees; None if it does.

    tp must also divide the hidden size, but where that matters heads divide it. A key-value head stays on one rank with
    its query heads, or tp / kv_heads ranks share it.
    """
    keys = ("heads", "ffn", "vocabulary", *(("sequence",) if sequence_parallel else ()))
    sizes: dict[str, int] = {key: getattr(config, key) for key in keys}
    if layout.world > MOST:
        return f"layout {layout} has {layout.world} ranks; use at most {MOST}"
    if reason := _context_error(layout, config, sequence_parallel):
        return reason

    def misfit(tp: int) -> str | None:
        if key := next((key for key, size in sizes.items() if size % tp), None):
            return key
        return "kv_heads" if config.kv_heads % tp and (tp % config.kv_heads or _qkv_rows(config) % tp) else None

    if key := misfit(layout.tp):
        valid = [str(n) for n in range(1, min(config.heads, MOST) + 1) if not misfit(n)]
        choices = f"{', '.join(valid[:-1])} or {valid[-1]}" if len(valid) > 1 else valid[0]
        way_out = WAYS_OUT.get(key, "")
        return f"layout.tp = {layout.tp} does not divide model.{key} = {getattr(config, key)}; use {choices}{way_out}"
    if config.layers > MOST_LAYERS:
        return f"model.layers = {config.layers}; use at most {MOST_LAYERS}"
    if layout.pp > config.layers:
        return f"layout.pp = {layout.pp} stages for model.layers = {config.layers}; use 1 to {config.layers}"
    return None


def evaluation_error(layout: Layout, config: ModelConfig) -> str | None:
    """Why a decoder cannot be evaluated in ``layout``: as `layout_error`, and without context parallelism."""
    if layout.cp > 1:
        return f"layout.cp = {layout.cp} is for training; use 1"
    return layout_error(layout, config)


def _context_error(layout: Layout, config: ModelConfig, sequence_parallel: bool) -> str | None:
    """Why context parallelism does not fit this decoder; None if it does."""
    if layout.cp == 1:
        return None
    if config.attention_dropout:
        of_model = f"model.attention_dropout = {config.attention_dropout}"
        return f"layout.cp = {layout.cp} has no dropout of attention, and {of_model}; set that to 0, or use 1"
    unit = lcm(2, layout.tp) if sequence_parallel else 2
    if config.sequence % (layout.cp * unit):
        valid = [cp for cp in range(2, 2 * layout.cp) if config.sequence % (cp * unit) == 0]
        near = sorted(sorted(valid, key=lambda cp: abs(cp - layout.cp))[:2]) or [1]
        longer = -(-config.sequence // (layout.cp * unit)) * layout.cp * unit
        parts = f"layout.cp = {layout.cp} x {unit} does not divide model.sequence = {config.sequence}"
        return f"{parts}; use {' or '.join(map(str, near))}, or model.sequence = {longer}"
    return None


def _qkv_rows(config: ModelConfig) -> int:
    return (config.heads + 2 * config.kv_heads) * config.head_size


EIGHT_BIT_MULTIPLE: Final = 16
"""Must divide the sizes of 8-bit matrices, for the tensor cores."""


def eight_bit_error(layout: Layout, config: ModelConfig, micro_batch: int) -> str | None:
    """Why the layers' slices cannot be multiplied in 8 bits; None if they can."""
    rows = {"(heads + 2 kv_heads) x head_size": _qkv_rows(config), "heads x head_size": config.heads * config.head_size}
    widths = {name: count // layout.tp for name, count in {**rows, "ffn": config.ffn}.items()}
    tokens = config.sequence // layout.cp * micro_batch
    sizes = {"hidden": config.hidden, **widths, "sequence x train.micro_batch": tokens}
    for name, size in sizes.items():
        if size % EIGHT_BIT_MULTIPLE:
            of_rank = f"of a rank, by layout.tp = {layout.tp}, " if name in widths else ""
            must = f"must be a multiple of {EIGHT_BIT_MULTIPLE}"
            return f'train.precision = "fp8": model.{name} {of_rank}is {size} and {must}; use "bf16"'
    return None


class Stage(NamedTuple):
    """One pipeline stage: its parts of the decoder, parameters per rank, and fraction of the total cost."""

    number: int
    layers: range
    parts: tuple[str, ...]
    parameters: int
    cost: float


def stages(config: ModelConfig, layout: Layout, recompute: Recompute) -> tuple[Stage, ...]:
    """Cut a decoder into pipeline stages of balanced cost."""
    costs = list[float]()
    for number in range(config.layers):
        products, core = config.layer_flops(number)
        recomputed = {"none": 0, "selective": core, "full": products + core}[recompute]
        costs.append(float(3 * (products + core) + recomputed))
    before, after = config.outer_flops
    costs[0] += 3 * (2 * config.hidden + before)
    costs[-1] += 3 * after
    bounds = balanced_cuts(tuple(costs), layout.pp)
    cut = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        parts = [f"layers.{n}" for n in range(start, stop)]
        parts = ["embedding", *parts] if number == 0 else parts
        parts = [*parts, "final_norm", "head"] if number == layout.pp - 1 else parts
        parameters = sum(
            part_parameters(config, layout, part) for part in parts if part != "head" or number or not config.tied
        )
        cost = sum(costs[start:stop]) / sum(costs)
        cut.append(Stage(number, range(start, stop), tuple(parts), parameters, cost))
    return tuple(cut)


def part_parameters(config: ModelConfig, layout: Layout, part: str) -> int:
    """Parameters per rank of a part of the decoder (embedding, layers.3, final_norm, head)."""
    if part.startswith("layers"):
        shapes = config.layer_shapes()
    else:
        prefix = "embedding.token." if part == "head" and config.tied else f"{part}."
        outer = config.outer_shapes().items()
        shapes = {name: shape for name, shape in outer if name.startswith(prefix)}
    return sum(prod(shape) // (layout.tp if name in SLICED_AXES else 1) for name, shape in shapes.items())


def sliced_axis(name: str) -> int | None:
    """Axis along which tensor parallelism slices a parameter of the decoder; None if every rank has all of it."""
    return SLICED_AXES.get(name.split(".", 2)[2] if name.startswith("layers.") else name)


@cache
def balanced_cuts(costs: tuple[float, ...], parts: int) -> tuple[int, ...]:
    """Bounds of ``parts`` contiguous runs of ``costs`` that minimise the costliest run; of ties, the most even.

    Returns ``parts + 1`` indices from 0 to ``len(costs)``. Needs 1 <= parts <= len(costs).
    """
    prefix = [0.0, *accumulate(costs)]
    # best[n]: (costliest run, sum of squared runs) and bounds for the first n costs.
    best: dict[int, tuple[tuple[float, float], tuple[int, ...]]] = {0: ((0.0, 0.0), (0,))}
    for _ in range(parts):
        shorter = best
        best = {}
        for end in range(1, len(costs) + 1):
            candidates = [
                ((max(costliest, run), squares + run * run), (*bounds, end))
                for start, ((costliest, squares), bounds) in shorter.items()
                if start < end
                for run in (prefix[end] - prefix[start],)
            ]
            if candidates:
                best[end] = min(candidates)
    return best[len(costs)][1]


def forward_pieces(tp: int, tokens: int) -> int:
    """Number of pieces into which a micro-batch's tokens are split to overlap tensor-parallel products and collectives.

    Smaller products are slower, and collectives of more ranks take longer: one piece per two ranks, but none below
    `PIECE_TOKENS`.
    """
    return max(min(tp // 2, tokens // PIECE_TOKENS), 1)


def ring_window(window: int | None, rank: int, other: int, cp: int, sequence: int) -> int | None:
    """What a ``window`` leaves of the pairs of ``rank``'s queries and the keys of ``other``, of ``cp`` ranks.

    None if all are within it, 0 if none is; rank r has chunks r and 2 cp - 1 - r of the sequence (`ring_attention`).
    """
    chunk = sequence // (2 * cp)
    if window is None or window >= sequence - (rank + other) * chunk:  # the greatest distance, and 1
        return None
    return 0 if rank != other and (abs(rank - other) - 1) * chunk + 1 >= window else window


def head_chunk(tokens: int, hidden: int, width: int) -> int:
    """Tokens per chunk of the head, if a rank has ``width`` tokens of the vocabulary; there are at least two chunks.

    A chunk's logits take at most about as much memory as x, or are those of `MIN_CHUNK` tokens.
    """
    most = min(max(tokens * hidden // width, MIN_CHUNK), ceil(tokens / 2))
    return ceil(ceil(tokens / ceil(tokens / most)) / CHUNK_MULTIPLE) * CHUNK_MULTIPLE
