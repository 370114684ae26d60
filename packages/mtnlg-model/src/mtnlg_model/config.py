"""ModelConfig and presets: shapes, parameter counts, floating-point operations and bytes. Imports no torch.

A GPT of l layers, hidden h, sequence s and vocabulary V has exactly (paper.md section 1; Narayanan et al. 2021, eq. 2)

    P = l (12 h² + 13 h) + V h + s h + 2 h                            529,600,819,200 for MT-NLG

parameters; any other decoder as many as its tensors, which `layer_shapes` and `outer_shapes` list. Floating-point
operations of one iteration over B sequences count matrix products only. With W the weights of a layer's matrices (12 h²
for a GPT) and a = heads · head size (h for a GPT)

    model      3 B s (2 l W + 4 l s a + 2 V h)                        forward and backward
    hardware   B s (8 l W + 16 l s a + 6 V h)                         forward twice, backward (full recomputation)

which for a GPT are equations 3 and 4 of the same: 72 B s l h² (1 + s/6h + V/12lh) and 96 B s l h² (1 + s/6h + V/16lh).
"""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, model_serializer, model_validator

from .console import UsageFailure
from .settings import Settings, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import SerializerFunctionWrapHandler

Count = Annotated[int, Field(gt=0, lt=1 << 40)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]

STATE_BYTES_PER_PARAMETER: Final = {
    "weights (bf16)": 2,
    "master weights (fp32)": 4,
    "gradients (bf16)": 2,
    "accumulated gradients (fp32)": 4,
    "Adam's two moments (fp32)": 8,
}
"""Memory of mixed-precision training per parameter: 20 bytes, the paper's budget (paper.md section 3)."""


class Llama3Scaling(Settings):
    """Llama 3.1's stretching of rotary wavelengths beyond those of the first training (Grattafiori et al. 2024, 3.4.2).

    Wavelengths above ``original_sequence / low_frequency_factor`` tokens are multiplied by ``factor``, those below
    ``original_sequence / high_frequency_factor`` are kept, and those between are blended.
    """

    factor: Positive = Field(description="by which long wavelengths are stretched")
    low_frequency_factor: Positive = Field(description="longer than original_sequence over this: stretched")
    high_frequency_factor: Positive = Field(description="shorter than original_sequence over this: kept")
    original_sequence: Count = Field(description="tokens of the samples of the first training")

    @model_validator(mode="after")
    def _frequencies_are_ordered(self) -> Self:
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError("low_frequency_factor must be less than high_frequency_factor")
        return self


