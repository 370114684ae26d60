"""EXAONE 4: norms after attention and MLP; most layers have a window, the others no positions (LG AI 2025)."""

from .family import Field, LayersBy, by_pattern
from .olmo2 import FAMILY as OLMO2

FAMILY = OLMO2.like(
    "Exaone4ForCausalLM",
    kind={"qk_norm": True},
    fields={
        "sliding_window_pattern": Field(kind=object, default=4),
        "num_key_value_heads": Field("kv_heads"),
        "attention_bias": None,
    },
    layers_by=LayersBy(
        4096,
        slides=by_pattern,
        reads_types=True,
        settings=lambda _fields, _n, slides: {"rotary": slides is not False},
    ),
)
