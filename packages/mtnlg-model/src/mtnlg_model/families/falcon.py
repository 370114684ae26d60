"""Falcon: attention and MLP in parallel, rotary positions, few heads of keys and values (Almazrouei et al. 2023).

The first models have one head of keys and values and one norm, later ones more heads and mostly two norms. Those of
RefinedWeb are in sequence, with ALiBi.
"""

from .bloom import FAMILY as BLOOM
from .family import EXACT_GELU, SIZES, Field

FAMILY = BLOOM.like(
    "FalconForCausalLM",
    kind={
        "positions": lambda fields: "alibi-bf16" if fields["alibi"] else "rotary",
        "embedding_norm": None,
        "parallel_residual": lambda fields: fields["parallel_attn"] or fields["new_decoder_architecture"],
        "kv_heads": lambda fields: (
            1
            if fields["multi_query"] and not fields["new_decoder_architecture"]
            else fields["num_kv_heads"] or fields["heads"]
        ),
        "shared_norm": lambda fields: (
            fields["num_ln_in_parallel_attn"] == 1 if fields["new_decoder_architecture"] else fields["parallel_attn"]
        ),
    },
    fields={
        **dict.fromkeys(("n_layer", "n_head", "seq_length", "slow_but_exact")),
        "num_hidden_layers": SIZES["num_hidden_layers"],
        "num_attention_heads": SIZES["num_attention_heads"],
        "max_position_embeddings": Field("sequence", 2048),
        "ffn_hidden_size": Field("ffn", None),
        "rope_theta": Field("rotary_base", 10_000.0),
        "activation": Field("mlp", values=EXACT_GELU),
        "bias": Field("bias qkv_bias", False),
        "num_kv_heads": Field(default=None, write=lambda config: config.kv_heads),
        "multi_query": Field(default=True, write=lambda config: config.kv_heads == 1),
        "new_decoder_architecture": Field(
            default=False,
            write=lambda config: (
                config.parallel_residual and (not config.shared_norm or 1 < config.kv_heads < config.heads)
            ),
        ),
        "num_ln_in_parallel_attn": Field(default=None, write=lambda config: 1 if config.shared_norm else 2),
        "alibi": Field(default=False, write=lambda config: config.positions == "alibi-bf16"),
        "parallel_attn": Field(default=True, write=lambda config: config.parallel_residual),
    },
    aliases={"n_embed": "hidden_size"},
    variant=lambda config: (
        {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
        if config.parallel_residual and not config.shared_norm
        else {}
    ),
)
