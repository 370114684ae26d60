"""Cost of a decoder's parts on one rank: matrix products, memory traffic, collectives, and host operations.

Symbols: n tokens of a micro-batch on a rank, hidden size h, t-way tensor parallelism. Memory traffic per element is
that of the programs' kernels (2 bytes to read or write an activation, 1 for a dropout mask). Activations that tensor
parallelism replicates have n h elements per rank, n h / t under sequence parallelism; those it slices have n h / t.

Phases: ``forward``; ``backward`` without recomputation and products of weight gradients; ``weights``, these products;
``recompute``, the part of the forward pass that is run again.

Under FSDP a layer's weights are gathered while the previous layer computes, in both passes, and its gradients are
reduced while the next layer computes: the longer of the two counts, plus a share of the other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import forward_pieces, head_chunk
from mtnlg_parallel.planner.programs import ENGINES

from . import network
from .attention import attention
from .cost import OVERLAP_SHARE, Cost, Phases, exposed, memory_seconds
from .products import gemm_seconds

if TYPE_CHECKING:
    from mtnlg_parallel.planner.run import Run


LOSS_SHARE: Final = 0.45
"""Share of element-wise bandwidth that the fp32 cross entropy (with argmax) reaches. Fitted: docs/decisions/0061."""

TABLE_BYTES: Final = 12
"""Traffic in bytes per token table parameter and micro-batch: a dense gradient is allocated, zeroed, copied, added."""

CAST_BYTES: Final = 4
"""Traffic in bytes per element of a cast from 16 to 8 bits: read, written, and written transposed."""

SCALED_CAST_BYTES: Final = 7
"""The same if the scale comes from the tensor itself: read for the maximum, cast, and copied transposed."""

ONE_CAST_BYTES: Final = 6
"""The same if one kernel writes both results; one byte less if it writes only one."""

ONE_CAST_KERNELS: Final = 3
"""Kernels of such a cast: zero, maximum, both results."""

TRANSPOSE_BYTES: Final = 2
"""Traffic in bytes per 8-bit element that is transposed or copied."""

APART_SUM: Final = 3
"""Memory accesses per element of a product if a separate operation adds it to the sum."""

COPIED_SHARE: Final = 0.68
"""Hidden share of an overlapped collective that consists of copies, which take no multiprocessors."""


class Kernels(NamedTuple):
    """Element-wise kernels of a layer: bytes moved per element, number of kernels, and operations the host launches.

    ``residual``: bias + dropout + sum; ``plain_residual``: the same without dropout; ``inner``: bias + GeLU; ``gate``:
    SiLU and product, per element of the product; ``norm``: a norm, in backward with its parameters' gradients;
    ``rotary``: q and k. Pairs are forward and backward.
    """

    residual: tuple[int, int]
    plain_residual: tuple[int, int]
    inner: tuple[int, int]
    gate: tuple[int, int]
    norm: tuple[int, int]
    rotary: int
    number: tuple[int, int]
    launches: tuple[int, int]


FUSED: Final = Kernels((7, 13), (6, 8), (4, 6), (6, 10), (4, 10), 4, (12, 42), (17, 42))
APART: Final = Kernels((15, 17), (10, 8), (8, 10), (10, 16), (4, 10), 4, (16, 50), (24, 50))

# A norm is a cast, square, mean, division, weighting and cast, in fp32 between (6 + 8 + 4 + 8 + 8 + 6 bytes); q and k
# are cast, rotated as complex numbers and cast (6 + 8 + 6 bytes).
COMPOSITE: Final = APART._replace(norm=(40, 92), rotary=20, number=(34, 82), launches=(42, 82))

WEIGHT_LAUNCHES: Final = 8
"""Operations that the host launches for a layer's four weight-gradient products: a view and a product each."""


@lru_cache(maxsize=4096)
def layer(run: Run) -> Phases:
    """Cost of one decoder layer on a rank."""
    core = attention(run, backward=False)
    forward = _forward(run) + core
    backward = _backward(run) + attention(run, backward=True)
    weights = Cost(_weight_seconds(run), launches=WEIGHT_LAUNCHES)
    phases = Phases(forward, backward, _recomputed(run, forward, core), weights)
    if run.gathered_over == 1:
        return phases
    gather, reduce = shard_seconds(run, run.layer_parameters)
    return _beside(run, phases, gather, reduce + (gather if run.gathers_again else 0.0))


