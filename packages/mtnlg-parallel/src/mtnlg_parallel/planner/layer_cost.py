"""Cost of a decoder's parts on one rank: matrix products, memory traffic, collectives, and host operations.

n = s b tokens of a micro-batch, hidden h, t-way tensor parallelism, a heads. Memory traffic an element is that of
Megatron's kernels (2 bytes to read or write an activation, 1 for a dropout mask). Activations that tensor parallelism
replicates have n h elements a rank, n h / t under sequence parallelism; those it slices have n h / t.

Phases: ``forward``; ``backward`` without recomputation and products of weight gradients; ``weights``, these products;
``recompute``, the part of the forward pass that is run again.

A matrix product [m, k] x [k, n] is cut into a x b tiles of its result. P streaming multiprocessors of R operations a
second take tiles in waves:

    seconds = ceil(tiles / P) * 2 a b (k + FILL) / (R * efficiency)

``FILL`` is the fixed cost of a tile (first load, last store) in units of depth. A nearly empty last wave costs a whole
one (wave quantization). Smaller tiles fill it better but sustain less: each byte on chip serves a b / (a + b)
operations. Where tiles are few, k is split and the parts are summed in fp32. As a BLAS does, take the fastest tile.
No product is faster than its bytes over the memory bandwidth.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import head_chunk

from . import network

if TYPE_CHECKING:
    from .cluster import Cluster, Software
    from .run import Shape


SOFTMAX_ROW: Final = 2048
"""Longest row that Megatron's fused softmax keeps in registers."""

SOFTMAX_WARPS: Final = 4
"""The fused softmax is used only where batch x heads on a rank is a multiple of this (rows of a block)."""

FLASH: Final = 0.75
"""Share of the matrix product rate that flash attention sustains (Dao 2023: 190 of 250 TFLOP/s on an A100)."""

OVERLAP_SHARE: Final = 0.5
"""Share of an overlapped collective that costs no time; the rest takes processors and bandwidth from the product."""

LOSS_SHARE: Final = 0.45
"""Share of element-wise bandwidth that the fp32 operations of the cross entropy (with argmax) reach."""


LONG_ROW: Final = 1024
"""Above this row length the fused softmax runs half the warps (registers) and takes twice the time an element."""

WEIGHT_LAUNCHES: Final = 8
"""Host operations of a layer's four products of weight gradients: a view and a product each."""

TABLE_BYTES: Final = 12
"""Bytes a token table parameter and micro-batch: its dense gradient is allocated, zeroed, copied, then added."""


