"""OPT: GPT with ReLU, separate q, k and v, and two unused rows before the position embeddings (Zhang et al. 2022).

OPT 350M has norms after the sums, none before the head, and a token embedding of half the width.
"""

from .family import GELU, SIZES, Family, Field

FAMILY = Family(
    architecture="OPTForCausalLM",
    kind={
        "position_offset": 2,
        "by_layer": lambda said: () if said["do_layer_norm_before"] else ({"norm_after": "sum"},),
        "final_norm": lambda said: said["do_layer_norm_before"] and not said["_remove_final_layer_norm"],
    },
    fields={
        **{name: field for name, field in SIZES.items() if name not in {"initializer_range", "intermediate_size"}},
        "init_std": Field("init_std", 0.02),
        "ffn_dim": Field("ffn"),
        "word_embed_proj_dim": Field("embedding_size", None),
        "dropout": Field("dropout", 0.1),
        "tie_word_embeddings": Field("tied", True),
        "activation_function": Field("mlp", values={"relu": "relu", **GELU}),
        "do_layer_norm_before": Field(default=True, write=lambda config: not config.layer(0).norm_after),
        "_remove_final_layer_norm": Field(default=False, write=lambda config: not config.final_norm),
        "enable_bias": Field("bias qkv_bias", True),
        "layer_norm_elementwise_affine": Field("norm", values={True: "layer", False: "layer-no-weight"}),
    },
    modules={
        "embedding.token": "embed_tokens",
        "embedding.position": "embed_positions",
        "embedding.project": "project_in",
        "final_norm.project": "project_out",
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
