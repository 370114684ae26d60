"""A GPT of Megatron-LM by its tensors' shapes and its run's arguments, which shapes do not show and must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, say
from mtnlg_model.settings import validate

from .pickle_reader import Record
from .torch_file import TorchFile

if TYPE_CHECKING:
    from pathlib import Path

SIZES: Final = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "kv_channels": "head_size",
    "ffn_hidden_size": "ffn",
    "max_position_embeddings": "sequence",
}
FIXED: Final[dict[str, tuple[object, ...]]] = {
    **dict.fromkeys(("apply_residual_connection_post_layernorm", "apply_layernorm_1p"), (False,)),
    **dict.fromkeys(("swiglu", "squared_relu", "quick_geglu", "multi_latent_attention"), (False,)),
    **dict.fromkeys(("qk_layernorm", "qk_l2_norm", "glu_linear_offset"), (False,)),
    **dict.fromkeys(("window_size", "softmax_scale", "activation_func_clamp_value"), ()),
    "normalization": ("LayerNorm", "layernorm"),
    "softmax_type": ("vanilla",),
}
"""Arguments that change what is computed but no shape, at the values of this decoder; None is one of all."""


def _read_arguments(path: Path) -> dict[str, Any]:
    """The arguments in a file of Megatron's; empty, and said to be so, if there is no such file."""
    content = TorchFile(path).content if path.is_file() else {}
    arguments = content.get("args") if isinstance(content, dict) else None
    state = arguments.state if isinstance(arguments, Record) else None
    if isinstance(state, dict):
        return state
    say(f"{path}: no arguments of the run: taken for a GPT with layer norms and GeLU by tanh")
    return {}


def config_of(sizes: dict[str, int], heads: int | None, path: Path) -> ModelConfig:
    """The configuration by sizes of tensors and arguments at ``path``. Raises ``Failure`` where they contradict."""
    arguments = _read_arguments(path)
    heads = heads or arguments.get("num_attention_heads")
    if heads is None:
        raise Failure(f"{path.parent}: number of attention heads not stored; give --heads N")
    by_tanh = arguments.get("bias_gelu_fusion") is not False or arguments.get("openai_gelu") is True
    rest = {"heads": heads, "layer_norm_eps": arguments.get("layernorm_epsilon", 1e-5)}
    if not all(isinstance(value, int | float) for value in rest.values()):
        raise Failure(f"{path}: num_attention_heads or layernorm_epsilon is no number")
    config = validate({**sizes, **rest, "mlp": "gelu-tanh" if by_tanh else "gelu"}, ModelConfig, str(path.parent))
    expected = {name: (getattr(config, ours),) for name, ours in SIZES.items()} | FIXED
    for name, values in expected.items():
        value = arguments.get(name)
        if value is not None and value not in values:
            shown = value if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"
            raise Failure(f"{path}: {name} = {shown!s:.60}: {', '.join(map(str, values)) or 'none'} is what fits")
    return config
