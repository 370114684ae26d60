"""StarCoder2: Llama's positions and shared heads, with GPT's norms and MLP (Lozhkov et al. 2024)."""

from __future__ import annotations

from .family import TANH_GELU, Field, LayersBy
from .llama import LIKE

_RATES = {"residual_dropout": Field("dropout", float, 0.0), "initializer_range": Field("init_std", float, 0.018042)}
_NORMS = {"norm_epsilon": Field("layer_norm_eps", float, 1e-5), "rms_norm_eps": None}
_PARTS = {"use_bias": Field("bias qkv_bias", bool, True), "hidden_act": Field("mlp", values=TANH_GELU)}
_TIED = {"tie_word_embeddings": Field("tied", bool, True)}
FAMILY = LIKE.like(
    "Starcoder2ForCausalLM",
    kind={"norm": "layer"},
    fields={**_RATES, **_NORMS, **_PARTS, **_TIED},
    modules={"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
    layers_by=LayersBy(),
)
