"""Bytes of activations that a layer keeps of a micro-batch (Korthikanti et al. 2022, equations 1 to 6).

For a GPT with sequence s, batch b, hidden h, heads a, and t-way tensor parallelism, in bytes

    no recomputation   s b h (10 + 24 / t + 5 a s / (h t))        with sequence parallelism  s b h / t (34 + 5 a s / h)
    attention's core recomputed                                   without the last term
    layer recomputed   2 s b h, its input                         with sequence parallelism  2 s b h / t

Other decoders keep the same kinds of tensors in their own widths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtnlg_parallel.planner.run import Run


def layer_bytes(run: Run, recompute: str) -> float:
    """Activation bytes that one layer keeps of one micro-batch."""
    model, tokens, t = run.model, run.tokens, run.layout.tp
    scale = run.width / 2  # the formulas count 16-bit activations
    repeated = run.repeated
    if recompute == "full":
        return 2 * scale * repeated
    d = model.core_head_size
    attention, keys = model.heads * d, max(model.kv_heads, t) * d  # one or more a rank
    if recompute == "operators":  # the input, attention's output, every other product; compiled, one sum less
        products = sum(columns for columns, _ in run.linears) * t / 2
        sums = 2 if run.software.fused_kernels else 4
        return scale * (sums * repeated + 2 * tokens / t * (attention + products))
    kept = 8 * repeated + (2 * repeated if model.dropout else 0)
    # q, k, v and the projection's input; the MLP's inner values before and after its activation.
    sliced = 4 * attention + 4 * keys + (6 if model.gated else 4) * model.ffn
    if run.product_width <= 1 and not run.software.eager:  # what a product reads; of attention, unless recomputed, also
        kept -= 2 * repeated  # its own result
        sliced += (-attention if recompute == "selective" else attention) - model.ffn
    core = 0.0 if recompute == "selective" else core_bytes(run)
    whole = scale * (kept + sliced * tokens / t) + core
    return (whole + 2 * scale * repeated) / 2 if recompute == "alternate" else whole


def core_bytes(run: Run) -> float:
    """Bytes of scores that one layer's attention keeps of one micro-batch.

    The softmax and its dropped result, 2 bytes each, and dropout's mask; with a soft cap tanh and fp32 softmax as well.
    """
    model, (keys, _) = run.model, run.scores_written
    size = 8 if run.software.flash_attention else 2 * run.width
    scores = run.micro_batch * model.heads * model.sequence * keys / run.layout.tp
    return (size + bool(model.attention_dropout)) * scores
