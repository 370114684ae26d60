"""ModelConfig and presets: shapes, parameter counts, floating-point operations and bytes. Imports no torch.

Exact number of parameters for l layers, hidden h, sequence s, vocabulary V (paper.md section 1; Narayanan et al. 2021,
equation 2)

    P = l (12 h² + 13 h) + V h + s h + 2 h                            529,600,819,200 for MT-NLG

and floating-point operations of one iteration over B sequences, matrix products only (ibid., equation 3)

    model      72 B s l h² (1 + s / 6h + V / 12lh)                    forward and backward
    hardware   96 B s l h² (1 + s / 6h + V / 16lh)                    forward twice, backward (full recomputation)
"""

from __future__ import annotations

import math
from typing import Annotated, Final

from pydantic import Field, model_validator

from .console import UsageFailure
from .settings import Settings

Count = Annotated[int, Field(gt=0, lt=1 << 40)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]

STATE_BYTES_PER_PARAMETER: Final = {
    "weights (bf16)": 2,
    "master weights (fp32)": 4,
    "gradients (bf16)": 2,
    "accumulated gradients (fp32)": 4,
    "Adam's two moments (fp32)": 8,
}
"""Memory of mixed-precision training per parameter: 20 bytes, the paper's budget (paper.md section 3)."""


class ModelConfig(Settings):
    """Shape of a GPT decoder: pre-layer-norm, learned positions, tied embeddings (paper.md section 1).

    ``vocabulary`` counts the rows of the token embedding, padding included. ``init_std`` None means sqrt(1/(3h)).
    ``scale_attention_by_layer`` divides queries by the layer's number (from 1) and multiplies it back inside the
    softmax: half-precision products stay small, the result is the same (paper.md section 1, attention numerics).
    """

    layers: Count
    hidden: Count
    heads: Count
    sequence: Count
    vocabulary: Count
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1
    init_std: Annotated[float, Field(gt=0.0)] | None = None
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5
    scale_attention_by_layer: bool = False

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> ModelConfig:
        if self.hidden % self.heads:
            near = [n for n in range(1, min(self.hidden, 4096) + 1) if self.hidden % n == 0]
            near.sort(key=lambda n: abs(n - self.heads))
            choices = ", ".join(str(n) for n in sorted(near[:4]))
            raise ValueError(f"heads = {self.heads} does not divide hidden = {self.hidden}; use for example {choices}")
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def ffn(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.hidden

    @property
    def std(self) -> float:
        """Standard deviation of the initial weights (paper.md section 1: sqrt(1/(3h)))."""
        return self.init_std if self.init_std is not None else math.sqrt(1 / (3 * self.hidden))

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Exact parameter counts. The head is tied to the token embedding and counted there."""
        h = self.hidden
        return {
            "token embedding": self.vocabulary * h,
            "position embedding": self.sequence * h,
            "attention": self.layers * (4 * h * h + 4 * h),
            "feed-forward": self.layers * (8 * h * h + 5 * h),
            "norms": self.layers * 4 * h + 2 * h,
        }

    @property
    def parameters(self) -> int:
        """Exact number of parameters."""
        return sum(self.parameters_by_part.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of the key-value cache in 16-bit precision."""
        return 2 * self.layers * self.hidden * 2

    @property
    def tensor_count(self) -> int:
        """Number of parameter tensors, computed without listing them."""
        return self.layers * len(self.layer_shapes()) + len(self.outer_shapes())

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and global shape of every parameter, in model order."""
        outer, layer = list(self.outer_shapes().items()), self.layer_shapes()
        layers = {f"layers.{n}.{name}": shape for n in range(self.layers) for name, shape in layer.items()}
        return dict(outer[:2]) | layers | dict(outer[2:])

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and global shape of the parameters outside the layers: two embeddings, then the final norm."""
        h = self.hidden
        return {
            "embedding.token.weight": (self.vocabulary, h),
            "embedding.position.weight": (self.sequence, h),
            "final_norm.weight": (h,),
            "final_norm.bias": (h,),
        }

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name within the layer and global shape of one layer's parameters, in model order."""
        h = self.hidden
        weights: dict[str, tuple[int, ...]] = {
            "attention_norm": (h,),
            "attention.qkv": (3 * h, h),
            "attention.out": (h, h),
            "mlp_norm": (h,),
            "mlp.up": (self.ffn, h),
            "mlp.down": (h, self.ffn),
        }
        pairs = ({f"{name}.weight": shape, f"{name}.bias": shape[:1]} for name, shape in weights.items())
        return {name: shape for pair in pairs for name, shape in pair.items()}

    def model_flops(self, batch: int) -> float:
        """72-coefficient formula: forward and backward of ``batch`` sequences. MFU counts these."""
        return self._flops(72, 12, batch)

    def hardware_flops(self, batch: int) -> float:
        """96-coefficient formula: with every layer's forward pass recomputed as well. HFU counts these."""
        return self._flops(96, 16, batch)

    def _flops(self, coefficient: int, head: int, batch: int) -> float:
        l, h, s, v = self.layers, self.hidden, self.sequence, self.vocabulary  # noqa: E741  (the paper's letters)
        return coefficient * batch * s * l * h**2 * (1 + s / (6 * h) + v / (head * l * h))


def _gpt2(layers: int, hidden: int, heads: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=1024, vocabulary=50257, init_std=0.02)


def _dense(layers: int, hidden: int, heads: int, init_std: float) -> ModelConfig:
    """MT-NLG and the team's smaller dense models on the same corpus (paper.md section 6)."""
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=51200, init_std=init_std)


PRESETS: Final[dict[str, ModelConfig]] = {
    "mt-nlg-530b": _dense(105, 20480, 128, 0.004),
    "dense-350m": _dense(24, 1024, 16, 0.014),
    "dense-1.3b": _dense(24, 2048, 16, 0.014),
    "dense-6.7b": _dense(32, 4096, 32, 0.010),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "tiny": ModelConfig(layers=2, hidden=64, heads=4, sequence=128, vocabulary=512, dropout=0.0, attention_dropout=0.0),
}


def preset(name: str) -> ModelConfig:
    """Return the preset of this name. Raises ``UsageFailure`` listing the valid names."""
    if name not in PRESETS:
        raise UsageFailure(f"preset {name}: unknown; choose from {', '.join(PRESETS)}")
    return PRESETS[name]
