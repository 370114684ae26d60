"""Configuration of a Megatron-LM GPT from tensor shapes and, for what they do not show, from the run's arguments.

Both must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.settings import validate

from .pickle_reader import Record
from .torch_file import TorchFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIZES: Final = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "kv_channels": "head_size",
    "ffn_hidden_size": "ffn",
    "max_position_embeddings": "sequence",
}
_OFF: Final = """
    apply_residual_connection_post_layernorm apply_layernorm_1p layernorm_zero_centered_gamma swiglu squared_relu
    quick_geglu gated_linear_unit glu_linear_offset multi_latent_attention qk_layernorm qk_l2_norm
    attention_output_gate is_hybrid_model heterogeneous_block_specs untie_embeddings_and_output_weights
    group_query_attention use_rotary_position_embeddings
"""
_NONE: Final = """
    window_size window_attn_skip_freq softmax_scale activation_func activation_func_clamp_value num_moe_experts
    num_experts mtp_num_layers experimental_attention_variant linear_attention_freq quant_recipe
"""
FIXED: Final[dict[str, tuple[object, ...]]] = {
    **dict.fromkeys(_OFF.split(), (False,)),
    **dict.fromkeys(_NONE.split(), ()),
    "normalization": ("LayerNorm", "layernorm"),
    "softmax_type": ("vanilla",),
    "add_bias_linear": (True,),
    "position_embedding_type": ("learned_absolute",),
}
"""Arguments that change the computation, with the values that this decoder supports; None is supported for all.

tests/test_megatron_import.py compares them with all arguments that megatron-core's model reads.
"""


def _read_arguments(path: Path) -> Mapping[str, Any]:
    """The run's arguments in a Megatron file. Raises ``Failure`` if there are none."""
    content = TorchFile(path).content if path.is_file() else {}
    arguments = content.get("args") if isinstance(content, dict) else None
    state = arguments.state if isinstance(arguments, Record) else None
    if not isinstance(state, dict):
        raise Failure(
            f"{path}: no arguments of the run, which the tensors do not show; "
            'give them as --config FILE, a JSON object such as {"num_attention_heads": 16}'
        )
    return state


def config_of(sizes: dict[str, int], path: Path, arguments: Mapping[str, Any] | None = None) -> ModelConfig:
    """The configuration from tensor sizes and the run's arguments, by default those in the file ``path``.

    Raises ``Failure`` if they contradict each other.
    """
    arguments = _read_arguments(path) if arguments is None else arguments
    by_tanh = arguments.get("bias_gelu_fusion") is not False or arguments.get("openai_gelu") is True
    rest = {"heads": arguments.get("num_attention_heads"), "layer_norm_eps": arguments.get("layernorm_epsilon", 1e-5)}
    if not all(isinstance(value, int | float) for value in rest.values()):
        raise Failure(f"{path}: num_attention_heads or layernorm_epsilon is not a number")
    config = validate({**sizes, **rest, "mlp": "gelu-tanh" if by_tanh else "gelu"}, ModelConfig, str(path.parent))
    expected = {name: (getattr(config, ours),) for name, ours in SIZES.items()} | FIXED
    for name, values in expected.items():
        value = arguments.get(name)
        if value is not None and value not in values:
            shown = value if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"
            only = f"only {', '.join(map(str, values))} is" if values else "not"
            raise Failure(f"{path}: {name} = {shown!s:.60}: {only} supported")
    return config
