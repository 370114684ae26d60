"""EXAONE 4: norms after attention and MLP; most layers have a window, the others no positions (LG AI 2025)."""

from __future__ import annotations

from .family import Field, LayersBy, by_pattern
from .llama import LIKE

FAMILY = LIKE.like(
    "Exaone4ForCausalLM",
    kind={"qk_norm": True, "by_layer": [{"norm_after": True}]},
    fields={
        "sliding_window_pattern": Field(kind=object, default=4),
        "rms_norm_eps": Field("layer_norm_eps", float, 1e-5),
    },
    modules={"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"},
    layers_by=LayersBy(
        4096,
        slides=by_pattern,
        reads_types=True,
        settings=lambda _fields, _n, slides: {"rotary": slides is not False},
    ),
)
