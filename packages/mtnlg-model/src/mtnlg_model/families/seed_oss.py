"""Seed-OSS: Llama with biases of q, k and v, and dropout (ByteDance 2025)."""

from .family import Field
from .llama import LIKE

FAMILY = LIKE.like(
    "SeedOssForCausalLM",
    fields={
        "attention_dropout": Field("attention_dropout", 0.1),
        "residual_dropout": Field("dropout", 0.1),
        "attention_bias": Field("qkv_bias", True),
        "attention_out_bias": Field("out_bias", False),
        "mlp_bias": Field("bias", False),
        "head_dim": Field("head_size", 128),
    },
)
