"""StableLM: Llama with layer norms, part of each head rotated, some with biases of q, k and v (Stability AI 2024)."""

from __future__ import annotations

from .family import Field, only
from .llama import LIKE

FAMILY = LIKE.like(
    "StableLmForCausalLM",
    kind={"norm": "layer"},
    fields={
        "rms_norm_eps": None,
        "head_dim": None,
        "layer_norm_eps": Field("layer_norm_eps", float, 1e-5),
        "partial_rotary_factor": Field("rotary_fraction", float, 0.25),
        "use_qkv_bias": Field("qkv_bias", bool, False),
        "hidden_dropout": Field("dropout", float, 0.0),
        "qk_layernorm": only(False),
        "use_parallel_residual": only(False),
    },
)
