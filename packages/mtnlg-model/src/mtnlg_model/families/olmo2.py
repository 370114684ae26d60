"""OLMo 2: Llama with norms after attention and MLP, and one norm over all heads of q and of k (OLMo et al. 2024)."""

from .family import Field
from .llama import FAMILY as LLAMA

FAMILY = LLAMA.like(
    "Olmo2ForCausalLM",
    kind={"qk_norm": "full", "by_layer": [{"norm_after": True}]},
    fields={"rms_norm_eps": Field("layer_norm_eps", 1e-5), "mlp_bias": None},
    modules={"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"},
)
