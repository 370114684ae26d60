"""What a decoder's parts cost one rank: products, bytes through memory, collectives, and operations of its host.

For n = s b tokens of a micro-batch, hidden h, t-way tensor parallelism and a heads. Bytes through memory an element are
those of the kernels as Megatron has them (an activation read or written 2 bytes, a dropout mask 1); what tensor
parallelism repeats on every rank is n h elements, or n h / t under sequence parallelism, and what it slices n h / t.

Phases: ``forward``; ``backward`` without recomputation; ``recompute`` the forward pass, or the part of it, done again.

A matrix product by its shape: tiles, waves over the processors, and the bytes that it reads and writes.

A product [m, k] x [k, n] is cut into tiles of the result; each tile is one processor's work, and processors take tiles
in waves. With P processors of R operations a second each, a tile of a x b

    seconds = ceil(tiles / P) * 2 a b (k + FILL) / (R * efficiency)

where ``FILL`` is the depth of products that loading the first and storing the last of a tile costs. A last wave that
is nearly empty costs a whole one: wave quantisation. Smaller tiles fill it better and sustain less, as each byte
brought on chip serves fewer products: a b / (a + b) operations a byte. Where tiles are few, k is split and the parts
are summed in fp32. A library chooses the quickest, and so do we. No product beats its bytes over the bandwidth.
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
"""Rows of one block of the fused softmax: batch x heads on a rank must be a multiple of it, or it is not used."""

FLASH: Final = 0.75
"""Share of a product's rate that attention on chip sustains (Dao 2023: 190 of 250 TFLOP/s on an A100)."""

HIDDEN: Final = 0.5
"""Share of a collective that runs beside a product and costs no time: it takes processors and bandwidth from it."""

LOSS_SHARE: Final = 0.45
"""Share of element-wise bandwidth that the fp32 chain of the cross entropy reaches, maximum with its index included."""


LONG_ROW: Final = 1024
"""Longer rows take the fused softmax so many registers that half as many warps run, and twice the time an element."""

TABLE_BYTES: Final = 12
"""A parameter of the token table, a micro-batch: its gradient is made whole, zeroed and copied before it is added."""


class Cost(NamedTuple):
    """Seconds of one rank's GPU by what it does, and how many operations its host launches meanwhile."""

    products: float = 0.0
    memory: float = 0.0
    collectives: float = 0.0
    launches: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """Both, one after the other."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, n: float) -> Cost:
        """So often."""
        return Cost(*(a * n for a in self))

    @property
    def busy(self) -> float:
        """Seconds that the GPU is busy, computing or communicating."""
        return self.products + self.memory + self.collectives


NOTHING: Final = Cost()


class Phases(NamedTuple):
    """Costs of one micro-batch."""

    forward: Cost
    backward: Cost
    recompute: Cost


@lru_cache(maxsize=4096)
def layer(shape: Shape, cluster: Cluster, software: Software) -> Phases:
    """One decoder layer on each of its ranks."""
    core = _attention(shape, cluster, software, backward=False)
    forward = _forward(shape, cluster, software).plus(core)
    backward = _backward(shape, cluster, software).plus(_attention(shape, cluster, software, backward=True))
    again = {"none": NOTHING, "selective": core, "full": forward}[shape.recompute]
    return Phases(forward, backward, again)


def _forward(shape: Shape, cluster: Cluster, software: Software) -> Cost:
    """All but attention's core."""
    fused, sliced = software.fused_kernels, shape.elements / shape.tp
    products = sum(gemm_seconds(cluster, shape.tokens, columns, depth) for columns, depth in shape.linears)
    # Twice: norm (4) and bias + dropout + residual (reads 2, writes output and mask: 7; apart 4 + 5 + 6).
    moved = 2 * (4 + (7 if fused else 15)) * shape.repeated
    # Bias + GeLU over 4h (4; apart 8), bias over 3h (4), the context made contiguous (4).
    moved += ((4 if fused else 8) * 4 + 12 + 4) * sliced
    memory = _traffic(cluster, moved * shape.width / 2, 12 if fused else 16)
    around = _collectives(shape, cluster, 2)
    if software.overlap_forward:
        around = around._replace(collectives=around.collectives - HIDDEN * min(around.collectives, products))
    return Cost(products, memory, 0.0, 17 if fused else 24).plus(around)


