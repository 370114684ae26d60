"""Predicts and breaks down the seconds of a step, from the costs of the parts and the simulated schedule.

    a chunk     its layers, plus embedding or head; mostly the slower of GPU and host
    the step    the simulated schedule; then every stage reduces its gradients, first and last stage sum those of the
                tied table, all ranks agree on the gradient norm, each updates its share, and the weights are gathered

The host runs ahead of the GPU while kernels are long; when they are short, the host's time counts.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import log, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import Layout, part_parameters, stages

from .costs import layer as layer_cost
from .costs import network
from .costs.activations import layer_bytes
from .costs.cost import OVERLAP_SHARE, exposed
from .simulation import Pipeline, Timeline, simulate

if TYPE_CHECKING:
    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.layout import Recompute

    from .costs.cost import Cost
    from .run import Run

OVERLAP_EXPONENT: Final = 6.0
"""Exponent of the norm of GPU and host time: the slower counts, and near a tie each sometimes waits for the other."""

OPTIMIZER_BYTES: Final = 34
"""Bytes of memory traffic per parameter in an update: gradient norm (4), fp32 Adam (28), cast (2)."""

MLP_DOWN: Final = 1 / 3
"""Share of the MLP's second matrix in the operations of a layer's weight gradients: 4 of 12 h²."""


class Breakdown(NamedTuple):
    """Seconds of a step by kind, at the busiest stage; they add up to the step."""

    compute: float
    recompute: float
    tensor_comms: float
    launch_gaps: float
    p2p: float
    bubble: float
    data_comms: float
    optimizer: float


class Prediction(NamedTuple):
    """Seconds of a step, their breakdown, and the simulated pipeline."""

    seconds: float
    breakdown: Breakdown
    pipeline: Pipeline


def chunks(run: Run) -> tuple[int, ...]:
    """Number of layers of each of the pp x interleave chunks into which the decoder is cut."""
    return _cut(run.model, run.layout.pp * run.interleave, run.recompute, run.is_ours)


def stage_layers(run: Run, stage: int) -> tuple[int, ...]:
    """Number of layers of each of a stage's chunks."""
    return chunks(run)[stage :: run.layout.pp]


@lru_cache(maxsize=1 << 12)
def _cut(model: ModelConfig, total: int, recompute: Recompute, balanced: bool) -> tuple[int, ...]:
    h, layer = model.hidden, 24 * model.hidden**2 + 4 * model.hidden * model.sequence
    # If the head costs less than a layer, the even cut is the balanced one, and much quicker to compute.
    if balanced and (model.layers % total or 2 * h + sum(model.outer_flops) >= layer):
        return tuple(len(s.layers) for s in stages(model, Layout(pp=total), recompute))
    # Evenly; the remainder goes to the middle stages, which have neither embedding nor head.
    each, over = divmod(model.layers, total)
    first = (total - over) // 2
    return tuple(each + (first <= c < first + over) for c in range(total))


@lru_cache(maxsize=1 << 12)
def predict(run: Run) -> Prediction:
    """Predict a step. The run must be possible (`run.run_error`); `memory` says whether it fits."""
    pipeline = build_pipeline(run)
    return _add_updates(run, pipeline, simulate(pipeline, run.orders()))


def lower_bound(run: Run) -> float:
    """Lower bound on the seconds of a step: the slowest stage's work plus one micro-batch through the stages before it.

    A stage cannot begin before a micro-batch has passed the chunks before it, and the step cannot end before the
    micro-batch has returned through them.
    """
    pipeline, pp = build_pipeline(run), run.layout.pp
    both = [f + b for f, b in zip(pipeline.forward, pipeline.backward, strict=True)]
    # Separate weight gradients may come last, long after backward has passed the earlier stages.
    work, before = both, both
    if pipeline.weights:
        work, before = [b + w for b, w in zip(both, pipeline.weights, strict=True)], [*pipeline.forward]
    hops = [2 * hop if pipeline.blocking else 0 for hop in (*pipeline.hops[: pp - 1], 0)]
    return max(run.micro_batches * (sum(work[s::pp]) + hops[s]) + sum(before[:s]) for s in range(pp))


def build_pipeline(run: Run) -> Pipeline:
    """Seconds of every chunk's passes and of every send in this run."""
    passes = zip(*(_chunk_costs(run, number) for number in range(run.layout.pp * run.interleave)), strict=True)
    slow = straggler_factor(run)
    hops = _hop_seconds(run)
    # A send that overlaps with computing takes multiprocessors from it, as every collective does.
    beside = [(1 - OVERLAP_SHARE) * hop if run.software.overlap_pipeline else 0.0 for hop in hops]
    forward, backward, weights = (
        tuple(slow * sum(_elapsed(cost, run) for cost in parts) for parts in of_kind) for of_kind in passes
    )
    return Pipeline(
        run.layout.pp,
        tuple(map(sum, zip(forward, beside, strict=True))),
        tuple(map(sum, zip(backward, beside, strict=True))),
        hops,
        blocking=not run.software.overlap_pipeline,
        weights=weights if run.splits_backward else None,
        copies=_copy_seconds(run) if run.offload_activations else None,
    )


