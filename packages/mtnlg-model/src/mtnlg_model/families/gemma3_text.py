"""Gemma 3's text models: norms of q and k replace softcaps; layers with a window have their own rotary base (2025)."""

from .family import Field, LayersBy, by_pattern
from .gemma2 import FAMILY as GEMMA2

FAMILY = GEMMA2.like(
    "Gemma3ForCausalLM",
    kind={"qk_norm": True},
    fields={
        "rope_theta": Field("rotary_base", 1e6),
        "rope_local_base_freq": Field(
            default=10_000.0,
            write=lambda config: next((layer.rotary_base for layer in config.by_layer if layer.rotary_base), 10_000.0),
        ),
        "sliding_window_pattern": Field(kind=object, default=6),
        "attn_logit_softcapping": Field(values={None: None}),
        "final_logit_softcapping": Field("logit_softcap", None, float),
    },
    layers_by=LayersBy(
        4096,
        slides=by_pattern,
        reads_types=True,
        settings=lambda fields, _n, slides: {"rotary_base": fields["rope_local_base_freq"]} if slides else {},
    ),
)
