"""StableLM: Llama with layer norms, part of each head rotated, some with biases of q, k and v (Stability AI 2024).

StableLM 2 12B has attention and MLP in parallel after one norm, and norms of q and k with weights for each head.
"""

from .family import Field
from .llama import LIKE

MOST_HEADS = 1024
"""Heads with norms of their own, whose tensors are listed before any are read."""

FAMILY = LIKE.like(
    "StableLmForCausalLM",
    kind={"norm": "layer"},
    fields={
        "rms_norm_eps": None,
        "head_dim": None,
        "layer_norm_eps": Field("layer_norm_eps", 1e-5),
        "partial_rotary_factor": Field("rotary_fraction", 0.25),
        "use_qkv_bias": Field("qkv_bias", False),
        "hidden_dropout": Field("dropout", 0.0),
        "qk_layernorm": Field("qk_norm", values={False: False, None: False, True: "by-head"}),
        "use_parallel_residual": Field("parallel_residual shared_norm", False),
    },
    variant=lambda config: {
        f"attention.{x}_norm": " ".join(f"self_attn.{x}_layernorm.norms.{n}" for n in range(min(heads, MOST_HEADS)))
        for x, heads in (("q", config.heads), ("k", config.kv_heads))
    },
)