class Cost(NamedTuple):
    """Seconds of one rank's GPU by kind of work, and the number of operations its host launches."""

    products: float = 0.0
    memory: float = 0.0
    collectives: float = 0.0
    launches: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """The sum of both."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, n: float) -> Cost:
        """N times this cost."""
        return Cost(*(a * n for a in self))

    @property
    def busy(self) -> float:
        """Seconds the GPU computes or communicates."""
        return self.products + self.memory + self.collectives


NO_COST: Final = Cost()


class Phases(NamedTuple):
    """Cost of one micro-batch by phase."""

    forward: Cost
    backward: Cost
    recompute: Cost
    weights: Cost = NO_COST


@lru_cache(maxsize=4096)
def layer(shape: Shape, cluster: Cluster, software: Software) -> Phases:
    """Cost of one decoder layer on a rank."""
    core = _attention(shape, cluster, software, backward=False)
    forward = _forward(shape, cluster, software).plus(core)
    backward = _backward(shape, cluster, software).plus(_attention(shape, cluster, software, backward=True))
    recompute = {"none": NO_COST, "selective": core, "full": forward}[shape.recompute]
    return Phases(
        forward, backward, recompute, Cost(_weight_seconds(shape, cluster, software), launches=WEIGHT_LAUNCHES)
    )


def _forward(shape: Shape, cluster: Cluster, software: Software) -> Cost:
    """Forward cost of a layer without the attention core."""
    fused, sliced = software.fused_kernels, shape.elements / shape.tp
    products = sum(gemm_seconds(cluster, shape.tokens, columns, depth) for columns, depth in shape.linears)
    # Twice: norm (4) and bias + dropout + residual (reads 2, writes output and mask: 7; apart 4 + 5 + 6).
    moved = 2 * (4 + (7 if fused else 15)) * shape.repeated
    # Bias + GeLU over 4h (4; apart 8), bias over 3h (4), the context made contiguous (4).
    moved += ((4 if fused else 8) * 4 + 12 + 4) * sliced
    memory = _memory_seconds(cluster, moved * shape.width / 2, 12 if fused else 16)
    collectives = _collectives(shape, cluster, 2)
    if software.overlap_forward:
        overlapped = OVERLAP_SHARE * min(collectives.collectives, products)
        collectives = collectives._replace(collectives=collectives.collectives - overlapped)
    return Cost(products, memory, 0.0, 17 if fused else 24).plus(collectives)


def _backward(shape: Shape, cluster: Cluster, software: Software) -> Cost:
    """Backward cost of a layer without the attention core: input gradients, bias sums, accumulation."""
    fused, sliced = software.fused_kernels, shape.elements / shape.tp
    inputs = sum(gemm_seconds(cluster, shape.tokens, depth, columns) for columns, depth in shape.linears)
    # Twice: norm (6, its parameters 4), dropout (5), bias sum (2), two gradients of the residual stream added (6).
    moved = 2 * (10 + 5 + 2 + 6 + (0 if fused else 4)) * shape.repeated
    # GeLU (6 over 4h; apart 10), bias sums (2 over 7h), gradients of q, k, v put together (4 over 3h), context (4).
    moved += ((6 if fused else 10) * 4 + 14 + 12 + 4) * sliced
    added = 0 if software.fused_accumulation else shape.added_bytes * 12 * shape.hidden**2 / shape.tp
    memory = _memory_seconds(cluster, moved * shape.width / 2 + added, 42 if fused else 50)
    exposed = _exposed_collectives(shape, cluster, software, inputs)
    return Cost(inputs, memory, 0.0, (42 if fused else 50) - WEIGHT_LAUNCHES).plus(exposed)


def _weight_seconds(shape: Shape, cluster: Cluster, software: Software) -> float:
    extra = 6 if software.fused_accumulation else 0
    return sum(
        gemm_seconds(cluster, columns, depth, shape.tokens, extra_bytes=extra) for columns, depth in shape.linears
    )


def _exposed_collectives(shape: Shape, cluster: Cluster, software: Software, inputs: float) -> Cost:
    """Backward collectives that nothing overlaps; sequence parallelism gathers two inputs once more.

    Sums of input gradients, and these gathers, go beside weight gradients. Where those are put off, the gathers alone
    have a product beside them, that of an input gradient.
    """
    collectives = _collectives(shape, cluster, 3 if shape.sequence_parallel else 2)
    if not software.overlap_tensor:
        return collectives
    if shape.splits_backward:
        overlapped = min(_collectives(shape, cluster, int(shape.sequence_parallel)).collectives, inputs)
    else:
        overlapped = min(_collectives(shape, cluster, 2).collectives, _weight_seconds(shape, cluster, software))
    return collectives._replace(collectives=collectives.collectives - OVERLAP_SHARE * overlapped)


def _attention(shape: Shape, cluster: Cluster, software: Software, backward: bool) -> Cost:
    """Cost of the attention core: scores, softmax, dropout, context."""
    s, d, batch = shape.sequence, shape.hidden // shape.heads, shape.micro_batch * shape.heads // shape.tp
    if software.flash_attention:
        operations = (2.5 if backward else 1.0) * 4 * batch * s * s * d / 2  # half: what the causal mask leaves
        rate = cluster.gpu.peak_flops * cluster.measured.gemm * FLASH
        return Cost(operations / rate, _memory_seconds(cluster, 0.0, 1), 0.0, 6 if backward else 3)
    shapes = ((s, d, s), (s, s, d), (s, d, s), (s, d, s)) if backward else ((s, s, d), (s, d, s))
    products = sum(gemm_seconds(cluster, *each, batch=batch) for each in shapes)
    fused = software.fused_kernels and s <= SOFTMAX_ROW and batch % SOFTMAX_WARPS == 0
    long = 2 if s > LONG_ROW else 1
    scores = batch * s * s * shape.width / 2
    if backward:  # Dropout (5), softmax (6; apart: two casts, product and sum in fp32, mask, scale).
        return Cost(
            products, _memory_seconds(cluster, (5 + (6 * long if fused else 26)) * scores, 6), 0.0, 9 if fused else 14
        )
    # Softmax (4; apart: scale, mask, cast, softmax in fp32, cast), dropout (5).
    return Cost(
        products, _memory_seconds(cluster, (5 + (4 * long if fused else 28)) * scores, 4), 0.0, 9 if fused else 16
    )


def _collectives(shape: Shape, cluster: Cluster, number: int) -> Cost:
    """``number`` all-reduces of activations; under sequence parallelism reduce-scatter + all-gather, of equal cost."""
    ring = network.ring(cluster, shape.tp, 1)
    launches = 2 * number if shape.tp > 1 else 0
    return Cost(0.0, 0.0, number * ring.all_reduce(shape.width * shape.elements), launches)


def _memory_seconds(cluster: Cluster, size: float, kernels: int) -> float:
    measured = cluster.measured
    return size / (cluster.gpu.memory_bandwidth * measured.memory) + kernels * measured.kernel_seconds


@lru_cache(maxsize=4096)
def embedding(shape: Shape, cluster: Cluster) -> Phases:
    """Cost of the embedding: lookup, sum, dropout; backward writes and adds the table's dense gradient."""
    table = (shape.width + shape.added_bytes) * ceil(shape.vocabulary / shape.tp) * shape.hidden
    forward = Cost(0.0, _memory_seconds(cluster, 15 * shape.elements, 8), 0.0, 20)
    backward = Cost(0.0, _memory_seconds(cluster, 15 * shape.elements + table, 8), 0.0, 20)
    return Phases(forward.plus(_collectives(shape, cluster, 1)), backward, NO_COST)


