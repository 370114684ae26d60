"""Cost of the attention core, as separate kernels or as flash attention, with or without context parallelism.

Flash attention with rows of length s and heads of width d sustains, over both passes,

    peak * share * s / (s + ROW) * d / (d + attention_head)

since blocks on the diagonal do twice the useful work, and softmax runs beside products of depth d. With a causal mask
and heads of 128, NVIDIA's cudnn-frontend measured these TFLOP/s at rows of 4,096 to 65,536 (this formula in brackets):
FlashAttention-2 on an H200 264 to 329 (268 to 328); cuDNN 9.1 on the same 468 to 520 (435 to 533); cuDNN 9.18 on a
GB200, up to rows of 32,768, 1,154 to 1,503 (1,167 to 1,409).

With context parallelism a rank has s / cp queries of every sequence, and keys and values pass around the ring during
attention: once in forward, and once more with their gradients in backward. This package sends the gradients in fp32,
merges blocks as PyTorch's operations do, and has flash attention of no kernel made for the GPU's generation there; with
windows, documents, soft caps and ALiBi it computes blocks by products in fp32 (`ring_attention`). Without the ring it
writes scores only if they have a soft cap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import network
from .cost import Cost, memory_seconds
from .products import gemm_seconds

if TYPE_CHECKING:
    from mtnlg_parallel.planner.run import Run


LONG_ROW: Final = 1024
"""Above this row length the fused softmax runs half the warps (registers) and takes twice the time per element."""

ROW: Final = 1000
"""Row length at which flash attention with a causal mask sustains half of its rate on long rows."""

NATIVE_HEAD: Final = 160
"""Widest head with which kernels made for the GPU's generation were measured: 1.6 x FlashAttention-2, on an H200."""

DROPOUT_SHARE: Final = (0.86, 0.68)
"""Relative rate with dropout, of FlashAttention-2 and of kernels made for the GPU's generation: measured on an H200 at
heads of 128 and rows of 4,096 to 32,768."""

FUSED_BYTES: Final = (4, 6)
"""Memory traffic in bytes per 16-bit score of a fused softmax, forward and backward; dropout has 5 more."""

APART_BYTES: Final = (28, 26)
"""The same by separate operations: scale, mask, cast, softmax in fp32, cast; two casts, product, sum, mask, scale."""

CAPPED_BYTES: Final = (32, 38)
"""The same of `functional.attention` with a soft cap: scale, quotient, tanh, product and mask (4 each), softmax in fp32
(6), cast (6); in backward cast (6), softmax (10), tanh (6), and the other four again."""

MERGE_BYTES: Final = (41, 58)
"""Memory traffic, in bytes per element, to merge a block of the ring in fp32 by separate operations: forward, backward.

PyTorch's operations: concatenate keys and values (8), cast the result (6), then difference, weight, and sum of half of
the elements or all (24 of 32); in backward sum three gradients (35), and concatenate those of keys and values (16).
"""

MERGE_KERNELS: Final = 10

SCORE_BYTES: Final = (56, 60)
"""Memory traffic in bytes per fp32 score of our ring's products, forward and backward, beside the products' own:
scale (8), mask (8), log-sum-exp (24), softmax (16); in backward also three products of scores (28), not log-sum-exp."""

SCORE_KERNELS: Final = 12

TILE_BYTES: Final = 3 * 4 << 26
"""Bytes of its tiles: three tensors of `ring_attention.TILE_ELEMENTS` scores."""


