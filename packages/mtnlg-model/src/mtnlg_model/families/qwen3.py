"""Qwen3, dense: Llama with norms of each head's q and k (Yang et al. 2025)."""

from .family import presets
from .llama import COLUMNS, LIKE, SHARED
from .llama import FAMILY as LLAMA
from .qwen2 import FIELDS, LAYERS, QWEN

_ROWS = {
    "qwen3-0.6b": (28, 1024, 16, 8, 3072, True),
    "qwen3-1.7b": (28, 2048, 16, 8, 6144, True),
    "qwen3-4b": (36, 2560, 32, 8, 9728, True),
    "qwen3-8b": (36, 4096, 32, 8, 12288, False),
    "qwen3-14b": (40, 5120, 40, 8, 17408, False),
    "qwen3-32b": (64, 5120, 64, 8, 25600, False),
}
_KIND = {"qk_norm": True}

FAMILY = LIKE.like(
    "Qwen3ForCausalLM",
    kind=_KIND,
    fields=FIELDS | {"attention_bias": LLAMA.fields["attention_bias"]},
    layers_by=LAYERS,
    presets=presets(COLUMNS, _ROWS, SHARED, QWEN, _KIND, {"head_size": 128}),
)
