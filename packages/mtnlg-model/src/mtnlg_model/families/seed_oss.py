"""Seed-OSS: Llama with biases of q, k and v, and dropout (ByteDance 2025)."""

from __future__ import annotations

from .family import Field, only
from .llama import LIKE

_RATES = {"attention_dropout": Field("attention_dropout", float, 0.1), "residual_dropout": Field("dropout", float, 0.1)}
_BIASES = {"attention_bias": Field("qkv_bias", bool, True), "attention_out_bias": only(False), "mlp_bias": only(False)}
FAMILY = LIKE.like(
    "SeedOssForCausalLM",
    fields={**_RATES, **_BIASES, "head_dim": Field("head_size", default=128)},
)