def _copy_seconds(run: Run) -> tuple[float, ...]:
    """Seconds to copy each chunk's activations to the host, or back."""
    each = layer_bytes(run, run.recompute) / run.cluster.node.host_bandwidth
    return tuple(each * layers for layers in chunks(run))


def _chunk_costs(run: Run, number: int) -> tuple[list[Cost], list[Cost], list[Cost]]:
    """Costs of a chunk's forward, backward and deferred weight gradients, in parts: the host waits between parts."""
    shape, cut = run.shape, chunks(run)
    layer = layer_cost.layer(shape)
    ends = [layer_cost.embedding(shape)] if number == 0 else []
    ends += [layer_cost.head(shape)] if number == len(cut) - 1 else []
    forward = [layer.forward * cut[number], *(end.forward for end in ends)]
    backward, weights = layer.backward + layer.recompute, [layer.weights * cut[number]]
    if not run.splits_backward:
        backward, weights = backward + layer.weights, []
    return forward, [backward * cut[number], *(end.backward for end in ends)], weights


def _elapsed(cost: Cost, run: Run) -> float:
    """Seconds of a part: the longer of GPU and host time, smoothed near a tie by a norm of power `OVERLAP_EXPONENT`.

    Hosts on two sockets wait for each other in every collective.
    """
    skew = run.cluster.measured.socket_skew if run.layout.tp > run.cluster.node.socket_gpus else 1.0
    host = cost.launches * run.cluster.measured.launch_seconds * skew
    if run.software.blocks_launches:
        return cost.busy + host
    return float((cost.busy**OVERLAP_EXPONENT + host**OVERLAP_EXPONENT) ** (1 / OVERLAP_EXPONENT))


def straggler_factor(run: Run) -> float:
    """Time of the slowest of the run's GPUs relative to the slowest of one node, for which the other constants hold.

    The largest of N normal deviates is near sqrt(2 ln N) standard deviations.
    """
    node = run.cluster.node.gpus
    return 1 + run.cluster.measured.spread * (sqrt(2 * log(max(run.gpus, node))) - sqrt(2 * log(node)))


def _hop_seconds(run: Run) -> tuple[float, ...]:
    """Seconds of the send after each chunk; an interleaved pipeline also sends from its last stage to its first."""
    pp, total = run.layout.pp, run.layout.pp * run.interleave
    if pp == 1:
        return (0.0,) * total
    size = run.width * run.repeated
    scatter = run.software.scatter_pipeline and not run.sequence_parallel
    between = [network.hop(run, s, size, scatter) for s in range(pp - 1)]
    between = [seconds + run.software.hop_seconds for seconds in between]
    return tuple([*between, max(between)] * run.interleave)[:total]


def _add_updates(run: Run, pipeline: Pipeline, timeline: Timeline) -> Prediction:
    """Add the work after the schedule: gradient reduction, norm, update, weight gathering."""
    pp = run.layout.pp
    parameters = [stage_parameters(run, stage) for stage in range(pp)]
    ring = network.ring(run, run.layout.copies, run.layout.tp)  # what holds the same weights
    reduced, gathered = _data_seconds(run, ring, parameters, pipeline, timeline)
    ready = [done + seconds for done, seconds in zip(timeline.done, reduced, strict=True)]
    tied = _tied_seconds(run)
    if run.software.overlap_gradients and run.model.tied:  # the table's, once first and last stage have summed theirs
        tied += ring.gather(run.gradient_bytes * run.table)
    norm_known = max(*ready, max(ready[0], ready[-1]) + tied) if pp > 1 else ready[0]
    bandwidth = run.cluster.gpu.memory_bandwidth * run.cluster.measured.memory
    update = max(parameters) / run.state_shards * OPTIMIZER_BYTES / bandwidth
    # On every stage, the first micro-batch waits for the casts of the weights; each pass does for gathered weights'.
    casts = 2 * run.micro_batches if run.gathers_again else 1
    update += casts * run.model.layers * layer_cost.weight_cast_seconds(run)
    data = norm_known - timeline.seconds + gathered
    breakdown = _breakdown(run, timeline, data, update)
    return Prediction(norm_known + update + gathered, breakdown, pipeline)


