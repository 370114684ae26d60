"""Phi-3 and Phi-4: Llama with packed matrices, and windows or LongRoPE in some (Abdin et al. 2024)."""

from .family import NO_PADDING, Field, LayersBy
from .llama import LIKE

FAMILY = LIKE.like(
    "Phi3ForCausalLM",
    fields={
        **NO_PADDING,
        "rms_norm_eps": Field("layer_norm_eps", 1e-5),
        "num_key_value_heads": Field("kv_heads", None),
        "partial_rotary_factor": Field("rotary_fraction", 1.0),
        "resid_pdrop": Field("dropout", 0.0),
        "original_max_position_embeddings": Field(default=4096),
    },
    modules={
        "attention.qkv": "self_attn.qkv_proj",
        "mlp.gate": None,
        "mlp.up": None,
        "mlp.gate mlp.up": "mlp.gate_up_proj",
    },
    layers_by=LayersBy(),
)
