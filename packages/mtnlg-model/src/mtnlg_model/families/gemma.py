"""Gemma: Llama with GeLU gates, zero-centered norms and a scaled embedding (Gemma Team 2024)."""

from .family import NO_DROPOUT, Field
from .llama import FAMILY as LLAMA

GEGLU = Field("mlp", values={"gelu_pytorch_tanh": "geglu"})

FAMILY = LLAMA.like(
    "GemmaForCausalLM",
    kind={"zero_centered_norm": True, "embedding_multiplier": lambda settings: settings["hidden"] ** 0.5, **NO_DROPOUT},
    fields={
        # "gelu" means its tanh form.
        "hidden_act": Field("mlp", values={"gelu_pytorch_tanh": "geglu", "gelu": "geglu"}),
        "num_key_value_heads": Field("kv_heads", 16),
        "head_dim": Field("head_size", 256),
        "tie_word_embeddings": Field("tied", True),
        "mlp_bias": None,
        "use_bidirectional_attention": Field(values={None: None, False: None}),
    },
)
