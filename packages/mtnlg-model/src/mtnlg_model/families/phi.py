"""Phi 1 and 2: attention and MLP in parallel after one norm, part of each head rotated, biases (Li et al. 2023)."""

from .family import GELU, UNTIED, Field, only
from .llama import LIKE

FAMILY = LIKE.like(
    "PhiForCausalLM",
    kind={"norm": "layer", "bias": True, "qkv_bias": True, "head_bias": True}
    | {"parallel_residual": True, "shared_norm": True},
    fields={
        "rms_norm_eps": None,
        "layer_norm_eps": Field("layer_norm_eps", 1e-5),
        "num_key_value_heads": Field("kv_heads", None),
        "partial_rotary_factor": Field("rotary_fraction", 0.5),
        "hidden_act": Field("mlp", values=GELU),
        "resid_pdrop": Field("dropout", 0.0),
        "tie_word_embeddings": UNTIED,
        "qk_layernorm": only(False),
    },
    modules={
        "final_norm": "final_layernorm",
        "mlp_norm": None,
        "attention.out": "self_attn.dense",
        "mlp.gate": None,
        "mlp.up": "mlp.fc1",
        "mlp.down": "mlp.fc2",
    },
)
