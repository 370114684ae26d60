"""Qwen2 and Qwen2.5: Llama with biases of q, k and v (Yang et al. 2024)."""

from .family import Field, LayersBy, presets
from .llama import COLUMNS, LIKE, SHARED

QWEN = {"vocabulary": 151_936, "sequence": 32_768, "rotary_base": 1e6, "layer_norm_eps": 1e-6}
LAYERS = LayersBy(
    4096,
    switch="use_sliding_window",
    slides=lambda fields, n: n >= fields["max_window_layers"],
    reads_types=True,
)
FIELDS = {"use_sliding_window": Field(default=False), "max_window_layers": Field(default=28)}
_SMALL = {
    "qwen2.5-0.5b": (24, 896, 14, 2, 4864, True),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 8960, True),
    "qwen2.5-3b": (36, 2048, 16, 2, 11008, True),
}
_LARGE = {
    "qwen2.5-7b": (28, 3584, 28, 4, 18944, False),
    "qwen2.5-14b": (48, 5120, 40, 8, 13824, False),
    "qwen2.5-32b": (64, 5120, 40, 8, 27648, False),
    "qwen2.5-72b": (80, 8192, 64, 8, 29568, False),
}
_KIND = {"qkv_bias": True}
_SIZES = {"vocabulary": 152_064, "sequence": 131_072}

FAMILY = LIKE.like(
    "Qwen2ForCausalLM",
    kind=_KIND,
    fields=FIELDS | {"head_dim": None},
    layers_by=LAYERS,
    presets=presets(COLUMNS, _SMALL, SHARED, QWEN, _KIND) | presets(COLUMNS, _LARGE, SHARED, QWEN, _SIZES, _KIND),
)