class ModelConfig(Settings):
    """Shape of a decoder. Only the first five settings are required; the defaults of all others are MT-NLG's GPT.

    ``vocabulary`` counts the rows of the token embedding, padding included; the last ``vocabulary_padding`` of them are
    no tokens and have no logit. ``init_std`` None means sqrt(1/(3h)). ``scale_attention_by_layer`` divides queries by
    the layer's number (from 1) and multiplies it back inside the softmax: half-precision products stay small, the
    result is the same (paper.md section 1, attention numerics).

    ``head_size``, ``kv_heads`` and ``ffn`` are hidden / heads, heads and 4 hidden unless given. Files (``mode="json"``)
    leave out what equals its default, so a GPT's is what it was before there were others; so compare configurations by
    `compare.differences`.
    """

    layers: Count = Field(description="number of layers")
    hidden: Count = Field(description="width of the hidden state")
    heads: Count = Field(description="attention heads of a layer")
    sequence: Count = Field(description="tokens of a training sample; most that learned positions reach")
    vocabulary: Count = Field(description="rows of the token embedding, padding included")
    dropout: Rate = Field(0.1, description="rate, of the hidden state")
    attention_dropout: Rate = Field(0.1, description="rate, of the attention's weights")
    init_std: Positive | None = Field(None, description="of initial weights; sqrt(1 / (3 hidden)) unless given")
    layer_norm_eps: Positive = Field(1e-5, description="of all norms, beside the variance")
    scale_attention_by_layer: bool = Field(False, description="divide queries by the layer's number, and back")
    head_size: Count = setting(None, "width of an attention head; hidden / heads unless given")
    kv_heads: Count = setting(None, "heads of keys and values, each for heads / kv_heads queries")
    ffn: Count = setting(None, "width of the feed-forward layer; 4 hidden unless given")
    positions: Literal["learned", "rotary"] = Field("learned", description="a table of positions, or turned q and k")
    rotary_base: Positive = Field(10_000.0, description="wavelengths of rotary positions: 2π base^(2i / size)")
    rotary_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1.0, description="part of a head that is turned")
    rotary_scaling: Llama3Scaling | None = None
    norm: Literal["layer", "layer-no-bias", "rms"] = Field("layer", description="layer norm, or by root mean square")
    mlp: Literal["gelu-tanh", "gelu", "swiglu"] = Field("gelu-tanh", description="GeLU by tanh or exact, or SiLU gates")
    bias: bool = Field(True, description="biases of the linear layers, but q, k and v's")
    qkv_bias: bool = Field(True, description="biases of q, k and v")
    qk_norm: bool = Field(False, description="RMS norm of each head's q and k")
    parallel_residual: bool = Field(False, description="attention and MLP read the same input")
    tied: bool = Field(True, description="the head's weights are the token embedding's")
    vocabulary_padding: Annotated[int, Field(ge=0)] = Field(0, description="last rows of the vocabulary: no tokens")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_widths(cls, content: Any) -> Any:  # noqa: ANN401  (not validated yet)
        if not isinstance(content, dict):
            return content
        hidden, heads = (content.get(key) for key in ("hidden", "heads"))
        if type(hidden) is int and type(heads) is int and heads > 0:
            if "head_size" not in content and hidden % heads:
                near = [n for n in range(1, min(hidden, 4096) + 1) if hidden % n == 0]
                near.sort(key=lambda n: abs(n - heads))
                choices = ", ".join(str(n) for n in sorted(near[:4]))
                raise ValueError(f"heads = {heads} does not divide hidden = {hidden}; use for example {choices}")
            return {**_widths(hidden, heads), **content}
        return content

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.positions == "rotary" and (self.rotary_size % 2 or not self.rotary_size):
            raise ValueError(f"rotary positions turn pairs; {self.rotary_size} of {self.head_size} values are none")
        if self.vocabulary_padding >= self.vocabulary:
            raise ValueError(f"vocabulary_padding = {self.vocabulary_padding} leaves none of {self.vocabulary} tokens")
        return self

    @model_serializer(mode="wrap", when_used="json")
    def _leave_out_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key in GPT_FIELDS or key in self.beyond_gpt}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A validated copy; widths that follow from others follow them again."""
        del deep  # nothing in it can change
        return self.model_validate({**self.model_dump(mode="json"), **(update or {})})

    @property
    def beyond_gpt(self) -> dict[str, Any]:
        """What differs from MT-NLG's GPT in kind, not in size: setting and value."""
        defaults = {name: field.default for name, field in type(self).model_fields.items() if name not in GPT_FIELDS}
        defaults |= _widths(self.hidden, self.heads)
        return {name: value for name, default in defaults.items() if (value := getattr(self, name)) != default}

    @property
    def rotary_size(self) -> int:
        """Values of a head that rotary positions turn; the others know no position."""
        return int(self.head_size * self.rotary_fraction)

    @property
    def tokens(self) -> int:
        """Rows of the vocabulary that are tokens, or may become some."""
        return self.vocabulary - self.vocabulary_padding

    @property
    def unpadded(self) -> Self:
        """The same decoder without padding of the vocabulary."""
        return self.model_copy(update={"vocabulary": self.tokens, "vocabulary_padding": 0})

    @property
    def std(self) -> float:
        """Standard deviation of the initial weights (paper.md section 1: sqrt(1/(3h)))."""
        return self.init_std if self.init_std is not None else math.sqrt(1 / (3 * self.hidden))

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Exact parameter counts. A tied head is the token embedding and counted there."""
        counts: dict[str, int] = {}
        for shapes, times in ((self.outer_shapes(), 1), (self.layer_shapes(), self.layers)):
            for name, shape in shapes.items():
                part = [part for key, part in PARTS.items() if key in name][-1]
                counts[part] = counts.get(part, 0) + times * math.prod(shape)
        return {part: counts[part] for part in PARTS.values() if part in counts}

    @property
    def parameters(self) -> int:
        """Exact number of parameters."""
        return sum(self.parameters_by_part.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of the key-value cache in 16-bit precision."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2

    @property
    def tensor_count(self) -> int:
        """Number of parameter tensors, computed without listing them."""
        return self.layers * len(self.layer_shapes()) + len(self.outer_shapes())

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and global shape of every parameter, in model order."""
        outer, layer = self.outer_shapes(), self.layer_shapes()
        first = {name: shape for name, shape in outer.items() if name.startswith("embedding.")}
        layers = {f"layers.{n}.{name}": shape for n in range(self.layers) for name, shape in layer.items()}
        return first | layers | outer

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and global shape of the parameters outside the layers: embeddings, final norm, and a head of its own."""
        table = (self.vocabulary, self.hidden)
        shapes: dict[str, tuple[int, ...]] = {"embedding.token.weight": table}
        if self.positions == "learned":
            shapes["embedding.position.weight"] = (self.sequence, self.hidden)
        shapes |= self._norm_shapes("final_norm")
        return shapes if self.tied else {**shapes, "head.weight": table}

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name within the layer and global shape of one layer's parameters, in model order."""
        h, q, d = self.hidden, self.heads * self.head_size, self.head_size
        qk_norms = ("q_norm", "k_norm") if self.qk_norm else ()
        return {
            **self._norm_shapes("attention_norm"),
            **_linear_shapes("attention.qkv", q + 2 * self.kv_heads * d, h, self.qkv_bias),
            **_linear_shapes("attention.out", h, q, self.bias),
            **{f"attention.{name}.weight": (d,) for name in qk_norms},
            **self._norm_shapes("mlp_norm"),
            **(_linear_shapes("mlp.gate", self.ffn, h, self.bias) if self.mlp == "swiglu" else {}),
            **_linear_shapes("mlp.up", self.ffn, h, self.bias),
            **_linear_shapes("mlp.down", h, self.ffn, self.bias),
        }

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        kinds = ("weight", "bias") if self.norm == "layer" else ("weight",)
        return {f"{name}.{kind}": (self.hidden,) for kind in kinds}

    def model_flops(self, batch: int) -> float:
        """72-coefficient formula: forward and backward of ``batch`` sequences. MFU counts these."""
        return self._flops(3, batch)

    def hardware_flops(self, batch: int) -> float:
        """96-coefficient formula: with every layer's forward pass recomputed as well. HFU counts these."""
        return self._flops(4, batch)

    def _flops(self, passes: int, batch: int) -> float:
        """With as many passes of a forward's size through the layers, and three through the head."""
        weights = sum(math.prod(shape) for shape in self.layer_shapes().values() if len(shape) == 2)
        layer = 2 * weights + 4 * self.sequence * self.heads * self.head_size
        return float(batch * self.sequence * (passes * self.layers * layer + 3 * 2 * self.vocabulary * self.hidden))