def _beside(run: Run, phases: Phases, forward: float, backward: float) -> Phases:
    """Phases with the seconds of FSDP's collectives that the computing of each does not hide."""
    computing = phases.backward.busy + phases.weights.busy + phases.recompute.busy
    share = run.software.prefetch_share
    return phases._replace(
        forward=phases.forward + Cost(collectives=exposed(forward, phases.forward.busy, share)),
        backward=phases.backward + Cost(collectives=exposed(backward, computing, share)),
    )


def _recomputed(run: Run, forward: Cost, core: Cost) -> Cost:
    if run.recompute == "operators":  # all but attention and every other product
        kept = replace(core, memory=0.0) + Cost(products=(forward.products - core.products) / 2)
        return forward + kept * -1
    if run.recompute == "full" and run.is_ours and run.software.fused_kernels:
        columns, depth = run.linears[-1]
        last = gemm_seconds(run.cluster, run.tokens, columns, depth, width=run.product_width)
        return replace(forward, products=forward.products - last)
    return {"none": Cost(), "selective": core, "full": forward, "alternate": forward * 0.5}[run.recompute]


def _forward(run: Run) -> Cost:
    """Forward cost of a layer without the attention core."""
    in_pieces = run.is_ours and run.sequence_parallel and run.product_width > 1
    pieces = forward_pieces(run.layout.tp, run.tokens) if in_pieces else 1
    products = pieces * sum(
        gemm_seconds(run.cluster, run.tokens // pieces, columns, depth, width=run.product_width)
        for columns, depth in run.linears
    )
    kernels = _kernels(run)
    memory = _traffic_seconds(run, 0)
    collectives = tensor_collectives(run, 2 - _saved_by_8_bits(run))
    if run.software.overlap_forward:
        collectives = replace(collectives, collectives=exposed(collectives.collectives, products, COPIED_SHARE))
    elif pieces > 1:  # all but the first gather, and all but the last sum
        first = collectives.collectives / pieces
        beside = exposed(collectives.collectives - first, products)
        launches = pieces * collectives.launches + (pieces - 1) * len(run.linears)
        collectives = replace(collectives, collectives=first + beside, launches=launches)
    cost = Cost(products, memory, launches=kernels.launches[0]) + collectives
    return cost + _casts(run, 0) + _exchange(run)


def _backward(run: Run) -> Cost:
    """Backward cost of a layer without the attention core: input gradients, bias sums, accumulation."""
    inputs = sum(
        gemm_seconds(run.cluster, run.tokens, depth, columns, width=run.product_width) for columns, depth in run.linears
    )
    kernels = _kernels(run)
    # FSDP reduces the gradients of every micro-batch first, and adds only the reduced shards.
    added = 0 if run.software.fused_accumulation or run.gathered_over > 1 else run.added_bytes * run.layer_parameters
    if sums_apart(run):
        added = APART_SUM * run.reduced_bytes * run.layer_parameters
    memory = _traffic_seconds(run, 1) + memory_seconds(run, added, 0)
    collectives = _exposed_collectives(run, inputs)
    cost = Cost(inputs, memory, launches=kernels.launches[1] - WEIGHT_LAUNCHES) + collectives
    return cost + _casts(run, 1) + _exchange(run)


def sums_apart(run: Run) -> bool:
    """Whether weight gradients of 8-bit factors are added by separate operations, not in the product."""
    return run.software.fused_accumulation and run.casts_once


def _exchange(run: Run) -> Cost:
    """Collectives between ranks that share a key-value head (`mtnlg_parallel.model.shared_heads`).

    Other programs replicate the head's weights on each of these ranks instead.
    """
    sharing = run.layout.tp // run.model.kv_heads
    if sharing < 2 or not run.is_ours:
        return Cost()
    features = (run.model.heads // run.model.kv_heads + 2) * run.model.head_size
    seconds = network.ring(run, sharing, 1).gather(run.width * run.tokens * features)
    return Cost(collectives=seconds, launches=2)


def _kernels(run: Run) -> Kernels:
    return FUSED if run.software.fused_kernels else COMPOSITE if run.software.eager else APART


def _traffic_seconds(run: Run, phase: int) -> float:
    """Seconds of a layer's element-wise kernels, in the forward (0) or backward (1) phase."""
    model, rank_tokens, kernels = run.model, run.tokens / run.layout.tp, _kernels(run)
    qkv = (model.heads + 2 * model.kv_heads) * model.head_size
    residual = (kernels.residual if model.dropout else kernels.plain_residual)[phase]
    whole = 2 * (kernels.norm[phase] + residual) * run.repeated
    sliced: float = (kernels.gate if model.gated else kernels.inner)[phase] * model.ffn
    sliced += 4 * model.heads * model.head_size  # the context made contiguous, and its gradient
    if model.bias:  # over qkv (4); the sums of their gradients (2)
        sliced += 2 * (model.ffn + qkv) if phase else 4 * qkv
    if phase:  # gradients of q, k, v put together
        sliced += 4 * qkv
    rotating = model.mean_of_layers(model.rotates)
    sliced += rotating * kernels.rotary * (model.heads + model.kv_heads) * model.head_size
    moved = whole + sliced * rank_tokens
    return memory_seconds(run, moved * run.width / 2, kernels.number[phase])


def _casts(run: Run, phase: int) -> Cost:
    """Casts to 8 bits: of the four products' inputs in forward, of their output gradients in backward.

    An input's cast also writes the transpose that its weight gradient needs. For a gathered input under sequence
    parallelism, only the rank's rows are kept, and backward makes the transpose. Our weights are cast once per step
    (`weight_cast_seconds`).
    """
    if run.product_width > 1:
        return Cost()
    columns, depths = (sum(widths) * run.tokens for widths in zip(*run.linears, strict=True))
    if run.is_ours:
        repeated = 2 * run.elements if run.sequence_parallel else 0  # inputs: of qkv, and of the MLP
        number = ONE_CAST_KERNELS * len(run.linears) + (2 if repeated else 0)
        if phase:
            moved = ONE_CAST_BYTES * columns + TRANSPOSE_BYTES * repeated
        else:
            moved = ONE_CAST_BYTES * depths - repeated + TRANSPOSE_BYTES * repeated / run.layout.tp
        return Cost(memory=memory_seconds(run, moved, number), launches=number)
    moved = columns if phase else depths
    if phase == 0 or run.gathered_over > 1:  # weights of every micro-batch, with FSDP as often as they are gathered
        moved += run.layer_parameters
    cast = SCALED_CAST_BYTES if run.software.eager else CAST_BYTES
    return Cost(memory=memory_seconds(run, cast * moved * run.width / 2, 0))


def weight_cast_seconds(run: Run) -> float:
    """Seconds per layer and step to cast weights to 8 bits and transpose them; 0 unless that is done once per step."""
    if not run.casts_once:
        return 0.0
    return memory_seconds(run, ONE_CAST_BYTES * run.layer_parameters, ONE_CAST_KERNELS * len(run.linears))


def _weight_seconds(run: Run) -> float:
    extra = 2 * run.reduced_bytes - 2 if run.software.fused_accumulation else 0
    extra = run.reduced_bytes - 2 if sums_apart(run) else extra
    return sum(
        gemm_seconds(run.cluster, columns, depth, run.tokens, extra_bytes=extra, width=run.product_width)
        for columns, depth in run.linears
    )


def _exposed_collectives(run: Run, inputs: float) -> Cost:
    """Backward collectives that nothing hides; sequence parallelism gathers two inputs again, possibly in 8 bits.

    Sums of input gradients and these gathers overlap with weight gradients; in our own engine, which defers a weight
    gradient for it, gathers of output gradients too. If all weight gradients are deferred, only these gathers overlap,
    with a product for an input gradient.
    """
    in_8_bits = run.casts_once or _saved_by_8_bits(run) > 0
    again = 0.5 if in_8_bits else 1.0
    number = 2 + again - _saved_by_8_bits(run) if run.sequence_parallel else 2
    collectives = tensor_collectives(run, number)
    if not run.software.overlap_tensor:
        return collectives
    if run.splits_backward:
        number, beside = again if run.sequence_parallel else 0, inputs
    else:
        outputs = run.software.name == ENGINES["pipeline"]  # whose gradients are gathered beside a product that waits
        number = 1 + again + outputs if run.sequence_parallel else 2
        beside = _weight_seconds(run)
    overlapped = tensor_collectives(run, number).collectives
    hidden = overlapped - exposed(overlapped, beside, COPIED_SHARE if run.software.overlap_forward else OVERLAP_SHARE)
    return collectives + Cost(collectives=-hidden)


def _saved_by_8_bits(run: Run) -> float:
    """All-reduces that a pass saves if its two gathers move 8 bits instead of 16: each half of half an all-reduce."""
    return 0.5 if not run.is_ours and run.product_width <= 1 and run.sequence_parallel else 0.0


def tensor_collectives(run: Run, number: float) -> Cost:
    """``number`` all-reduces of activations; under sequence parallelism reduce-scatter + all-gather, of equal cost."""
    ring = network.ring(run, run.layout.tp, 1)
    launches = 2 * ceil(number) if run.layout.tp > 1 else 0
    return Cost(collectives=number * ring.all_reduce(run.width * run.elements), launches=launches)


def shard_seconds(run: Run, parameters: float) -> tuple[float, float]:
    """Seconds to gather a rank's ``parameters`` from their shards, and to reduce their gradients to the shards.

    Our engine gathers 16 bits, and under ZeRO-2 keeps whole weights.
    """
    shards, replicas = run.state_shards, run.layout.copies // run.state_shards
    ring = network.ring(run, shards, run.layout.tp)
    width = run.reduced_bytes
    reduce = ring.gather(width * parameters)
    if replicas > 1:
        reduce += network.ring(run, replicas, shards * run.layout.tp).all_reduce(width * parameters / shards)
    if run.is_ours:
        return ring.gather(run.width * parameters) if run.gathers_again else 0.0, reduce
    return ring.gather(run.product_width * parameters), reduce


@lru_cache(maxsize=4096)
def embedding(run: Run) -> Phases:
    """Cost of the embedding: lookup, sum, dropout; backward writes and adds the table's dense gradient."""
    rows, model = ceil(run.model.vocabulary / run.layout.tp), run.model
    fsdp = run.gathered_over > 1 and not run.is_ours
    table = (run.width + (0 if fsdp else run.added_bytes)) * rows * model.embedding_size
    forward, backward = (
        Cost(memory=memory_seconds(run, 15 * run.elements + more, 8), launches=20) for more in (0, table)
    )
    if run.gathered_over > 1 and (run.is_ours or not model.tied):
        gather, reduce = shard_seconds(run, rows * model.embedding_size)
        # Nothing runs before the first gather or after the last reduction; in our engine, other micro-batches' layers.
        share = 1.0 - run.software.prefetch_share if run.is_ours else 1.0
        forward += Cost(collectives=share * gather)
        backward += Cost(collectives=share * reduce)
    return Phases(forward + tensor_collectives(run, 1), backward)


@lru_cache(maxsize=4096)
def head(run: Run) -> Phases:
    """Cost of final norm, logits and fp32 cross entropy, without a narrow table's projection; never recomputed."""
    n, h, rows, width = run.tokens, run.model.embedding_size, ceil(run.model.vocabulary / run.layout.tp), run.width
    fused = (run.software.fused_accumulation or run.gathered_over > 1) and not run.is_ours
    extra = 2 * run.reduced_bytes - 2 if fused and run.gathered_over == 1 else 0
    table = TABLE_BYTES if run.model.tied else 0
    added = (table + (0 if fused else run.added_bytes)) * rows * h
    forward_bytes, backward_bytes = _loss_bytes(run)
    if run.is_ours:  # each chunk after the first adds to dW; dW and dx are scaled at the end
        head_chunks = ceil(n / head_chunk(n, h, rows))
        added += 2 * run.width * (head_chunks * rows + n) * h
    forward = Cost(
        gemm_seconds(run.cluster, n, rows, h, width=width),
        memory_seconds(run, forward_bytes * n * rows + 4 * run.elements, 12),
        launches=25,
    )
    products = gemm_seconds(run.cluster, n, h, rows, width=width)
    products += gemm_seconds(run.cluster, rows, h, n, extra_bytes=extra, width=width)
    backward = Cost(
        products, memory_seconds(run, backward_bytes * n * rows + 10 * run.elements + added, 12), launches=25
    )
    phases = Phases(forward, backward)
    if run.gathered_over > 1:
        gather, reduce = shard_seconds(run, rows * h)
        reduce *= not (run.is_ours and run.model.tied)  # once, as the embedding's
        phases = _beside(run, phases, gather, reduce)
    return phases._replace(backward=phases.backward + tensor_collectives(run, 1))


def _loss_bytes(run: Run) -> tuple[float, float]:
    """Memory traffic of the loss in bytes per logit, forward and backward, scaled to full element-wise bandwidth."""
    if run.software.fused_loss or (run.is_ours and run.software.fused_kernels):  # Read; read and replaced.
        return run.width + run.software.metric_bytes, 2.0 * run.width
    if run.is_ours:
        # Cast (6), maximum (4), difference (8), exponential (8), sum (4); in backward cast, … product (8), cast.
        return 30 / LOSS_SHARE, 36 / LOSS_SHARE
    # Cast (6), maximum (4), difference (8), exponential (8), sum (4); quotient (8), incoming gradient (8), cast (6).
    return 30 / LOSS_SHARE, 22 / LOSS_SHARE
