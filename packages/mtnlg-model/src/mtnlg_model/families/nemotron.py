"""Nemotron and Minitron: zero-centered layer norms, squared ReLU, half of each head rotated (Parmar et al. 2024)."""

from .family import Field
from .llama import FAMILY as LLAMA

FAMILY = LLAMA.like(
    "NemotronForCausalLM",
    kind={"norm": "layer", "zero_centered_norm": True},
    fields={
        "rms_norm_eps": None,
        "norm_eps": Field("layer_norm_eps", 1e-5),
        "initializer_range": Field("init_std", 0.0134),
        "partial_rotary_factor": Field("rotary_fraction", 0.5),
        "hidden_act": Field("mlp", values={"relu2": "relu2"}),
    },
    modules={"mlp.gate": None},
)