GPT_FIELDS: Final = tuple(ModelConfig.model_fields)[:10]
"""Settings of the decoder that the paper describes; of the others, only those that differ are written."""

PARTS: Final = {
    "token": "token embedding",
    "position": "position embedding",
    "attention": "attention",
    "mlp": "feed-forward",
    "norm": "norms",
    "head": "head",
}
"""The part to which a parameter counts, by what its name contains; the last that fits."""


def _widths(hidden: int, heads: int) -> dict[str, int]:
    """The widths that follow from others unless they are given."""
    head_size = {} if hidden % heads else {"head_size": hidden // heads}
    return {**head_size, "kv_heads": heads, "ffn": 4 * hidden}


def _linear_shapes(name: str, outputs: int, inputs: int, bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (outputs, inputs)}
    return weight | ({f"{name}.bias": (outputs,)} if bias else {})


def _gpt2(layers: int, hidden: int, heads: int) -> ModelConfig:
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=1024, vocabulary=50257, init_std=0.02)


def _dense(layers: int, hidden: int, heads: int, init_std: float) -> ModelConfig:
    """MT-NLG and the team's smaller dense models on the same corpus (paper.md section 6)."""
    return ModelConfig(layers=layers, hidden=hidden, heads=heads, sequence=2048, vocabulary=51200, init_std=init_std)


def _pythia(layers: int, hidden: int, heads: int, vocabulary: int = 50304) -> ModelConfig:
    """GPT-NeoX (Black et al. 2022) at the sizes of Pythia (Biderman et al. 2023)."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": 2048, "vocabulary": vocabulary}
    kind = {"positions": "rotary", "rotary_fraction": 0.25, "mlp": "gelu", "parallel_residual": True, "tied": False}
    return ModelConfig.model_validate({**sizes, **kind, **_NO_DROPOUT, "init_std": 0.02})


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, *kind: _Kind) -> ModelConfig:
    """Llama (Touvron et al. 2023), and what differs from its first version by ``kind``: Mistral, Qwen."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "init_std": 0.02}
    parts = {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "bias": False, "qkv_bias": False, "tied": False}
    return ModelConfig.model_validate(reduce(or_, kind, {**sizes, **parts, **_NO_DROPOUT}))


