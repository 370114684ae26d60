"""The decoder: MT-NLG's GPT (paper.md section 1) and, by configuration, the decoders of all `families`.

    x      = dropout(E[tokens] + P[positions])                                   embedding
    x      = x + dropout(W_out attention(W_qkv norm(x) + b_qkv) + b_out)         every layer: attention,
    x      = x + dropout(W_down gelu(W_up norm(x) + b_up) + b_down)              then feed-forward
    logits = norm(x) Eᵀ                                                          head, tied to the embedding

`ModelConfig` can replace these parts: rotary positions (`rotary`) or ALiBi (`alibi`) instead of P, an RMS norm, SwiGLU
W_down (silu(W_gate y) · W_up y), fewer heads of keys and values than of queries, attention and feed-forward that read
the same x or one norm of it, no biases, an untied head, a token embedding of another width, projected to H and back,
no final norm, multipliers, soft caps of scores and logits, norms of both the inputs and the outputs of a layer's parts;
and, per layer (`LayerConfig`), an attention window, other rotary positions or none, or norms of the outputs only,
x + norm(f(x)), or of the sums, norm(x + f(x)).

S sequence, B batch, H hidden, N heads, G heads of keys and values, D head size, F features, V vocabulary. Activations
are sequence-first: x_SBH.

`Linear` leaves its bias to the operation that follows, so a fused kernel or a tensor-parallel layer can replace it.
The number of heads is read from the weights: half the rows of ``qkv`` make half the heads. Layers leave their
parameters uninitialized; `Decoder` sets them by `initialization`. Losses, optimizers and distribution are elsewhere.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, nn

from . import alibi, functional, initialization, rotary
from .functional import EAGER, Ops, Rule
from .generation.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .config import ModelConfig
    from .functional import Attend
    from .rotary import Rotations


class Linear(nn.Module):
    """x Wᵀ; the caller adds ``bias``, if there is one."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], without the bias."""
        return F.linear(x, self.weight)


class EmbeddingTable(nn.Module):
    """Rows of ``weight`` by index: one vector per token or position."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., width]."""
        return F.embedding(indices, self.weight)


