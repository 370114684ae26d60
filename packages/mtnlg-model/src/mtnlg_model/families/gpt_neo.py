"""GPT-Neo: GPT-2 with windows in every other layer, unscaled attention, no biases of q, k and v (Black et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .family import GELU, SIZES, Field, LayersBy
from .gpt2 import FAMILY as GPT2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtnlg_model.config import ModelConfig


def _slides(fields: Mapping[str, Any], n: int) -> bool:
    kinds = [kind for pattern, times in fields["attention_types"] for _ in range(times) for kind in pattern]
    return bool(kinds[n] == "local")


def _types(config: ModelConfig) -> list[list[Any]]:
    return [[["local" if config.layer(n).window else "global"], 1] for n in range(config.layers)]


_SIZES = {name: SIZES[name] for name in ("hidden_size", "max_position_embeddings", "attention_dropout")}

FAMILY = GPT2.like(
    "GPTNeoForCausalLM",
    kind={"attention_scale": 1.0, "qkv_bias": False},
    fields={
        **dict.fromkeys(GPT2.fields),
        **_SIZES,
        "initializer_range": Field("init_std", float, 0.02),
        "vocab_size": Field("vocabulary"),
        "tie_word_embeddings": Field("tied", bool, True),
        "layer_norm_epsilon": Field("layer_norm_eps", float, 1e-5),
        "num_layers": Field("layers"),
        "num_heads": Field("heads"),
        "intermediate_size": Field("ffn", default=None),
        "resid_dropout": Field("dropout", float, 0.0),
        "activation_function": Field("mlp", values=GELU),
        "attention_types": Field(kind=list, default=[[["global", "local"], 12]], write=_types),
    },
    modules={
        "attention.qkv": "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj",
        "attention.out": "attn.attention.out_proj",
    },
    transposed=False,
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    layers_by=LayersBy(256, name="window_size", slides=_slides),
)
