"""Llama 1 to 3 (Touvron et al. 2023, Grattafiori et al. 2024), after which most families name their tensors."""

from .family import NO_DROPOUT, SILU, SIZES, Family, Field, presets

COLUMNS = "layers hidden heads kv_heads ffn tied"
_TWO = {
    "llama-2-7b": (32, 4096, 32, 32, 11008, False),
    "llama-2-13b": (40, 5120, 40, 40, 13824, False),
    "llama-2-70b": (80, 8192, 64, 8, 28672, False),
}
_THREE_1 = {
    "llama-3.1-8b": (32, 4096, 32, 8, 14336, False),
    "llama-3.1-70b": (80, 8192, 64, 8, 28672, False),
    "llama-3.1-405b": (126, 16384, 128, 8, 53248, False),
}
_THREE_2 = {
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, True),
    "llama-3.2-3b": (28, 3072, 24, 8, 8192, True),
}
_SCALING = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_sequence": 8192}
_LLAMA_2 = {"vocabulary": 32_000, "sequence": 4096}
_LLAMA_3 = {"vocabulary": 128_256, "sequence": 131_072, "rotary_base": 5e5}
_BY_8 = {"rotary_scaling": {"factor": 8.0, **_SCALING}}
_BY_32 = {"rotary_scaling": {"factor": 32.0, **_SCALING}}

KIND = {"positions": "rotary", "norm": "rms", "bias": False, "qkv_bias": False, "dropout": 0.0}
SHARED = {**KIND, "mlp": "swiglu", **NO_DROPOUT}

FAMILY = Family(
    architecture="LlamaForCausalLM",
    kind=KIND,
    fields={
        **SIZES,
        "num_key_value_heads": Field("kv_heads", None),
        "rms_norm_eps": Field("layer_norm_eps", 1e-6),
        "rope_theta": Field("rotary_base", 10_000.0),
        "head_dim": Field("head_size", None),
        "hidden_act": Field("mlp", values=SILU),
        "attention_bias": Field("qkv_bias out_bias", False),
        "mlp_bias": Field("bias", False),
    },
    modules={
        "embedding.token": "embed_tokens",
        "final_norm": "norm",
        "head": "lm_head",
        "attention_norm": "input_layernorm",
        "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "attention.out": "self_attn.o_proj",
        "attention.q_norm": "self_attn.q_norm",
        "attention.k_norm": "self_attn.k_norm",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    },
    presets=presets(COLUMNS, _TWO, SHARED, _LLAMA_2)
    | presets(COLUMNS, _THREE_1, SHARED, _LLAMA_3, _BY_8)
    | presets(COLUMNS, _THREE_2, SHARED, _LLAMA_3, _BY_32),
)
LIKE = FAMILY.like("", fields={"num_key_value_heads": Field("kv_heads"), "attention_bias": None, "mlp_bias": None})
"""The fields and modules that other families share with Llama."""
