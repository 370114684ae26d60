"""OLMo: Llama with layer norms that have no weights, and q, k and v clipped (Groeneveld et al. 2024)."""

from __future__ import annotations

from .family import NO_PADDING, Field, only
from .llama import LIKE

FAMILY = LIKE.like(
    "OlmoForCausalLM",
    kind={"norm": "layer-no-weight", "layer_norm_eps": 1e-5},
    fields={
        **NO_PADDING,
        "rms_norm_eps": None,
        "num_key_value_heads": Field("kv_heads", default=None),
        "clip_qkv": Field("qkv_clip", float, None),
        "attention_bias": only(False),
    },
)