@lru_cache(maxsize=4096)
def head(shape: Shape, cluster: Cluster, software: Software) -> Phases:
    """Cost of final norm, logits and fp32 cross entropy; never recomputed."""
    n, h, rows = shape.tokens, shape.hidden, ceil(shape.vocabulary / shape.tp)
    fused = software.fused_accumulation and software.fused_head
    extra = 6 if fused else 0
    added = (TABLE_BYTES + (0 if fused else shape.added_bytes)) * rows * h
    forward_bytes, backward_bytes = _loss_bytes(shape, software)
    if software.chunked_head:  # each chunk after the first adds to dW; dW and dx are scaled at the end
        head_chunks = ceil(n / head_chunk(n, h, rows))
        added += 2 * shape.width * (head_chunks * rows * h + shape.elements)
    forward = Cost(
        gemm_seconds(cluster, n, rows, h),
        _memory_seconds(cluster, forward_bytes * n * rows + 4 * shape.elements, 12),
        0.0,
        25,
    )
    products = gemm_seconds(cluster, n, h, rows) + gemm_seconds(cluster, rows, h, n, extra_bytes=extra)
    backward = Cost(
        products, _memory_seconds(cluster, backward_bytes * n * rows + 10 * shape.elements + added, 12), 0.0, 25
    )
    return Phases(forward, backward.plus(_collectives(shape, cluster, 1)), NO_COST)


def _loss_bytes(shape: Shape, software: Software) -> tuple[float, float]:
    """Memory traffic of the loss a logit, forward and backward, scaled to full element-wise bandwidth."""
    if software.chunked_head and software.fused_kernels:  # Read; read and replaced.
        return shape.width, 2.0 * shape.width
    if software.chunked_head:
        # Cast (6), maximum (4), difference (8), exponential (8), sum (4); cast, … product (8), cast.
        return 30 / LOSS_SHARE, 36 / LOSS_SHARE
    # Cast (6), maximum (4), difference (8), exponential (8), sum (4); quotient (8), incoming gradient (8), cast (6).
    return 30 / LOSS_SHARE, 22 / LOSS_SHARE


TILES: Final = ((256, 128, 1.0), (128, 128, 0.93), (256, 64, 0.87), (128, 64, 0.80), (64, 64, 0.62))
"""Tile height, width, and rate relative to the largest tile; each also transposed."""

FILL: Final = 16

SPLITS: Final = (1, 2, 4, 8)
HALF: Final = 2
SINGLE: Final = 4


def gemm_seconds(cluster: Cluster, m: int, n: int, k: int, *, batch: int = 1, extra_bytes: int = 0) -> float:
    """Seconds of ``batch`` 16-bit products [m, k] x [k, n]; ``extra_bytes`` more traffic an element of the result."""
    gpu, measured = cluster.gpu, cluster.measured
    rate = gpu.peak_flops / gpu.processors * measured.gemm
    bandwidth = gpu.memory_bandwidth * measured.memory
    return _cached_gemm_seconds(m, n, k, batch, extra_bytes, gpu.processors, rate, bandwidth)


@lru_cache(maxsize=1 << 16)
def _cached_gemm_seconds(  # noqa: PLR0917  (cached by these figures alone)
    m: int, n: int, k: int, batch: int, extra: int, processors: int, rate: float, bandwidth: float
) -> float:
    moved = batch * (HALF * (m * k + k * n + m * n) + extra * m * n) / bandwidth
    best = float("inf")
    for height, width, sustained in TILES:
        for rows, columns in {(height, width), (width, height)}:
            tiles = batch * ceil(m / rows) * ceil(n / columns)
            for split in SPLITS:
                if split > 1 and (k // split < 4 * columns or tiles >= processors):
                    break
                waves = ceil(tiles * split / processors)
                busy = waves * 2 * rows * columns * (k / split + FILL) / (rate * sustained)
                summed = 2 * split * SINGLE * m * n * batch / bandwidth if split > 1 else 0.0
                best = min(best, busy + summed)
    return max(best, moved)