def _backward(shape: Shape, cluster: Cluster, software: Software) -> Cost:
    """All but attention's core: gradients of inputs, of weights, and what is added to what."""
    fused, sliced, n = software.fused_kernels, shape.elements / shape.tp, shape.tokens
    extra = 6 if software.fused_accumulation else 0
    inputs = sum(gemm_seconds(cluster, n, depth, columns) for columns, depth in shape.linears)
    weights = sum(gemm_seconds(cluster, columns, depth, n, extra_bytes=extra) for columns, depth in shape.linears)
    # Twice: norm (6, its parameters 4), dropout (5), bias sum (2), two gradients of the residual stream added (6).
    moved = 2 * (10 + 5 + 2 + 6 + (0 if fused else 4)) * shape.repeated
    # GeLU (6 over 4h; apart 10), bias sums (2 over 7h), gradients of q, k, v put together (4 over 3h), context (4).
    moved += ((6 if fused else 10) * 4 + 14 + 12 + 4) * sliced
    added = 0 if software.fused_accumulation else shape.added_bytes * 12 * shape.hidden**2 / shape.tp
    memory = _traffic(cluster, moved * shape.width / 2 + added, 42 if fused else 50)
    exposed = _exposed(shape, cluster, software, weights)
    return Cost(inputs + weights, memory, 0.0, 42 if fused else 50).plus(exposed)


def _exposed(shape: Shape, cluster: Cluster, software: Software, weights: float) -> Cost:
    """Collectives of the backward pass that nothing hides; sequence parallelism gathers two inputs once more."""
    wanted = _collectives(shape, cluster, 3 if shape.sequence_parallel else 2)
    if not software.overlap_tensor:
        return wanted
    beside = min(_collectives(shape, cluster, 2).collectives, weights)
    return wanted._replace(collectives=wanted.collectives - HIDDEN * beside)


def _attention(shape: Shape, cluster: Cluster, software: Software, backward: bool) -> Cost:
    """Scores, softmax, dropout and context."""
    s, d, batch = shape.sequence, shape.hidden // shape.heads, shape.micro_batch * shape.heads // shape.tp
    if software.flash_attention:
        operations = (2.5 if backward else 1.0) * 4 * batch * s * s * d / 2  # half: what the causal mask leaves
        rate = cluster.gpu.peak_flops * cluster.measured.gemm * FLASH
        return Cost(operations / rate, _traffic(cluster, 0.0, 1), 0.0, 6 if backward else 3)
    shapes = ((s, d, s), (s, s, d), (s, d, s), (s, d, s)) if backward else ((s, s, d), (s, d, s))
    products = sum(gemm_seconds(cluster, *each, batch=batch) for each in shapes)
    fused = software.fused_kernels and s <= SOFTMAX_ROW and batch % SOFTMAX_WARPS == 0
    long = 2 if s > LONG_ROW else 1
    scores = batch * s * s * shape.width / 2
    if backward:  # Dropout (5), softmax (6; apart: two casts, product and sum in fp32, mask, scale).
        return Cost(products, _traffic(cluster, (5 + (6 * long if fused else 26)) * scores, 6), 0.0, 9 if fused else 14)
    # Softmax (4; apart: scale, mask, cast, softmax in fp32, cast), dropout (5).
    return Cost(products, _traffic(cluster, (5 + (4 * long if fused else 28)) * scores, 4), 0.0, 9 if fused else 16)


def _collectives(shape: Shape, cluster: Cluster, number: int) -> Cost:
    """All-reduces of a micro-batch's activations; in sequence parallel a reduce-scatter and an all-gather, as dear."""
    around = network.ring(cluster, shape.tp, 1)
    launches = 2 * number if shape.tp > 1 else 0
    return Cost(0.0, 0.0, number * around.all_reduce(shape.width * shape.elements), launches)


