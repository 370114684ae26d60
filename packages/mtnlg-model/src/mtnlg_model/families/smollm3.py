"""SmolLM3: Llama without positions in every fourth layer (Bakouch et al. 2025)."""

from __future__ import annotations

from .family import NO_PADDING, Field, Fields, LayersBy
from .llama import FAMILY as LLAMA


def _rotates(fields: Fields, n: int) -> bool:
    listed = fields["no_rope_layers"]
    return bool((n + 1) % max(1, fields["no_rope_layer_interval"]) if listed is None else listed[n])


FAMILY = LLAMA.like(
    "SmolLM3ForCausalLM",
    fields={
        **NO_PADDING,
        "rope_theta": Field("rotary_base", 2e6),
        "tie_word_embeddings": Field("tied", True),
        "use_sliding_window": Field(default=False),
        "no_rope_layer_interval": Field(default=4),
        "no_rope_layers": Field(
            kind=list,
            default=None,
            write=lambda config: [int(config.layer(n).rotary) for n in range(config.layers)],
        ),
        "num_key_value_heads": Field("kv_heads"),
    },
    layers_by=LayersBy(
        switch="use_sliding_window",
        slides=lambda fields, n: not _rotates(fields, n),
        reads_types=True,
        settings=lambda fields, n, _slides: {"rotary": _rotates(fields, n)},
    ),
)
