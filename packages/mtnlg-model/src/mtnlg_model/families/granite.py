"""Granite 3: Llama with four multipliers (IBM 2024)."""

from __future__ import annotations

from .family import Field
from .llama import FAMILY as LLAMA

_FACTORS = {
    "embedding_multiplier": "embedding_multiplier",
    "residual_multiplier": "residual_multiplier",
    "attention_multiplier": "attention_scale",
    "logits_scaling": "logits_scaling",
}

FAMILY = LLAMA.like(
    "GraniteForCausalLM",
    fields={name: Field(ours, float, 1.0) for name, ours in _FACTORS.items()},
)
