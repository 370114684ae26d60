"""The decoder's operations in plain PyTorch, and `Ops`, the table by which fused kernels replace them.

    bias_gelu               gelu(x + b),  gelu(x) = x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
    bias_dropout_add        r + dropout(x + b)
    layer_norm              (x - mean) / sqrt(variance + eps) · w + b
    bias_dropout_add_norm   that sum, and its layer norm
    attention               softmax(scale · Q Kᵀ + mask) V
    cross_entropy           logsumexp(z) - z[target]
    fp32_logits             x Wᵀ without rounding

S sequence (queries), T keys, B batch, H hidden, N heads, D head size, V vocabulary. Dropout at rate 0 or outside
training adds no operation and draws no random number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor

TABLE_ROWS = 8192
"""Rows of the token table that are in fp32 at a time."""

AttentionOp = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, float], Tensor]
"""Signature of `attention`: q, k, v, mask, scale, dropout rate -> context."""


def layer_norm(x_H: Tensor, weight_H: Tensor, bias_H: Tensor, eps: float) -> Tensor:
    """Normalize the last axis, then scale and shift."""
    return F.layer_norm(x_H, weight_H.shape, weight_H, bias_H, eps)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Tanh-approximated GeLU of ``x + bias``."""
    return F.gelu(x + bias, approximate="tanh")


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout; ``x`` itself at rate 0 or outside training."""
    return F.dropout(x, rate) if training and rate else x


def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, rate: float, training: bool) -> Tensor:
    """``residual + dropout(x + bias)``."""
    return residual + dropout(x + bias, rate, training)


def bias_dropout_add_norm(  # noqa: PLR0917  (the signature of a kernel)
    x_H: Tensor,
    bias_H: Tensor,
    residual_H: Tensor,
    rate: float,
    training: bool,
    weight_H: Tensor,
    shift_H: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """``residual + dropout(x + bias)``, and its layer norm with scale ``weight`` and bias ``shift``."""
    total_H = bias_dropout_add(x_H, bias_H, residual_H, rate, training)
    return total_H, layer_norm(total_H, weight_H, shift_H, eps)


def attention(  # noqa: PLR0917  (the signature of a kernel)
    q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, mask: Tensor | None, scale: float, rate: float
) -> Tensor:
    """Scaled dot-product attention of S queries over T keys -> [B, N, S, D]. Dropout is applied whenever ``rate`` > 0.

    ``mask`` is true where a query may attend and broadcasts to [B, N, S, T]; causality is not added to it. Without a
    mask attention is causal, with the last query at the last key.
    """
    s, t = q_BNSD.shape[-2], k_BNTD.shape[-2]
    if mask is None and 1 < s < t:
        mask = causal_mask(s, t, q_BNSD.device)
    return F.scaled_dot_product_attention(
        q_BNSD, k_BNTD, v_BNTD, attn_mask=mask, dropout_p=rate, is_causal=mask is None and s > 1, scale=scale
    )


def attention_scale(head_size: int) -> float:
    """1 / sqrt(D)."""
    return 1 / math.sqrt(head_size)


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Boolean [queries, keys], true where the key is not after the query; the last query is at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def fp32_logits(x_NH: Tensor, table_VH: Tensor) -> Tensor:
    """Logits x Wᵀ in fp32, [N, H] x [V, H] → [N, V]: not rounded to the weights' precision: no ties.

    The table is converted a part at a time, so that no fp32 copy of it exists.
    """
    if table_VH.dtype == torch.float32:
        return F.linear(x_NH, table_VH)
    if x_NH.is_cuda:
        return torch.mm(x_NH, table_VH.T, out_dtype=torch.float32)
    parts: tuple[Tensor, ...] = torch.split(table_VH, TABLE_ROWS)
    return torch.cat([F.linear(x_NH.float(), part.float()) for part in parts], dim=1)


def cross_entropy(logits_V: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of every token in nats, computed in fp32, in the shape of ``targets``."""
    flat = F.cross_entropy(logits_V.float().flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


@dataclass(frozen=True)
class Ops:
    """The operations of a decoder; a kernel of the same signature may replace each."""

    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor] = layer_norm
    bias_gelu: Callable[[Tensor, Tensor], Tensor] = bias_gelu
    bias_dropout_add: Callable[[Tensor, Tensor, Tensor, float, bool], Tensor] = bias_dropout_add
    bias_dropout_add_norm: Callable[
        [Tensor, Tensor, Tensor, float, bool, Tensor, Tensor, float], tuple[Tensor, Tensor]
    ] = bias_dropout_add_norm
    attention: AttentionOp = attention


EAGER = Ops()


class Attend(Protocol):
    """Replacement for causal self-attention in one layer, such as a key-value cache or packed rows."""

    @property
    def places(self) -> Tensor | None:
        """Indices into the sequence to compute outputs for; None for all S."""

    def __call__(  # noqa: PLR0917  (the figures of attention)
        self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, scale: float, rate: float
    ) -> Tensor:
        """Context [B, N, S or len(places), D], computed by any number of calls of ``attention``."""
