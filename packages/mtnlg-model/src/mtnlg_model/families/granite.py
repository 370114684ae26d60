"""Granite 3: Llama with four multipliers (IBM 2024)."""

from .family import Field
from .llama import FAMILY as LLAMA

FAMILY = LLAMA.like(
    "GraniteForCausalLM",
    fields={
        **{name: Field(name, 1.0) for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling")},
        "attention_multiplier": Field("attention_scale", 1.0),
    },
)
