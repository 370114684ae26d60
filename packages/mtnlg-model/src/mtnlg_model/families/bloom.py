"""BLOOM: GPT with ALiBi and a norm of the token embedding (BigScience 2022)."""

from .family import SIZES, Family, Field, only

FAMILY = Family(
    architecture="BloomForCausalLM",
    kind={"positions": "alibi", "embedding_norm": True},
    fields={
        **{name: SIZES[name] for name in ("initializer_range", "vocab_size", "hidden_size", "attention_dropout")},
        "n_layer": Field("layers"),
        "n_head": Field("heads"),
        "seq_length": Field("sequence", 2048),
        "layer_norm_epsilon": Field("layer_norm_eps", 1e-5),
        "hidden_dropout": Field("dropout", 0.0),
        "tie_word_embeddings": Field("tied", True),
        "apply_residual_connection_post_layernorm": only(False),
        "slow_but_exact": only(False),
    },
    modules={
        "embedding.token": "word_embeddings",
        "embedding.norm": "word_embeddings_layernorm",
        "final_norm": "ln_f",
        "head": "lm_head",
        "attention_norm": "input_layernorm",
        "attention.qkv": "self_attention.query_key_value",
        "attention.out": "self_attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
    prefix="transformer.",
    layers="h.",
    ordered_by_head=True,
    aliases={"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
)
