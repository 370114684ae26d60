"""OLMo: Llama with layer norms that have no weights, and q, k and v clipped (Groeneveld et al. 2024)."""

from .family import NO_PADDING, Field
from .llama import FAMILY as LLAMA

FAMILY = LLAMA.like(
    "OlmoForCausalLM",
    kind={"norm": "layer-no-weight", "layer_norm_eps": 1e-5},
    fields={
        **NO_PADDING,
        "rms_norm_eps": None,
        "clip_qkv": Field("qkv_clip", None, float),
        "mlp_bias": None,
    },
)
