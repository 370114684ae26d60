"""A prediction: the seconds of a step, broken down, from the costs of the parts and the schedule's simulation.

    a chunk     its layers, and the embedding or the head where it has them: GPU or host, mostly whichever is slower
    the step    the simulated schedule; then each stage reduces its gradients, first and last sum those of the tied
                table, all agree on the gradient norm, each updates its share, and the updated weights are gathered

The host runs ahead of the GPU while the GPU is slower; where kernels are short it cannot, and the host's time counts.
"""

from __future__ import annotations

from functools import lru_cache
from math import log, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import Layout, held_of_part, stages

from . import layer_cost as parts
from . import network
from .simulation import Pipeline, Timeline, simulate

if TYPE_CHECKING:
    from mtnlg_model.config import ModelConfig

    from .cluster import Cluster, Software
    from .layer_cost import Cost
    from .run import Run

TOGETHER: Final = 6.0
"""How sharply the slower of GPU and host decides: where both take alike, each waits for the other now and then."""

OPTIMIZER_BYTES: Final = 34
"""Through memory a parameter: gradient norm (4), Adam on gradient, weight and moments in fp32 (28), cast (2)."""


class Breakdown(NamedTuple):
    """Seconds of a step at the slowest stage, by what it was spent on; they add up to the step."""

    compute: float
    recompute: float
    tensor_comms: float
    launch_gaps: float
    p2p: float
    bubble: float
    data_comms: float
    optimizer: float


class Prediction(NamedTuple):
    """What a step takes, and the pipeline that was simulated."""

    seconds: float
    breakdown: Breakdown
    pipeline: Pipeline


class Priced(NamedTuple):
    """A run, and what prices it."""

    run: Run
    cluster: Cluster
    software: Software


class Chunk(NamedTuple):
    """What one chunk of a stage holds."""

    layers: int
    embedding: bool
    head: bool


@lru_cache(maxsize=1 << 12)
def chunks(run: Run, software: Software) -> tuple[Chunk, ...]:
    """The decoder cut into pp x interleave chunks, first to last."""
    pp, total = run.layout.pp, run.layout.pp * run.interleave
    if software.balanced_stages and run.interleave == 1:
        counts = [len(s.layers) for s in stages(run.model, Layout(pp=pp), run.recompute)]
    else:  # evenly; what is over goes to the stages in the middle, which hold neither embedding nor head
        each, over = divmod(run.model.layers, total)
        first = (total - over) // 2
        counts = [each + (first <= c < first + over) for c in range(total)]
    return tuple(Chunk(n, c == 0, c == total - 1) for c, n in enumerate(counts))


@lru_cache(maxsize=1 << 12)
def predict(run: Run, cluster: Cluster, software: Software) -> Prediction:
    """Predict a step. The run must be possible (`run.objection`); whether it fits is `memory`'s business."""
    pipeline = pipeline_of(run, cluster, software)
    return _finish(run, cluster, software, pipeline, simulate(pipeline, run.micro_batches))


def floor(run: Run, cluster: Cluster, software: Software) -> float:
    """Seconds that no schedule of this step goes below: the slowest stage's work, and what must come before and after.

    A stage cannot begin before a micro-batch has come through the chunks ahead of it, nor end before it has gone back.
    """
    pipeline = pipeline_of(run, cluster, software)
    pp, both = run.layout.pp, [f + b for f, b in zip(pipeline.forward, pipeline.backward, strict=True)]
    hops = 2 if pipeline.blocking else 0
    work = [
        run.micro_batches * (sum(both[s::pp]) + hops * sum(pipeline.hops[s : s + 1])) + sum(both[:s]) for s in range(pp)
    ]
    last = run.micro_batches * (sum(both[pp - 1 :: pp])) + sum(both[: pp - 1])
    return max(*work[:-1], last) if pp > 1 else last


def pipeline_of(run: Run, cluster: Cluster, software: Software) -> Pipeline:
    """Seconds of every chunk and hop of this run."""
    sides = [_sides(chunk, run, cluster, software) for chunk in chunks(run, software)]
    slow = slowest(run.layout.world, cluster)
    return Pipeline(
        run.layout.pp,
        tuple(slow * sum(_elapsed(cost, run, cluster) for cost in forward) for forward, _ in sides),
        tuple(slow * sum(_elapsed(cost, run, cluster) for cost in backward) for _, backward in sides),
        _hops(run, cluster, software),
        blocking=not software.overlap_pipeline,
    )


def _sides(chunk: Chunk, run: Run, cluster: Cluster, software: Software) -> tuple[list[Cost], list[Cost]]:
    """Costs of a chunk forward and backward, each part by itself: between parts the host meets the GPU."""
    one = parts.layer(run.shape, cluster, software)
    ends = [parts.embedding(run.shape, cluster)] if chunk.embedding else []
    ends += [parts.head(run.shape, cluster, software)] if chunk.head else []
    forward = [one.forward.times(chunk.layers), *(end.forward for end in ends)]
    return forward, [one.backward.plus(one.recompute).times(chunk.layers), *(end.backward for end in ends)]


