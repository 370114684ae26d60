"""The families of decoders in Hugging Face's format, as data: fields of their config.json and names of their tensors.

`config_json` reads and writes the one, `huggingface` the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

REQUIRED: Final = object()


class Setting(NamedTuple):
    """Our setting for a field, the field's type, and its value where it is missing; None: that of `ModelConfig`."""

    name: str
    kind: type
    default: object = REQUIRED


@dataclass(frozen=True)
class Family:
    """One model_type of config.json. ``kind`` are the settings that all its models share.

    A field is in ``settings``, names the ``activation``, has one of its values in ``fixed``, or is ``ignored``. Names
    of tensors outside of layers are in ``outer``, after ``prefix`` but for the head, and those of layer N in ``inner``,
    after ``prefix``, ``layers`` and N. A packed qkv is ordered by head, as ours, or has all q, all k, all v.
    ``window`` is that of attention where the field is missing.
    """

    architecture: str
    kind: dict[str, object]
    settings: dict[str, Setting]
    activation: tuple[str, dict[str, str]]
    prefix: str
    layers: str
    outer: dict[str, str]
    inner: dict[str, tuple[str, ...]]
    fixed: dict[str, tuple[object, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    rotary: bool = True
    window: int | None = None
    transposed: bool = False
    ordered_by_head: bool = False


GELU: Final = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh", "gelu": "gelu"}
SILU: Final = {"silu": "swiglu", "swish": "swiglu"}

_COMMON: Final = {
    "initializer_range": Setting("init_std", float, 0.02),
    "vocab_size": Setting("vocabulary", int),
}
_GPT2: Final = Family(
    architecture="GPT2LMHeadModel",
    kind={},
    settings={
        **_COMMON,
        "n_layer": Setting("layers", int),
        "n_embd": Setting("hidden", int),
        "n_head": Setting("heads", int),
        "n_positions": Setting("sequence", int),
        "n_inner": Setting("ffn", int, None),
        "resid_pdrop": Setting("dropout", float, 0.1),
        "attn_pdrop": Setting("attention_dropout", float, 0.1),
        "layer_norm_epsilon": Setting("layer_norm_eps", float, 1e-5),
        "tie_word_embeddings": Setting("tied", bool, True),
    },
    activation=("activation_function", GELU),
    prefix="transformer.",
    layers="h.",
    outer={
        "embedding.token.weight": "wte.weight",
        "embedding.position.weight": "wpe.weight",
        "final_norm.weight": "ln_f.weight",
        "final_norm.bias": "ln_f.bias",
        "head.weight": "lm_head.weight",
    },
    inner={
        "attention_norm": ("ln_1",),
        "attention.qkv": ("attn.c_attn",),
        "attention.out": ("attn.c_proj",),
        "mlp_norm": ("ln_2",),
        "mlp.up": ("mlp.c_fc",),
        "mlp.down": ("mlp.c_proj",),
    },
    fixed={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    ignored=frozenset({"embd_pdrop", "n_ctx", "reorder_and_upcast_attn", "gradient_checkpointing"}),
    rotary=False,
    transposed=True,
)
_SIZES: Final = {
    **_COMMON,
    "num_hidden_layers": Setting("layers", int),
    "hidden_size": Setting("hidden", int),
    "num_attention_heads": Setting("heads", int),
    "max_position_embeddings": Setting("sequence", int),
    "intermediate_size": Setting("ffn", int),
    "attention_dropout": Setting("attention_dropout", float, 0.0),
    "tie_word_embeddings": Setting("tied", bool, False),
}
_NEOX: Final = Family(
    architecture="GPTNeoXForCausalLM",
    kind={"positions": "rotary"},
    settings={
        **_SIZES,
        "hidden_dropout": Setting("dropout", float, 0.0),
        "layer_norm_eps": Setting("layer_norm_eps", float, 1e-5),
        "use_parallel_residual": Setting("parallel_residual", bool, True),
        "rotary_pct": Setting("rotary_fraction", float, 0.25),
        "rotary_emb_base": Setting("rotary_base", float, 10_000.0),
    },
    activation=("hidden_act", {"gelu": "gelu", **GELU}),
    prefix="gpt_neox.",
    layers="layers.",
    outer={
        "embedding.token.weight": "embed_in.weight",
        "final_norm.weight": "final_layer_norm.weight",
        "final_norm.bias": "final_layer_norm.bias",
        "head.weight": "embed_out.weight",
    },
    inner={
        "attention_norm": ("input_layernorm",),
        "attention.qkv": ("attention.query_key_value",),
        "attention.out": ("attention.dense",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.up": ("mlp.dense_h_to_4h",),
        "mlp.down": ("mlp.dense_4h_to_h",),
    },
    fixed={"attention_bias": (True,)},
    ignored=frozenset({"attention_probs_dropout_prob", "hidden_dropout_prob"}),
    ordered_by_head=True,
)


def _llama(architecture: str, kv_heads: object = REQUIRED, *, head_size: bool = True, **more: Any) -> Family:  # noqa: ANN401  (fields)
    """Llama, and what has its names: RMS norms, SwiGLU, no biases but perhaps those of q, k and v."""
    sizes = {
        "num_key_value_heads": Setting("kv_heads", int, kv_heads),
        "rms_norm_eps": Setting("layer_norm_eps", float, 1e-6),
        "rope_theta": Setting("rotary_base", float, 10_000.0),
    }
    kind = {
        "positions": "rotary",
        "norm": "rms",
        "bias": False,
        "qkv_bias": False,
        "dropout": 0.0,
        **more.pop("kind", {}),
    }
    norms = {"attention.q_norm": ("self_attn.q_norm",), "attention.k_norm": ("self_attn.k_norm",)}
    return Family(
        architecture=architecture,
        kind=kind,
        settings=_SIZES | sizes | ({"head_dim": Setting("head_size", int, None)} if head_size else {}),
        activation=("hidden_act", SILU),
        prefix="model.",
        layers="layers.",
        outer={
            "embedding.token.weight": "embed_tokens.weight",
            "final_norm.weight": "norm.weight",
            "head.weight": "lm_head.weight",
        },
        inner={
            "attention_norm": ("input_layernorm",),
            "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attention.out": ("self_attn.o_proj",),
            **(norms if kind.get("qk_norm") else {}),
            "mlp_norm": ("post_attention_layernorm",),
            "mlp.gate": ("mlp.gate_proj",),
            "mlp.up": ("mlp.up_proj",),
            "mlp.down": ("mlp.down_proj",),
        },
        **more,
    )


UNREAD: Final[dict[str, tuple[object, ...]]] = {
    "use_mrope": (False,),  # Qwen2.5
    "rope_interleaved": (False,),  # SmolLM
    "activation": ("swiglu",),  # Falcon3, beside hidden_act
}
"""Fields of published folders that transformers does not read, at the values that say what it computes."""

_QWEN_FIXED: Final[dict[str, tuple[object, ...]]] = {"use_sliding_window": (False,)}

FAMILIES: Final[dict[str, Family]] = {
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
    "llama": _llama(
        "LlamaForCausalLM",
        kv_heads=None,
        fixed={"attention_bias": (False,), "mlp_bias": (False,)},
        ignored=frozenset({"pretraining_tp"}),
    ),
    "mistral": _llama("MistralForCausalLM", window=4096),
    "qwen2": _llama("Qwen2ForCausalLM", head_size=False, kind={"qkv_bias": True}, fixed=_QWEN_FIXED),
    "qwen3": _llama("Qwen3ForCausalLM", kind={"qk_norm": True}, fixed={"attention_bias": (False,), **_QWEN_FIXED}),
}
"""By model_type. A decoder is exported as the first that has it, so a Mistral as the Llama that it is."""