def _data_seconds(
    run: Run, ring: network.Ring, parameters: list[int], pipeline: Pipeline, timeline: Timeline
) -> tuple[list[float], float]:
    """Seconds of each stage's gradient reduction after its work, and of gathering weights before the next step's work.

    Under FSDP every pass gathers and reduces layer by layer (`layer`), which leaves our engine the table: nothing hides
    its last reduction and first gather. In a pipeline this happens once per step; on every stage, the first micro-batch
    waits for the gathering that its forward pass does not hide.
    """
    pp, hidden = run.layout.pp, run.software.prefetch_share
    if run.zero > 1 and run.is_ours:
        gather, reduce = layer_cost.shard_seconds(run, run.table)
        whole = 0.0 if run.gathers_again else _exposed_by_chunk(run, ring, pipeline, timeline)[1]
        return [hidden * reduce], whole + hidden * gather
    if run.zero > 1:
        if pp == 1:
            return [0.0], 0.0
        both = [layer_cost.shard_seconds(run, number) for number in parameters]
        forward = [sum(pipeline.forward[stage::pp]) for stage in range(pp)]
        gathered = (exposed(gather, f, hidden) for (gather, _), f in zip(both, forward, strict=True))
        return [reduce for _, reduce in both], sum(gathered)
    if run.software.overlap_gradients:
        return _exposed_by_chunk(run, ring, pipeline, timeline)
    reduction = ring.gather if run.zero and run.software.reduce_scatter else ring.all_reduce
    weights = ring.gather(run.width * max(parameters)) if run.zero else 0.0
    return [reduction(run.reduced_bytes * number) for number in parameters], weights


def _exposed_by_chunk(
    run: Run, ring: network.Ring, pipeline: Pipeline, timeline: Timeline
) -> tuple[list[float], float]:
    """`_data_seconds` if buckets are reduced during backward.

    A chunk's buckets, of at least one parameter each, are reduced as its last pass fills them: first that of the last
    layer's second MLP matrix, last that of the first layer's qkv. Weights are gathered chunk by chunk, each due at the
    chunk's forward; in our engine each layer's are due at the layer's forward.
    """
    pp, cut = run.layout.pp, chunks(run)
    width, (columns, depth) = run.reduced_bytes, run.linears[0]
    last_bucket = ring.gather(width * columns * depth)
    late, gathered = [], 0.0
    starts = [0.0, *accumulate(f + hop for f, hop in zip(pipeline.forward, pipeline.hops, strict=True))]
    for stage in range(pp):
        own = range(stage, len(cut), pp)
        parameters = {c: cut[c] * _rank_parameters(run.model, run.layout.tp, "layers") for c in own}
        reduced = 0.0
        for chunk in sorted(own, key=lambda c: timeline.last_passes[c][1]):
            begin, end = timeline.last_passes[chunk]
            first_bucket = begin + (end - begin) * MLP_DOWN / cut[chunk]
            reduced = max(reduced, first_bucket) + ring.gather(width * parameters[chunk])
            reduced = max(reduced, end + last_bucket)
        late.append(reduced - timeline.done[stage])
        arrived = 0.0
        for chunk in own:
            has_table = chunk == 0 or (chunk == len(cut) - 1 and (pp > 1 or not run.model.tied))
            table = _rank_parameters(run.model, run.layout.tp, "head") if has_table else 0
            first = arrived + ring.gather(run.width * (parameters[chunk] / cut[chunk] + table))
            arrived += ring.gather(run.width * (parameters[chunk] + table))
            last = arrived
            if run.is_ours:  # all layers but one run before the last one's weights are needed
                last = max(first, arrived - pipeline.forward[chunk] * (1 - 1 / cut[chunk]))
            gathered = max(gathered, last - starts[chunk])
    return [max(0.0, seconds) for seconds in late], gathered if run.zero else 0.0


def _breakdown(run: Run, timeline: Timeline, data: float, update: float) -> Breakdown:
    """Seconds of the busiest stage by kind; the bubble is the time in which it neither computes nor sends."""
    busiest = max(range(run.layout.pp), key=lambda stage: timeline.computing[stage])
    numbers = range(busiest, run.layout.pp * run.interleave, run.layout.pp)
    costs = [cost for number in numbers for parts in _chunk_costs(run, number) for cost in parts]
    slow = straggler_factor(run) * run.micro_batches
    recompute_cost = layer_cost.layer(run.shape).recompute
    recompute = slow * sum(stage_layers(run, busiest)) * (recompute_cost.products + recompute_cost.memory)
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


def stage_parameters(run: Run, stage: int) -> int:
    """Parameters per rank of a stage, including copies of the tied table."""
    model, layout = run.model, run.layout
    parts = ["embedding"] if stage == 0 else []
    if stage == layout.pp - 1:
        parts += ["final_norm"] if layout.pp == 1 and model.tied else ["final_norm", "head"]
    ends = sum(_rank_parameters(model, layout.tp, part) for part in parts)
    return sum(stage_layers(run, stage)) * _rank_parameters(model, layout.tp, "layers") + ends


@lru_cache(maxsize=4096)
def _rank_parameters(model: ModelConfig, tp: int, part: str) -> int:
    """Parameters per rank of a part, or of one of the ``layers``."""
    return part_parameters(model, Layout(tp=tp), part)


def _tied_seconds(run: Run) -> float:
    """Seconds to sum the token table's gradients over first and last stage."""
    layout = run.layout
    if layout.pp == 1 or not run.model.tied:
        return 0.0
    pair = network.ring(run, 2, run.gpus - layout.tp * layout.copies)
    return pair.all_reduce(run.gradient_bytes * run.table)
