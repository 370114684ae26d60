"""The MT-NLG decoder: GPT, pre-LN, learned positions, tied embeddings (paper.md section 1).

    x₀     = dropout(E[tokens] + P[positions])
    x'     = x  + dropout(W_o · attention(norm(x) W_qkvᵀ + b_qkv) + b_o)        every layer
    x''    = x' + dropout(W_d · gelu(W_u · norm(x') + b_u) + b_d)
    logits = norm(x_l) Eᵀ

S sequence, B batch, H hidden, N heads, D head size, V vocabulary. Inside, the sequence comes first: x_SBH.

A `Linear` returns x Wᵀ and carries its bias for the operation that follows, so that a fused kernel or a tensor-parallel
layer takes its place without an edit here. Heads and widths are read off the tensors: half a layer's rows are half its
heads. No loss, no optimizer, nothing distributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn

from . import functional, initialization
from .functional import EAGER, Ops
from .generation.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import ModelConfig
    from .functional import Attend


class Linear(nn.Module):
    """x Wᵀ. Whoever calls it adds ``bias``. Its parameters are left uninitialised."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs], without the bias."""
        return F.linear(x, self.weight)


class Table(nn.Module):
    """An embedding: rows of ``weight`` by number. Its parameter is left uninitialised."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, numbers: Tensor) -> Tensor:
        """[...] → [..., width]."""
        return F.embedding(numbers, self.weight)


class LayerNorm(nn.Module):
    """Layer norm over the hidden axis. Its parameters are left uninitialised."""

    def __init__(self, config: ModelConfig, ops: Ops = EAGER) -> None:
        super().__init__()
        self.eps, self.ops = config.layer_norm_eps, ops
        self.weight = nn.Parameter(torch.empty(config.hidden))
        self.bias = nn.Parameter(torch.empty(config.hidden))

    def forward(self, x_SBH: Tensor) -> Tensor:
        """[..., H] → [..., H]."""
        return self.ops.layer_norm(x_SBH, self.weight, self.bias, self.eps)


class Embedding(nn.Module):
    """Token and position embedding, summed, with dropout. Its parameters are left uninitialised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.rate = config.dropout
        self.token = Table(config.vocabulary, config.hidden)
        self.position = Table(config.sequence, config.hidden)

    def forward(self, tokens_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor:
        """Integers [B, S] → x_SBH; without ``positions_BS`` every row counts from 0."""
        if positions_BS is None:
            positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)[None]
        x_SBH: Tensor = self.token(tokens_BS.t()) + self.position(positions_BS.t())
        return functional.dropout(x_SBH, self.rate, self.training)


class Attention(nn.Module):
    """Causal self-attention; the bias of ``out`` is left to the caller."""

    def __init__(self, config: ModelConfig, number: int, ops: Ops = EAGER) -> None:
        super().__init__()
        self.head_size, self.rate, self.ops = config.head_size, config.attention_dropout, ops
        self.layer_scale = number + 1 if config.scale_attention_by_layer else 1
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.out = Linear(config.hidden, config.hidden)

    def forward(self, x_SBH: Tensor, attend: Attend | None = None) -> Tensor:
        """x_SBH → x_SBH; rows of ``qkv`` are q, k, v of head 0, then of head 1, as Megatron orders them."""
        qkv_SBF = self.qkv(x_SBH) + self.qkv.bias
        heads = qkv_SBF.view(*qkv_SBF.shape[:2], -1, 3 * self.head_size).permute(1, 2, 0, 3)
        q_BNSD, k_BNSD, v_BNSD = heads.split(self.head_size, dim=-1)
        scale = functional.attention_scale(self.head_size)
        if self.layer_scale != 1:
            q_BNSD, scale = q_BNSD / self.layer_scale, scale * self.layer_scale
        rate = self.rate if self.training else 0.0
        if attend is None:
            x_BNSD = self.ops.attention(q_BNSD, k_BNSD, v_BNSD, None, scale, rate)
        else:
            x_BNSD = attend(self.ops.attention, q_BNSD, k_BNSD, v_BNSD, scale, rate)
        out: Tensor = self.out(x_BNSD.permute(2, 0, 1, 3).flatten(2))
        return out


class MLP(nn.Module):
    """The feed-forward layer; the bias of ``down`` is left to the caller."""

    def __init__(self, config: ModelConfig, ops: Ops = EAGER) -> None:
        super().__init__()
        self.ops = ops
        self.up = Linear(config.hidden, config.ffn)
        self.down = Linear(config.ffn, config.hidden)

    def forward(self, x_SBH: Tensor) -> Tensor:
        """x_SBH → x_SBH."""
        out: Tensor = self.down(self.ops.bias_gelu(self.up(x_SBH), self.up.bias))
        return out


class DecoderLayer(nn.Module):
    """One layer, the ``number``-th from 0. Its parameters are left uninitialised: `initialization.fill` sets them."""

    def __init__(self, config: ModelConfig, number: int, ops: Ops = EAGER) -> None:
        super().__init__()
        self.rate, self.ops = config.dropout, ops
        self.attention_norm = LayerNorm(config, ops)
        self.attention = Attention(config, number, ops)
        self.mlp_norm = LayerNorm(config, ops)
        self.mlp = MLP(config, ops)

    def forward(self, x_SBH: Tensor, attend: Attend | None = None) -> Tensor:
        """x_SBH → x_SBH, or only the ``places`` of ``attend``. Attention is causal unless ``attend`` replaces it."""
        y_SBH = self.attention(self.attention_norm(x_SBH), attend)
        if attend is not None and attend.places is not None:
            x_SBH = x_SBH[attend.places]
        norm, dropout = self.mlp_norm, (self.rate, self.training)
        x_SBH, y_SBH = self.ops.bias_dropout_add_norm(
            y_SBH, self.attention.out.bias, x_SBH, *dropout, norm.weight, norm.bias, norm.eps
        )
        return self.ops.bias_dropout_add(self.mlp(y_SBH), self.mlp.down.bias, x_SBH, *dropout)


class Decoder(nn.Module):
    """The whole model, initialised from ``seed``; under ``torch.device("meta")`` it allocates nothing."""

    def __init__(self, config: ModelConfig, seed: int = 1234, ops: Ops = EAGER) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(DecoderLayer(config, n, ops) for n in range(config.layers))
        self.final_norm = LayerNorm(config, ops)
        if not self.embedding.token.weight.is_meta:
            initialization.fill(self, config, seed)

    def forward(
        self, tokens_BS: Tensor, positions_BS: Tensor | None = None, attend: Sequence[Attend] | None = None
    ) -> Tensor:
        """Logits [B, S, V] of the next token at every token; arguments as for `hidden`."""
        return self.logits(self.hidden(tokens_BS, positions_BS, attend).transpose(0, 1))

    def hidden(
        self, tokens_BS: Tensor, positions_BS: Tensor | None = None, attend: Sequence[Attend] | None = None
    ) -> Tensor:
        """Hidden states x_SBH after the final norm. ``attend`` holds one replacement of attention a layer."""
        x_SBH = self.embedding(tokens_BS, positions_BS)
        for n, layer in enumerate(self.layers):
            x_SBH = layer(x_SBH, attend[n] if attend else None)
        normed: Tensor = self.final_norm(x_SBH)
        return normed

    def cache(self, capacity: int) -> Cache:
        """An empty cache for so many tokens a row."""
        return Cache(self.config, capacity)

    def logits(self, x_H: Tensor) -> Tensor:
        """[..., H] → [..., V] by the token embedding."""
        return F.linear(x_H, self.embedding.token.weight)
