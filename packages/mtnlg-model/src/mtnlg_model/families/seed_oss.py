"""Seed-OSS: Llama with biases of q, k and v, and dropout (ByteDance 2025)."""

from __future__ import annotations

from .family import Field
from .llama import LIKE

_RATES = {"attention_dropout": Field("attention_dropout", float, 0.1), "residual_dropout": Field("dropout", float, 0.1)}
_BIASES = {"attention_bias": Field("qkv_bias", bool, True), "attention_out_bias": Field("out_bias", bool, False)}
FAMILY = LIKE.like(
    "SeedOssForCausalLM",
    fields={
        **_RATES,
        **_BIASES,
        "mlp_bias": Field("bias", bool, False),
        "head_dim": Field("head_size", default=128),
    },
)
