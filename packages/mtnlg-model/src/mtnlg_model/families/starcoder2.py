"""StarCoder2: Llama's positions and shared heads, with GPT's norms and MLP (Lozhkov et al. 2024)."""

from .family import TANH_GELU, Field, LayersBy
from .llama import LIKE

FAMILY = LIKE.like(
    "Starcoder2ForCausalLM",
    kind={"norm": "layer"},
    fields={
        "residual_dropout": Field("dropout", 0.0),
        "initializer_range": Field("init_std", 0.018042),
        "norm_epsilon": Field("layer_norm_eps", 1e-5),
        "rms_norm_eps": None,
        "use_bias": Field("bias qkv_bias", True),
        "hidden_act": Field("mlp", values=TANH_GELU),
        "tie_word_embeddings": Field("tied", True),
    },
    modules={"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
    layers_by=LayersBy(),
)
