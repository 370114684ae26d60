"""GPT-BigCode: GPT-2 whose heads share one head of keys and values (SantaCoder, StarCoder; Li et al. 2023)."""

from .family import TANH_GELU, Field, only
from .gpt2 import FAMILY as GPT2

FAMILY = GPT2.like(
    "GPTBigCodeForCausalLM",
    kind={"kv_heads": 1},
    fields={"activation_function": Field("mlp", values=TANH_GELU), "multi_query": only(True)},
    transposed=False,
)
