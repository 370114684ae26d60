"""GPT-J: attention and MLP in parallel after one norm, part of each head rotated (Wang and Komatsuzaki 2021)."""

from __future__ import annotations

import math

from .family import UNTIED, Field, Fields
from .gpt2 import FAMILY as GPT2


def _fraction(fields: Fields) -> float:
    """``rotary_fraction`` at which ``rotary_dim`` values of a head, rounded down, are rotated."""
    size, turned = fields["hidden"] // fields["heads"], fields["rotary_dim"]
    fraction: float = turned / size
    return fraction if int(size * fraction) == turned else math.nextafter(fraction, 2)


FAMILY = GPT2.like(
    "GPTJForCausalLM",
    kind={"positions": "rotary", "parallel_residual": True, "shared_norm": True, "rotary_fraction": _fraction}
    | {"qkv_bias": False, "out_bias": False, "head_bias": True},
    fields={
        **dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention")),
        "rotary_dim": Field(default=64, write=lambda config: config.rotary_size),
        "resid_pdrop": Field("dropout", 0.0),
        "attn_pdrop": Field("attention_dropout", 0.0),
        "tie_word_embeddings": UNTIED,
    },
    modules={
        "embedding.position": None,
        "mlp_norm": None,
        "attention.qkv": "attn.q_proj attn.k_proj attn.v_proj",
        "attention.out": "attn.out_proj",
        "mlp.up": "mlp.fc_in",
        "mlp.down": "mlp.fc_out",
    },
    transposed=False,
    interleaved=True,
)