def _elapsed(cost: Cost, run: Run, cluster: Cluster) -> float:
    """Seconds of a part: its GPU's or its host's, whichever is longer, and a sixth-power mean where they are near.

    Hosts on two sockets wait for one another in every collective.
    """
    skew = cluster.measured.socket_skew if run.layout.tp > cluster.node.socket_gpus else 1.0
    host = cost.launches * cluster.measured.launch_seconds * skew
    return float((cost.busy**TOGETHER + host**TOGETHER) ** (1 / TOGETHER))


def slowest(gpus: int, cluster: Cluster) -> float:
    """How much longer the slowest of so many GPUs takes than the slowest of a node, whose time the rest describes.

    The largest of N normal deviates lies near sqrt(2 ln N) standard deviations.
    """
    node = cluster.node.gpus
    return 1 + cluster.measured.spread * (sqrt(2 * log(max(gpus, node))) - sqrt(2 * log(node)))


def _hops(run: Run, cluster: Cluster, software: Software) -> tuple[float, ...]:
    """The hop after each chunk; an interleaved pipeline goes from its last stage to its first again."""
    pp, total = run.layout.pp, run.layout.pp * run.interleave
    if pp == 1:
        return (0.0,) * total
    size = run.shape.width * run.shape.repeated
    scatter = software.scatter_pipeline and not run.sequence_parallel
    between = [network.hop(cluster, run.layout, s, size, scatter) for s in range(pp - 1)]
    return tuple([*between, max(between)] * run.interleave)[:total]


def _finish(run: Run, cluster: Cluster, software: Software, pipeline: Pipeline, timeline: Timeline) -> Prediction:
    """From the last backward to the updated weights."""
    pp, shape = run.layout.pp, run.shape
    held = [stage_parameters(run, software, stage) for stage in range(pp)]
    around = network.data_ring(cluster, run.layout)
    scattered = run.zero and software.reduce_scatter
    reduced = [
        around.gather(shape.gradient_bytes * n) if scattered else around.all_reduce(shape.gradient_bytes * n)
        for n in held
    ]
    gathered = around.gather(shape.width * max(held)) if run.zero else 0.0
    if software.overlap_gradients:  # beside the last backward pass through the stage, and the next step's first forward
        reduced = [max(0.0, seconds - sum(pipeline.backward[s::pp])) for s, seconds in enumerate(reduced)]
        gathered = max(0.0, gathered - min(sum(pipeline.forward[s::pp]) for s in range(pp)))
    ready = [done + seconds for done, seconds in zip(timeline.done, reduced, strict=True)]
    agreed = max(*ready, max(ready[0], ready[-1]) + _tied_seconds(run, cluster)) if pp > 1 else ready[0]
    share = run.layout.dp if run.zero else 1
    bandwidth = cluster.gpu.memory_bandwidth * cluster.measured.memory
    update = max(held) / share * OPTIMIZER_BYTES / bandwidth
    data = agreed - timeline.seconds + gathered
    breakdown = _broken_down(Priced(run, cluster, software), timeline, data, update)
    return Prediction(agreed + update + gathered, breakdown, pipeline)


def _broken_down(priced: Priced, timeline: Timeline, data: float, update: float) -> Breakdown:
    """The busiest stage's step by what it did; what it neither computed nor sent is the bubble."""
    run, cluster, software = priced
    busiest = max(range(run.layout.pp), key=lambda stage: timeline.computing[stage])
    own = chunks(run, software)[busiest :: run.layout.pp]
    costs = [cost for chunk in own for side in _sides(chunk, run, cluster, software) for cost in side]
    slow = slowest(run.layout.world, cluster) * run.micro_batches
    again = parts.layer(run.shape, cluster, software).recompute
    recompute = slow * sum(chunk.layers for chunk in own) * (again.products + again.memory)
    tensor = slow * sum(cost.collectives for cost in costs)
    busy = slow * sum(cost.busy for cost in costs)
    computing, p2p = timeline.computing[busiest], timeline.hopping[busiest]
    return Breakdown(
        compute=busy - tensor - recompute,
        recompute=recompute,
        tensor_comms=tensor,
        launch_gaps=computing - busy,
        p2p=p2p,
        bubble=timeline.seconds - computing - p2p,
        data_comms=data,
        optimizer=update,
    )


def stage_parameters(run: Run, software: Software, stage: int) -> int:
    """Parameters that each rank of a stage holds, copies of the tied table included."""
    model, layout = run.model, run.layout
    total = 0
    for chunk in chunks(run, software)[stage :: layout.pp]:
        total += chunk.layers * _held(model, layout.tp, "layers.0")
        total += _held(model, layout.tp, "embedding") if chunk.embedding else 0
        total += _held(model, layout.tp, "final_norm") if chunk.head else 0
        total += _held(model, layout.tp, "head") if chunk.head and layout.pp > 1 else 0
    return total


@lru_cache(maxsize=4096)
def _held(model: ModelConfig, tp: int, part: str) -> int:
    return held_of_part(model, Layout(tp=tp), part)


def _tied_seconds(run: Run, cluster: Cluster) -> float:
    """First and last stage sum the gradients of the token table."""
    layout, model = run.layout, run.model
    pair = network.ring(cluster, 2, layout.world - layout.tp * layout.dp)
    return pair.all_reduce(run.shape.gradient_bytes * model.vocabulary * model.hidden / layout.tp)
