"""Gemma 2: Gemma with norms on both sides, windows in every other layer, and softcaps (Gemma Team 2024)."""

from .family import Field, LayersBy
from .gemma import FAMILY as GEMMA
from .gemma import GEGLU

FAMILY = GEMMA.like(
    "Gemma2ForCausalLM",
    kind={"sandwich_norm": True},
    fields={
        "hidden_act": None,
        "hidden_activation": GEGLU,
        "num_key_value_heads": Field("kv_heads", 4),
        "query_pre_attn_scalar": Field("attention_scale", 256, power=-0.5),
        "attn_logit_softcapping": Field("attention_softcap", 50.0, nullable=True),
        "final_logit_softcapping": Field("logit_softcap", 30.0, nullable=True),
    },
    modules={
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
    layers_by=LayersBy(4096, slides=lambda _fields, n: n % 2 == 0, reads_types=True),
)