_Kind = dict[str, object]
_NO_DROPOUT: Final[_Kind] = {"dropout": 0.0, "attention_dropout": 0.0}
_TIED: Final[_Kind] = {"tied": True}
_LLAMA_2: Final[_Kind] = {"vocabulary": 32_000, "sequence": 4096}
_LLAMA_3: Final[_Kind] = {"vocabulary": 128_256, "sequence": 131_072, "rotary_base": 5e5}
_SCALING: Final = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_sequence": 8192}
_BY_8: Final[_Kind] = {"rotary_scaling": {"factor": 8.0, **_SCALING}}
_BY_32: Final[_Kind] = {"rotary_scaling": {"factor": 32.0, **_SCALING}}
_MISTRAL: Final[_Kind] = {"vocabulary": 32_768, "sequence": 32_768, "rotary_base": 1e6}  # v0.3: attention has no window
_QWEN: Final[_Kind] = {"vocabulary": 151_936, "sequence": 32_768, "rotary_base": 1e6, "layer_norm_eps": 1e-6}
_QWEN_LARGE: Final[_Kind] = {**_QWEN, "vocabulary": 152_064, "sequence": 131_072}
_QWEN2: Final[_Kind] = {"qkv_bias": True}
_QWEN3: Final[_Kind] = {"qk_norm": True, "head_size": 128}

PRESETS: Final[dict[str, ModelConfig]] = {
    "mt-nlg-530b": _dense(105, 20480, 128, 0.004),
    "dense-350m": _dense(24, 1024, 16, 0.014),
    "dense-1.3b": _dense(24, 2048, 16, 0.014),
    "dense-6.7b": _dense(32, 4096, 32, 0.010),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    "pythia-12b": _pythia(36, 5120, 40, 50688),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, _LLAMA_2),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, _LLAMA_2),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, _LLAMA_2),
    "llama-3.1-8b": _llama(32, 4096, 32, 8, 14336, _LLAMA_3, _BY_8),
    "llama-3.1-70b": _llama(80, 8192, 64, 8, 28672, _LLAMA_3, _BY_8),
    "llama-3.1-405b": _llama(126, 16384, 128, 8, 53248, _LLAMA_3, _BY_8),
    "llama-3.2-1b": _llama(16, 2048, 32, 8, 8192, _LLAMA_3, _BY_32, _TIED),
    "llama-3.2-3b": _llama(28, 3072, 24, 8, 8192, _LLAMA_3, _BY_32, _TIED),
    "mistral-7b": _llama(32, 4096, 32, 8, 14336, _MISTRAL),
    "qwen2.5-0.5b": _llama(24, 896, 14, 2, 4864, _QWEN, _QWEN2, _TIED),
    "qwen2.5-1.5b": _llama(28, 1536, 12, 2, 8960, _QWEN, _QWEN2, _TIED),
    "qwen2.5-3b": _llama(36, 2048, 16, 2, 11008, _QWEN, _QWEN2, _TIED),
    "qwen2.5-7b": _llama(28, 3584, 28, 4, 18944, _QWEN_LARGE, _QWEN2),
    "qwen2.5-14b": _llama(48, 5120, 40, 8, 13824, _QWEN_LARGE, _QWEN2),
    "qwen2.5-32b": _llama(64, 5120, 40, 8, 27648, _QWEN_LARGE, _QWEN2),
    "qwen2.5-72b": _llama(80, 8192, 64, 8, 29568, _QWEN_LARGE, _QWEN2),
    "qwen3-0.6b": _llama(28, 1024, 16, 8, 3072, _QWEN, _QWEN3, _TIED),
    "qwen3-1.7b": _llama(28, 2048, 16, 8, 6144, _QWEN, _QWEN3, _TIED),
    "qwen3-4b": _llama(36, 2560, 32, 8, 9728, _QWEN, _QWEN3, _TIED),
    "qwen3-8b": _llama(36, 4096, 32, 8, 12288, _QWEN, _QWEN3),
    "qwen3-14b": _llama(40, 5120, 40, 8, 17408, _QWEN, _QWEN3),
    "qwen3-32b": _llama(64, 5120, 64, 8, 25600, _QWEN, _QWEN3),
    "tiny": ModelConfig(layers=2, hidden=64, heads=4, sequence=128, vocabulary=512, dropout=0.0, attention_dropout=0.0),
}
"""Published models by name."""


def preset(name: str) -> ModelConfig:
    """Return the preset of this name. Raises ``UsageFailure`` listing the valid names."""
    if name not in PRESETS:
        raise UsageFailure(f"preset {name}: unknown; choose from {', '.join(PRESETS)}")
    return PRESETS[name]
