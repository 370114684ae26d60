"""The MT-NLG decoder: a GPT with pre-layer-norm, learned positions and tied embeddings (paper.md section 1).

    x      = dropout(E[tokens] + P[positions])                                   embedding
    x      = x + dropout(W_out attention(W_qkv norm(x) + b_qkv) + b_out)         every layer: attention,
    x      = x + dropout(W_down gelu(W_up norm(x) + b_up) + b_down)              then feed-forward
    logits = norm(x) Eᵀ                                                          head, tied to the embedding

S sequence, B batch, H hidden, N heads, D head size, F features, V vocabulary. Activations are sequence-first: x_SBH.

`Linear` leaves its bias to the operation that follows, so a fused kernel or a tensor-parallel layer can replace it.
The number of heads is read from the weights: half the rows of ``qkv`` make half the heads. Layers leave their
parameters uninitialized; `Decoder` sets them by `initialization`. No loss, no optimizer, nothing distributed.
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
    """x Wᵀ; the caller adds ``bias``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], without the bias."""
        return F.linear(x, self.weight)


class EmbeddingTable(nn.Module):
    """Rows of ``weight`` by index: one vector a token or position."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., width]."""
        return F.embedding(indices, self.weight)


class LayerNorm(nn.Module):
    """Layer norm over the hidden axis."""

    def __init__(self, config: ModelConfig, ops: Ops = EAGER) -> None:
        super().__init__()
        self.eps, self.ops = config.layer_norm_eps, ops
        self.weight = nn.Parameter(torch.empty(config.hidden))
        self.bias = nn.Parameter(torch.empty(config.hidden))

    def forward(self, x_SBH: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.ops.layer_norm(x_SBH, self.weight, self.bias, self.eps)


class Embedding(nn.Module):
    """Sum of token and position embedding, with dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.rate = config.dropout
        self.token = EmbeddingTable(config.vocabulary, config.hidden)
        self.position = EmbeddingTable(config.sequence, config.hidden)

    def forward(self, tokens_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor:
        """Token ids [B, S] -> x_SBH. Positions count from 0 unless ``positions_BS`` (or [1, S]) is given."""
        if positions_BS is None:
            positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)[None]
        x_SBH: Tensor = self.token(tokens_BS.t()) + self.position(positions_BS.t())
        return functional.dropout(x_SBH, self.rate, self.training)


class Attention(nn.Module):
    """Causal multi-head self-attention; the caller adds the bias of ``out``."""

    def __init__(self, config: ModelConfig, number: int, ops: Ops = EAGER) -> None:
        super().__init__()
        self.head_size, self.rate, self.ops = config.head_size, config.attention_dropout, ops
        self.layer_scale = number + 1 if config.scale_attention_by_layer else 1
        self.qkv = Linear(config.hidden, 3 * config.hidden)
        self.out = Linear(config.hidden, config.hidden)

    def forward(self, x_SBH: Tensor, attend: Attend | None = None) -> Tensor:
        """x_SBH -> x_SBH. The rows of ``qkv`` are q, k, v of head 0, then of head 1 and so on, as in Megatron-LM."""
        qkv_SBF = self.qkv(x_SBH) + self.qkv.bias
        qkv_BNSD = qkv_SBF.view(*qkv_SBF.shape[:2], -1, 3 * self.head_size).permute(1, 2, 0, 3)
        q_BNSD, k_BNSD, v_BNSD = qkv_BNSD.split(self.head_size, dim=-1)
        scale = functional.attention_scale(self.head_size)
        if self.layer_scale != 1:  # smaller products in half precision, the same softmax (paper.md section 1)
            q_BNSD, scale = q_BNSD / self.layer_scale, scale * self.layer_scale
        rate = self.rate if self.training else 0.0
        if attend is None:
            x_BNSD = self.ops.attention(q_BNSD, k_BNSD, v_BNSD, None, scale, rate)
        else:
            x_BNSD = attend(self.ops.attention, q_BNSD, k_BNSD, v_BNSD, scale, rate)
        out: Tensor = self.out(x_BNSD.permute(2, 0, 1, 3).flatten(2))
        return out


class MLP(nn.Module):
    """Feed-forward: H -> 4H -> H with GeLU; the caller adds the bias of ``down``."""

    def __init__(self, config: ModelConfig, ops: Ops = EAGER) -> None:
        super().__init__()
        self.ops = ops
        self.up = Linear(config.hidden, config.ffn)
        self.down = Linear(config.ffn, config.hidden)

    def forward(self, x_SBH: Tensor) -> Tensor:
        """x_SBH -> x_SBH."""
        out: Tensor = self.down(self.ops.bias_gelu(self.up(x_SBH), self.up.bias))
        return out


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a layer norm and inside a residual; ``number`` counts from 0."""

    def __init__(self, config: ModelConfig, number: int, ops: Ops = EAGER) -> None:
        super().__init__()
        self.rate, self.ops = config.dropout, ops
        self.attention_norm = LayerNorm(config, ops)
        self.attention = Attention(config, number, ops)
        self.mlp_norm = LayerNorm(config, ops)
        self.mlp = MLP(config, ops)

    def forward(self, x_SBH: Tensor, attend: Attend | None = None) -> Tensor:
        """x_SBH -> x_SBH, limited to ``attend.places`` if set. Causal unless ``attend`` replaces attention."""
        y_SBH = self.attention(self.attention_norm(x_SBH), attend)
        if attend is not None and attend.places is not None:
            x_SBH = x_SBH[attend.places]
        dropout, norm = (self.rate, self.training), self.mlp_norm
        x_SBH, y_SBH = self.ops.bias_dropout_add_norm(
            y_SBH, self.attention.out.bias, x_SBH, *dropout, norm.weight, norm.bias, norm.eps
        )
        return self.ops.bias_dropout_add(self.mlp(y_SBH), self.mlp.down.bias, x_SBH, *dropout)


class Decoder(nn.Module):
    """The whole model, initialized from ``seed``. Under ``torch.device("meta")`` it allocates nothing."""

    def __init__(self, config: ModelConfig, seed: int = 1234, ops: Ops = EAGER) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(DecoderLayer(config, n, ops) for n in range(config.layers))
        self.final_norm = LayerNorm(config, ops)
        if not self.embedding.token.weight.is_meta:
            initialization.initialize(self, config, seed)

    def forward(
        self, tokens_BS: Tensor, positions_BS: Tensor | None = None, attend: Sequence[Attend] | None = None
    ) -> Tensor:
        """Next-token logits [B, S, V]. Arguments as for `hidden`."""
        return self.logits(self.hidden(tokens_BS, positions_BS, attend).transpose(0, 1))

    def hidden(
        self, tokens_BS: Tensor, positions_BS: Tensor | None = None, attend: Sequence[Attend] | None = None
    ) -> Tensor:
        """Hidden states x_SBH after the final norm. ``attend`` replaces causal attention: one `Attend` per layer."""
        x_SBH = self.embedding(tokens_BS, positions_BS)
        for n, layer in enumerate(self.layers):
            x_SBH = layer(x_SBH, attend[n] if attend else None)
        normed: Tensor = self.final_norm(x_SBH)
        return normed

    def cache(self, capacity: int) -> Cache:
        """An empty key-value cache for ``capacity`` tokens per row."""
        return Cache(self.config, capacity)

    def logits(self, x_H: Tensor) -> Tensor:
        """[..., H] -> [..., V], by the token embedding."""
        return F.linear(x_H, self.embedding.token.weight)