def attention(run: Run, backward: bool) -> Cost:
    """Cost of the attention core: scores, softmax, dropout, context."""
    keys, blocks = run.scores_written
    if not keys:
        return _flash(run, backward)
    model, width = run.model, round(keys)
    s, d, batch = model.sequence, model.core_head_size, run.micro_batch * model.heads // run.layout.tp
    shapes = [(s, width, d), (s, d, width)] + [(width, d, s)] * 2 * backward
    products = sum(gemm_seconds(run.cluster, *each, batch=batch, width=run.width) for each in shapes)
    fused = run.software.fused_kernels and not run.software.flash_attention
    moved = (FUSED_BYTES if fused else CAPPED_BYTES if run.software.flash_attention else APART_BYTES)[backward]
    moved *= 2 if fused and s > LONG_ROW else 1
    dropout = 5 if model.attention_dropout else 0
    memory = memory_seconds(run, (moved + dropout) * batch * s * keys * run.width / 2, 6 if backward else 4)
    return Cost(products, memory, launches=blocks * (9 if fused else 14 if backward else 16))


def _flash(run: Run, backward: bool) -> Cost:
    model, measured = run.model, run.cluster.measured
    s, d = model.sequence, model.core_head_size
    row = run.row / run.layout.cp
    operations = 2 * run.micro_batch * s * row * d * model.heads / run.layout.tp  # half: what the causal mask leaves
    ring_of_ours = run.is_ours and run.layout.cp > 1
    products, flash = run.ring_parts
    operations *= flash * 2 / run.layout.cp if ring_of_ours else run.attended
    native = run.software.native_attention and d <= NATIVE_HEAD and not ring_of_ours
    peak_share = measured.native_flash if native else measured.flash
    rate = (
        run.cluster.gpu.flops(run.width)
        * measured.clock
        * run.software.attention_share
        * peak_share
        * row
        / (row + ROW)
        * d
        / (d + run.software.attention_head)
        * (DROPOUT_SHARE[native] if model.attention_dropout else 1)
    )
    seconds = (run.software.attention_backward if backward else 1.0) * operations / rate
    cost = Cost(seconds, memory_seconds(run, 0.0, 1), launches=6 if backward else 3)
    if run.layout.cp == 1:
        return cost
    if ring_of_ours:
        cost += _apart(run, backward) * products
    ring = network.ring(run, run.layout.cp, run.layout.tp)
    heads = model.heads if run.software.eager else model.kv_heads
    keys_and_values = 2 * run.width * run.micro_batch * s * max(heads / run.layout.tp, 1) * d
    gradients = 4 / run.width if ring_of_ours else 1
    sent = (1 + gradients if backward else 1) * ring.gather(keys_and_values)
    merged = _merge_seconds(run, backward) if run.software.eager or ring_of_ours else 0.0
    return cost + Cost(memory=merged, collectives=max(sent - cost.products, 0.0), launches=3 * run.layout.cp)


def _apart(run: Run, backward: bool) -> Cost:
    """Cost of as many queries and keys of our ring as a rank has, by products in fp32."""
    s, heads, products = run.model.sequence // run.layout.cp, run.model.heads // run.layout.tp, 5 if backward else 2
    batch = run.micro_batch * heads
    seconds = products * gemm_seconds(run.cluster, s, s, run.model.core_head_size, batch=batch, width=4)
    memory = memory_seconds(run, SCORE_BYTES[backward] * batch * s * s, SCORE_KERNELS)
    return Cost(seconds, memory, launches=SCORE_KERNELS + products)


def ring_bytes(run: Run) -> float:
    """Bytes of this package's ring at work: two blocks of keys and values, three of their gradients, q's and a part."""
    model = run.model
    queries = run.tokens * model.heads * model.head_size / run.layout.tp
    keys_and_values = 2 * run.tokens * max(model.kv_heads / run.layout.tp, 1) * model.head_size
    return (2 * run.width + 12) * keys_and_values + 8 * queries + (TILE_BYTES if run.ring_parts[0] else 0)


def _merge_seconds(run: Run, backward: bool) -> float:
    elements = run.tokens * run.model.heads * run.model.head_size / run.layout.tp
    return run.layout.cp * memory_seconds(run, MERGE_BYTES[backward] * elements, MERGE_KERNELS)
