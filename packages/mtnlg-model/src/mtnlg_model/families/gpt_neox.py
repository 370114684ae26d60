"""GPT-NeoX (Black et al. 2022), also at the sizes of Pythia (Biderman et al. 2023)."""

from .family import EXACT_GELU, NO_DROPOUT, SIZES, Family, Field, presets

_PYTHIAS = {
    "pythia-70m": (6, 512, 8, 50304),
    "pythia-160m": (12, 768, 12, 50304),
    "pythia-410m": (24, 1024, 16, 50304),
    "pythia-1b": (16, 2048, 8, 50304),
    "pythia-1.4b": (24, 2048, 16, 50304),
    "pythia-2.8b": (32, 2560, 32, 50304),
    "pythia-6.9b": (32, 4096, 32, 50432),
    "pythia-12b": (36, 5120, 40, 50688),
}
_PYTHIA = {"sequence": 2048, "rotary_fraction": 0.25, "mlp": "gelu", "parallel_residual": True, "tied": False}
_KIND = {"positions": "rotary"}

FAMILY = Family(
    architecture="GPTNeoXForCausalLM",
    kind=_KIND,
    fields={
        **SIZES,
        "hidden_dropout": Field("dropout", 0.0),
        "layer_norm_eps": Field("layer_norm_eps", 1e-5),
        "use_parallel_residual": Field("parallel_residual", True),
        "rotary_pct": Field("rotary_fraction", 0.25),
        "rotary_emb_base": Field("rotary_base", 10_000.0),
        "hidden_act": Field("mlp", values=EXACT_GELU),
        "attention_bias": Field("qkv_bias out_bias", True),
    },
    modules={
        "embedding.token": "embed_in",
        "final_norm": "final_layer_norm",
        "head": "embed_out",
        "attention_norm": "input_layernorm",
        "attention.qkv": "attention.query_key_value",
        "attention.out": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
    prefix="gpt_neox.",
    ordered_by_head=True,
    presets=presets("layers hidden heads vocabulary", _PYTHIAS, _KIND, _PYTHIA, NO_DROPOUT),
)
