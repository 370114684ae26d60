"""Mistral: Llama with a window of attention in all layers or none (Jiang et al. 2023)."""

from .family import LayersBy, presets
from .llama import COLUMNS, LIKE, SHARED

_V3 = {"vocabulary": 32_768, "sequence": 32_768, "rotary_base": 1e6}

FAMILY = LIKE.like(
    "MistralForCausalLM",
    layers_by=LayersBy(4096),
    presets=presets(COLUMNS, {"mistral-7b": (32, 4096, 32, 8, 14336, False)}, SHARED, _V3),
)