def _traffic(cluster: Cluster, size: float, kernels: int) -> float:
    measured = cluster.measured
    return size / (cluster.gpu.memory_bandwidth * measured.memory) + kernels * measured.kernel_seconds


@lru_cache(maxsize=4096)
def embedding(shape: Shape, cluster: Cluster) -> Phases:
    """Token and position table: look-up, sum, dropout; backward the table's dense gradient, written and added."""
    table = (shape.width + shape.added_bytes) * ceil(shape.vocabulary / shape.tp) * shape.hidden
    looked_up = Cost(0.0, _traffic(cluster, 15 * shape.elements, 8), 0.0, 20)
    backward = Cost(0.0, _traffic(cluster, 15 * shape.elements + table, 8), 0.0, 20)
    return Phases(looked_up.plus(_collectives(shape, cluster, 1)), backward, NOTHING)


@lru_cache(maxsize=4096)
def head(shape: Shape, cluster: Cluster, software: Software) -> Phases:
    """Final norm, logits and cross entropy in fp32; never recomputed."""
    n, h, rows = shape.tokens, shape.hidden, ceil(shape.vocabulary / shape.tp)
    extra = 6 if software.fused_accumulation else 0
    added = (TABLE_BYTES + (0 if software.fused_accumulation else shape.added_bytes)) * rows * h
    there, back = _loss_bytes(shape, software)
    if software.chunked_head:  # dW is added to once a chunk after the first; at the end dW and dx are scaled
        pieces = ceil(n / head_chunk(n, h, rows))
        added += 2 * shape.width * (pieces * rows * h + shape.elements)
    forward = Cost(
        gemm_seconds(cluster, n, rows, h), _traffic(cluster, there * n * rows + 4 * shape.elements, 12), 0.0, 25
    )
    products = gemm_seconds(cluster, n, h, rows) + gemm_seconds(cluster, rows, h, n, extra_bytes=extra)
    backward = Cost(products, _traffic(cluster, back * n * rows + 10 * shape.elements + added, 12), 0.0, 25)
    return Phases(forward, backward.plus(_collectives(shape, cluster, 1)), NOTHING)


def _loss_bytes(shape: Shape, software: Software) -> tuple[float, float]:
    """Bytes a logit that the loss takes forward and backward, in the time of well-placed ones."""
    if software.chunked_head and software.fused_kernels:  # Read; read and replaced.
        return shape.width, 2.0 * shape.width
    if (
        software.chunked_head
    ):  # Cast (6), maximum (4), difference (8), exponential (8), sum (4); cast, … product (8), cast.
        return 30 / LOSS_SHARE, 36 / LOSS_SHARE
    # Cast (6), maximum (4), difference (8), exponential (8), sum (4); quotient (8), incoming gradient (8), cast (6).
    return 30 / LOSS_SHARE, 22 / LOSS_SHARE


TILES: Final = ((256, 128, 1.0), (128, 128, 0.93), (256, 64, 0.87), (128, 64, 0.80), (64, 64, 0.62))
"""Height, width and sustained share of what the largest reaches (by operations a byte on chip); both ways round."""

FILL: Final = 16

SPLITS: Final = (1, 2, 4, 8)
HALF: Final = 2
SINGLE: Final = 4


def gemm_seconds(cluster: Cluster, m: int, n: int, k: int, *, batch: int = 1, extra_bytes: int = 0) -> float:
    """Time of ``batch`` products [m, k] x [k, n] in 16-bit; ``extra_bytes`` more an element of the result."""
    gpu, measured = cluster.gpu, cluster.measured
    rate = gpu.peak_flops / gpu.processors * measured.gemm
    bandwidth = gpu.memory_bandwidth * measured.memory
    return _seconds(m, n, k, batch, extra_bytes, gpu.processors, rate, bandwidth)


@lru_cache(maxsize=1 << 16)
def _seconds(  # noqa: PLR0917  (cached by these figures alone)
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
