"""GPT-2 (Radford et al. 2019), and MT-NLG and its team's smaller dense models, which are GPTs (paper.md section 6)."""

from .family import GELU, NO_DROPOUT, Family, Field, only, presets

_PAPER = {"sequence": 2048, "vocabulary": 51_200}
_GPT2 = {"sequence": 1024, "vocabulary": 50_257}
_PAPERS = {
    "mt-nlg-530b": (105, 20480, 128, 0.004),
    "dense-350m": (24, 1024, 16, 0.014),
    "dense-1.3b": (24, 2048, 16, 0.014),
    "dense-6.7b": (32, 4096, 32, 0.010),
}
_GPT2S = {
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}
_TINY = {"init_std": None, "sequence": 128, "vocabulary": 512}

FAMILY = Family(
    architecture="GPT2LMHeadModel",
    kind={},
    fields={
        "initializer_range": Field("init_std", 0.02),
        "vocab_size": Field("vocabulary"),
        "n_layer": Field("layers"),
        "n_embd": Field("hidden"),
        "n_head": Field("heads"),
        "n_positions": Field("sequence"),
        "n_inner": Field("ffn", None),
        "resid_pdrop": Field("dropout", 0.1),
        "attn_pdrop": Field("attention_dropout", 0.1),
        "layer_norm_epsilon": Field("layer_norm_eps", 1e-5),
        "tie_word_embeddings": Field("tied", True),
        "activation_function": Field("mlp", values=GELU),
        "scale_attn_weights": only(True),
        "scale_attn_by_inverse_layer_idx": only(False),
        "add_cross_attention": only(False),
    },
    modules={
        "embedding.token": "wte",
        "embedding.position": "wpe",
        "final_norm": "ln_f",
        "head": "lm_head",
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    },
    prefix="transformer.",
    layers="h.",
    aliases={"hidden_size": "n_embd", "max_position_embeddings": "n_positions"}
    | {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    transposed=True,
    presets=presets("layers hidden heads init_std", _PAPERS, _PAPER)
    | presets("layers hidden heads", _GPT2S, _GPT2)
    | presets("layers hidden heads", {"tiny": (2, 64, 4)}, _TINY, NO_DROPOUT),
)
