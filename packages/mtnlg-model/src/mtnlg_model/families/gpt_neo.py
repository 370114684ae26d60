"""GPT-Neo: GPT-2 with windows in every other layer, unscaled attention, no biases of q, k and v (Black et al. 2021)."""

from .family import SIZES, Field, LayersBy
from .gpt2 import FAMILY as GPT2

_ABSENT = """
    n_layer n_embd n_head n_positions n_inner resid_pdrop attn_pdrop
    scale_attn_weights scale_attn_by_inverse_layer_idx add_cross_attention
"""

FAMILY = GPT2.like(
    "GPTNeoForCausalLM",
    kind={"attention_scale": 1.0, "qkv_bias": False},
    fields={
        **dict.fromkeys(_ABSENT.split()),
        **{name: SIZES[name] for name in ("hidden_size", "max_position_embeddings", "attention_dropout")},
        "num_layers": Field("layers"),
        "num_heads": Field("heads"),
        "intermediate_size": Field("ffn", None),
        "resid_dropout": Field("dropout", 0.0),
        "attention_types": Field(
            default=[[["global", "local"], 12]],
            write=lambda config: [[["local" if config.layer(n).window else "global"], 1] for n in range(config.layers)],
        ),
    },
    modules={
        "attention.qkv": "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj",
        "attention.out": "attn.attention.out_proj",
    },
    transposed=False,
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    layers_by=LayersBy(
        256,
        name="window_size",
        slides=lambda fields, n: (
            [kind for pattern, times in fields["attention_types"] for _ in range(times) for kind in pattern][n]
            == "local"
        ),
    ),
)