class Norm(nn.Module):
    """Layer norm or RMS norm over the last axis, of size ``width`` or hidden, with or without a weight."""

    def __init__(self, config: ModelConfig, ops: Ops = EAGER, width: int | None = None, kind: str = "") -> None:
        super().__init__()
        self.eps, self.ops, self.kind = config.layer_norm_eps, ops, kind or config.norm
        self.zero_centered, self.head_size = config.zero_centered_norm, config.head_size
        self.width = (width or config.hidden,)
        has_weight = self.kind not in {"layer-no-weight", "none"}
        self.weight: Any = nn.Parameter(torch.empty(self.width)) if has_weight else None
        self.bias: Any = nn.Parameter(torch.empty(self.width)) if self.kind == "layer" else None

    def forward(self, x_H: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        exact_H, weight_H, bias_H, ops = x_H, self.weight, self.bias, self.ops
        if self.zero_centered and weight_H is not None:  # 1 + weight in fp32: half precision would round it
            exact_H, weight_H, ops = x_H.float(), 1 + weight_H.float(), EAGER
            bias_H = None if bias_H is None else bias_H.float()
        if self.kind == "rms":
            y_H = ops.rms_norm(exact_H, weight_H, self.eps)
        elif bias_H is None:
            y_H = F.layer_norm(exact_H, self.width, weight_H, eps=self.eps)
        else:
            y_H = ops.layer_norm(exact_H, weight_H, bias_H, self.eps)
        return y_H.type_as(x_H)


def _projection(inputs: int, outputs: int) -> nn.Module:
    """A linear layer without a bias between two widths; nothing where they are equal."""
    return nn.Identity() if inputs == outputs else Linear(inputs, outputs, bias=False)


class HeadNorms(Norm):
    """Layer norms of the heads of q or k, without biases; ``weight`` has those of all heads in order."""

    def forward(self, x_H: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        heads = x_H.float().view(*x_H.shape[:-1], -1, self.head_size)
        normed_H = F.layer_norm(heads, heads.shape[-1:], eps=self.eps).flatten(-2)
        return (normed_H * self.scale(normed_H.shape[-1])).type_as(x_H)

    def scale(self, width: int) -> Tensor:
        """Factors of the ``width`` values that this module norms, in fp32."""
        return self.weight[:width].float() + self.zero_centered  # type: ignore[no-any-return]  # Any


class FinalNorm(Norm):
    """The norm before the head, then the projection to the head's width, if there are these.

    It also divides by ``logits_scaling``, which divides the logits.
    """

    def __init__(self, config: ModelConfig, ops: Ops = EAGER) -> None:
        super().__init__(config, ops, kind="" if config.final_norm else "none")
        self.scaling, self.project = config.logits_scaling, _projection(config.hidden, config.embedding_size)

    def forward(self, x_H: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        y_H: Tensor = self.project(x_H if self.kind == "none" else super().forward(x_H))
        return y_H if self.scaling == 1 else y_H / self.scaling


class Embedding(nn.Module):
    """Token embedding, projected to the hidden width, plus that of positions if these are learned, then dropout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.rate, self.multiplier, self.offset = config.dropout, config.embedding_multiplier, config.position_offset
        self.token = EmbeddingTable(config.vocabulary, config.embedding_size)
        self.project = _projection(config.embedding_size, config.hidden)
        self.norm = Norm(config) if config.embedding_norm else None
        self.position = None
        if config.positions == "learned":
            self.position = EmbeddingTable(config.sequence + self.offset, config.hidden)

    def forward(self, tokens_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor:
        """Token ids [B, S] -> x_SBH. Positions count from 0 unless ``positions_BS`` (or [1, S]) is given."""
        x_SBH: Tensor = self.project(self.token(tokens_BS.t()))
        if self.multiplier != 1:
            # Rounded to the weights' precision, as Gemma was trained.
            x_SBH = x_SBH * torch.full((), self.multiplier, dtype=x_SBH.dtype, device=x_SBH.device)
        if self.position is not None:
            if positions_BS is None:
                positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)[None]
            x_SBH = x_SBH + self.position(positions_BS.t() + self.offset)
        if self.norm is not None:
            x_SBH = self.norm(x_SBH)
        return functional.dropout(x_SBH, self.rate if self.training else 0.0)


class Attention(nn.Module):
    """Causal self-attention; heads / kv_heads heads of q share one of k and v. The caller adds the bias of ``out``."""

    def __init__(self, config: ModelConfig, number: int, ops: Ops = EAGER) -> None:
        super().__init__()
        layer = config.layer(number)
        self.head_size, self.rate, self.ops = config.head_size, config.attention_dropout, ops
        kind = alibi.KINDS.get(config.positions)
        slopes = alibi.slopes(config.heads, kind) if kind else None
        scale = config.attention_scale or functional.attention_scale(config.head_size)
        self.rule = Rule(scale, 0.0, layer.window, config.attention_softcap, slopes)
        self.clip = config.qkv_clip
        self.base = layer.rotary_base
        self.frequencies = rotary.frequencies(config, self.base) if config.rotates(layer) else None
        self.layer_scale = number + 1 if config.scale_attention_by_layer else 1
        self.sharing = config.heads // config.kv_heads
        width = config.heads * config.head_size
        rows = width + 2 * config.kv_heads * config.head_size
        self.qkv = Linear(config.hidden, rows, config.qkv_bias)
        self.out = Linear(width, config.hidden, config.out_bias)
        shapes = [config.layer_shapes().get(f"attention.{x}_norm.weight") for x in "qk"]
        norm = partial(HeadNorms if config.qk_norm == "by-head" else Norm, config, ops, kind="rms")
        self.q_norm, self.k_norm = (norm(*shape) if shape else None for shape in shapes)

    def forward(self, x_SBH: Tensor, attend: Attend | None = None, rotations: Rotations | None = None) -> Tensor:
        """x_SBH -> x_SBH. Without ``rotations``, rotary positions count from 0.

        The rows of ``qkv`` are ordered by kv head: its heads of q, then k, then v, as in Megatron-LM.
        """
        qkv_SBF = self.project(x_SBH)
        qkv_SBGND = qkv_SBF.view(*qkv_SBF.shape[:2], -1, self.sharing + 2, self.head_size)
        q_SBGND, k_SBG1D, v_SBG1D = torch.split(qkv_SBGND, [self.sharing, 1, 1], dim=3)
        if self.q_norm is not None and self.k_norm is not None:
            q_SBGND, k_SBG1D = self._normed(self.q_norm, q_SBGND), self._normed(self.k_norm, k_SBG1D)
        if self.frequencies:
            rotation = rotations[self.base] if rotations else rotary.rotation(self.frequencies, qkv_SBF)
            q_SBGND, k_SBG1D = self.ops.rotate(q_SBGND, *rotation), self.ops.rotate(k_SBG1D, *rotation)
            v_SBG1D = v_SBG1D.clone()  # a view would keep q and k from before the rotation until backward
        q_BNSD, k_BGSD, v_BGSD = (x.flatten(2, 3).permute(1, 2, 0, 3) for x in (q_SBGND, k_SBG1D, v_SBG1D))
        scale = self.rule.scale
        if self.layer_scale != 1:  # smaller products in half precision, the same softmax (paper.md section 1)
            q_BNSD, scale = q_BNSD / self.layer_scale, scale * self.layer_scale
        rule, attention = self.rule._replace(scale=scale, rate=self.rate if self.training else 0.0), self.ops.attention
        if attend is None:
            x_BNSD = attention(q_BNSD, k_BGSD, v_BGSD, None, rule)
        else:
            x_BNSD = attend(attention, q_BNSD, k_BGSD, v_BGSD, rule)
        out: Tensor = self.out(x_BNSD.permute(2, 0, 1, 3).flatten(2))
        return out

    @staticmethod
    def _normed(norm: Norm, x_SBGND: Tensor) -> Tensor:
        """Normalize each head, or all heads together if the norm is as wide as all."""
        whole = norm.width[0] != x_SBGND.shape[-1]
        normed: Tensor = norm(x_SBGND.flatten(2)).view(x_SBGND.shape) if whole else norm(x_SBGND)
        return normed

    def project(self, x_SBH: Tensor) -> Tensor:
        """x_SBH -> qkv_SBF, with biases, clipped if configured."""
        qkv_SBF = functional.add_bias(self.qkv(x_SBH), self.qkv.bias)
        return qkv_SBF if self.clip is None else qkv_SBF.clamp(-self.clip, self.clip)


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": functional.relu2,
}


class MLP(nn.Module):
    """Feed-forward: H -> F -> H with an activation or gates; the caller adds the bias of ``down``."""

    def __init__(self, config: ModelConfig, ops: Ops = EAGER) -> None:
        super().__init__()
        self.kind, self.ops = config.mlp, ops
        self.gate = Linear(config.hidden, config.ffn, config.bias) if config.gated else None
        self.up = Linear(config.hidden, config.ffn, config.bias)
        self.down = Linear(config.ffn, config.hidden, config.bias)

    def forward(self, x_SBH: Tensor) -> Tensor:
        """x_SBH -> x_SBH."""
        y_SBF = self.up(x_SBH)
        if self.kind == "gelu-tanh" and self.up.bias is not None:
            y_SBF = self.ops.bias_gelu(y_SBF, self.up.bias)
        elif self.gate is None:
            y_SBF = ACTIVATIONS[self.kind](functional.add_bias(y_SBF, self.up.bias))
        else:
            y_SBF = self.gated(self.gate(x_SBH), self.gate.bias, y_SBF)
        out: Tensor = self.down(y_SBF)
        return out

    def gated(self, gate_SBF: Tensor, bias_F: Tensor | None, y_SBF: Tensor) -> Tensor:
        """Input of ``down``, from the outputs of ``gate`` and ``up``, whose biases are added here."""
        gates = self.ops.swiglu if self.kind == "swiglu" else functional.geglu
        return gates(functional.add_bias(gate_SBF, bias_F), functional.add_bias(y_SBF, self.up.bias))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each with a norm and a residual connection; ``number`` counts from 0."""

    def __init__(self, config: ModelConfig, number: int, ops: Ops = EAGER) -> None:
        super().__init__()
        self.rate, self.ops, self.parallel = config.dropout, ops, config.parallel_residual
        self.norm_after, self.multiplier = config.layer(number).norm_after, config.residual_multiplier
        self.attention_norm = Norm(config, ops)
        self.attention = Attention(config, number, ops)
        self.attention_post_norm = Norm(config, ops) if config.sandwich_norm else None
        self.mlp_norm = None if config.shared_norm else Norm(config, ops)
        self.mlp = MLP(config, ops)
        self.mlp_post_norm = Norm(config, ops) if config.sandwich_norm else None

    def forward(self, x_SBH: Tensor, attend: Attend | None = None, rotations: Rotations | None = None) -> Tensor:
        """x_SBH -> x_SBH, limited to ``attend.places`` if set. Causal unless ``attend`` replaces attention."""
        normed_SBH = x_SBH if self.norm_after else self.attention_norm(x_SBH)
        y_SBH = self.attention(normed_SBH, attend, rotations)
        if attend is not None and attend.places is not None:
            x_SBH, normed_SBH = x_SBH[attend.places], normed_SBH[attend.places]
        if self.norm_after == "sum":
            _, x_SBH = self._add_and_norm(y_SBH, self.attention.out.bias, x_SBH, self.attention_norm)
            return self._add_and_norm(self.mlp(x_SBH), self.mlp.down.bias, x_SBH, self.mlp_norm)[1]
        norm = self.attention_norm if self.norm_after else self.attention_post_norm
        if self.parallel or norm is not None:
            before_SBH, x_SBH = x_SBH, self._add(y_SBH, self.attention.out.bias, x_SBH, norm)
            y_SBH = before_SBH if self.parallel else x_SBH
            if self.mlp_norm is None:
                y_SBH = normed_SBH
            elif not self.norm_after:
                y_SBH = self.mlp_norm(y_SBH)
        else:
            x_SBH, y_SBH = self._add_and_norm(y_SBH, self.attention.out.bias, x_SBH, self.mlp_norm)
        norm = self.mlp_norm if self.norm_after else self.mlp_post_norm
        return self._add(self.mlp(y_SBH), self.mlp.down.bias, x_SBH, norm)

    def _add(self, y_SBH: Tensor, bias_H: Tensor | None, x_SBH: Tensor, norm: Norm | None = None) -> Tensor:
        """Residual sum x + dropout(multiplier · norm(y + bias)); no norm if ``norm`` is None."""
        rate = self.rate if self.training else 0.0
        if norm is not None or self.multiplier != 1:
            y_SBH, bias_H = functional.add_bias(y_SBH, bias_H), None
            y_SBH = (y_SBH if norm is None else norm(y_SBH)) * self.multiplier
        if bias_H is None:
            return self.ops.dropout_add(y_SBH, x_SBH, rate)
        return self.ops.bias_dropout_add(y_SBH, bias_H, x_SBH, rate)

    def _add_and_norm(self, y_SBH: Tensor, bias_H: Tensor | None, x_SBH: Tensor, norm: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401  (`Norm`; None only with parallel_residual)
        """The residual sum and its ``norm``, by one kernel for the two common combinations."""
        rate = self.rate if self.training else 0.0
        if not norm.zero_centered and self.multiplier == 1:
            if bias_H is not None and norm.bias is not None:
                scale_and_shift = norm.weight, norm.bias
                return self.ops.bias_dropout_add_norm(y_SBH, bias_H, x_SBH, rate, *scale_and_shift, norm.eps)
            if bias_H is None and norm.kind == "rms":
                return self.ops.dropout_add_rms_norm(y_SBH, x_SBH, rate, norm.weight, norm.eps)
        x_SBH = self._add(y_SBH, bias_H, x_SBH)
        y_SBH = norm(x_SBH)
        return x_SBH, y_SBH


class Decoder(nn.Module):
    """The whole model, initialized from ``seed``. Under ``torch.device("meta")`` it allocates nothing."""

    def __init__(self, config: ModelConfig, seed: int = 1234, ops: Ops = EAGER) -> None:
        super().__init__()
        self.config, self.frequencies = config, rotary.by_base(config)
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(DecoderLayer(config, n, ops) for n in range(config.layers))
        self.final_norm = FinalNorm(config, ops)
        self.head = None if config.tied else Linear(config.embedding_size, config.vocabulary, config.head_bias)
        if not self.embedding.token.weight.is_meta:
            initialization.initialize(self, config, seed)

    @classmethod
    def open(cls, path: Path | str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
        """The decoder of a checkpoint, of the newest in a folder of them, or of a Hugging Face folder.

        It is in evaluation mode; ``dtype`` None keeps the stored one. Raises ``Failure`` naming what is wrong.
        """
        from .convert.huggingface import open_weights  # noqa: PLC0415  (which builds decoders)

        return open_weights(Path(path)).decoder(dtype, device)

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
        rotations = rotary.rotations(self.frequencies, x_SBH, positions_BS)
        for n, layer in enumerate(self.layers):
            x_SBH = layer(x_SBH, attend[n] if attend else None, rotations)
        normed: Tensor = self.final_norm(x_SBH)
        return normed

    def cache(self, capacity: int) -> Cache:
        """An empty key-value cache for ``capacity`` tokens per row."""
        return Cache(self.config, capacity)

    @property
    def head_weight(self) -> Tensor:
        """Weight of the logits' product, [V, H]: the token embedding or the untied head, without padding."""
        weight = self.embedding.token.weight if self.head is None else self.head.weight
        return weight[: self.config.tokens] if self.config.vocabulary_padding else weight

    def logits(self, x_H: Tensor) -> Tensor:
        """[..., H] -> [..., V], padding excluded."""
        return self._finished(F.linear(x_H, self.head_weight))

    def fp32_logits(self, x_NH: Tensor) -> Tensor:
        """[N, H] -> [N, V] as `logits`, but not rounded to the weights' precision."""
        return self._finished(functional.fp32_logits(x_NH, self.head_weight))

    def _finished(self, products_V: Tensor) -> Tensor:
        bias_V = None if self.head is None or self.head.bias is None else self.head.bias[: self.config.tokens]
        return functional.softcap(functional.add_bias(products_V, bias_V), self.config.logit_softcap)
