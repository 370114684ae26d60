"""OPT: GPT with ReLU, separate q, k and v, and two unused rows before the position embeddings (Zhang et al. 2022)."""

from .family import GELU, SIZES, Family, Field, only

FAMILY = Family(
    architecture="OPTForCausalLM",
    kind={"position_offset": 2},
    fields={
        **{name: field for name, field in SIZES.items() if name not in {"initializer_range", "intermediate_size"}},
        "init_std": Field("init_std", 0.02),
        "ffn_dim": Field("ffn"),
        "word_embed_proj_dim": Field("hidden", None),
        "dropout": Field("dropout", 0.1),
        "tie_word_embeddings": Field("tied", True),
        "activation_function": Field("mlp", values={"relu": "relu", **GELU}),
        "do_layer_norm_before": only(True),
        "_remove_final_layer_norm": only(False),
        "enable_bias": Field("bias qkv_bias", True),
        "layer_norm_elementwise_affine": Field("norm", values={True: "layer", False: "layer-no-weight"}),
    },
    modules={
        "embedding.token": "embed_tokens",
        "embedding.position": "embed_positions",
        "final_norm": "final_layer_norm",
        "head": "lm_head",
        "attention_norm": "self_attn_layer_norm",
        "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
        "attention.out": "self_attn.out_proj",
        "mlp_norm": "final_layer_norm",
        "mlp.up": "fc1",
        "mlp.down": "fc2",
    },
    prefix="model.decoder.",
)
