"""ModelConfig: shapes, parameter counts, floating-point operations and bytes. Imports no torch.

A GPT of l layers, hidden h, sequence s and vocabulary V has exactly (paper.md section 1; Narayanan et al. 2021, eq. 2)

    P = l (12 h² + 13 h) + V h + s h + 2 h                            529,600,819,200 for MT-NLG

parameters; any other decoder has those of the tensors that `layer_shapes` and `outer_shapes` list. Floating-point
operations of one iteration over B sequences count matrix products only. With W the weights of a layer's matrices (12 h²
for a GPT) and a = heads · head size (h for a GPT)

    model      3 B s (2 l W + 4 l s a + 2 V h)                        forward and backward
    hardware   B s (8 l W + 16 l s a + 6 V h)                         forward twice, backward (full recomputation)

where a layer with an attention window w < s counts 4 w a; a token embedding of another width e counts e for h in V h,
and its two projections 2 e h more than V. For a GPT these are equations 3 and 4 of the same paper:
72 B s l h² (1 + s/6h + V/12lh) and 96 B s l h² (1 + s/6h + V/16lh).
"""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from .settings import Settings, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import SerializerFunctionWrapHandler

MAX_SIZE: Final = 1 << 40
Count = Annotated[int, Field(gt=0, lt=MAX_SIZE)]
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


ALIBI_COLUMNS: Final = 8
"""Values that ALiBi adds to each head: four are used, and kernels need head sizes that are multiples of 8."""


WINDOW_BLOCK: Final = 128
"""Queries with a window that attend together, to the keys of all their windows, where no kernel takes windows."""


class Llama3Scaling(Settings):
    """Llama 3.1's stretching of rotary wavelengths beyond those of the first training (Grattafiori et al. 2024, 3.4.2).

    Wavelengths above ``original_sequence / low_frequency_factor`` tokens are multiplied by ``factor``, those below
    ``original_sequence / high_frequency_factor`` are kept, and those between are blended.
    """

    factor: Positive = Field(description="factor of long wavelengths")
    low_frequency_factor: Positive = Field(description="wavelengths above original_sequence / this are stretched")
    high_frequency_factor: Positive = Field(description="wavelengths below original_sequence / this are kept")
    original_sequence: Count = Field(description="tokens per sample of the original training")

    @model_validator(mode="after")
    def _frequencies_are_ordered(self) -> Self:
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError("low_frequency_factor must be less than high_frequency_factor")
        return self


class LinearScaling(Settings):
    """All rotary wavelengths multiplied by ``factor`` (Chen et al. 2023)."""

    factor: Positive = Field(description="factor of all wavelengths")


class YarnScaling(Settings):
    """YaRN: wavelengths stretched depending on their turns within a sample of the first training (Peng et al. 2023).

    Those with more turns than ``beta_fast`` are kept, those with fewer than ``beta_slow`` are multiplied by ``factor``,
    and those between are blended. q and k are multiplied by ``attention_factor``.
    """

    factor: Positive = Field(description="factor of long wavelengths")
    original_sequence: Count = Field(description="tokens per sample of the original training")
    beta_fast: Positive = setting(32.0, "wavelengths with more turns are kept")
    beta_slow: Positive = setting(1.0, "wavelengths with fewer turns are stretched")
    attention_factor: Positive = setting(1.0, "factor of rotated q and k")
    truncate: bool = setting(True, "round the blended range to whole pairs")


Factors = Annotated[tuple[Positive, ...], Field(strict=False, max_length=4096)]


class LongRopeScaling(Settings):
    """LongRoPE: each wavelength has its own factor; ``attention_factor`` multiplies q and k (Ding et al. 2024).

    A text of more than ``original_sequence`` tokens has the ``long_factors`` at all of its positions, if there are any.
    """

    factors: Factors = Field(description="factor of each wavelength")
    attention_factor: Positive = setting(1.0, "factor of rotated q and k")
    long_factors: Factors = setting((), "instead of factors, in texts longer than original_sequence")
    original_sequence: Count = setting(1, "tokens per sample of the original training")


RotaryScaling = Llama3Scaling | LinearScaling | YarnScaling | LongRopeScaling


class LayerConfig(Settings):
    """Settings that may differ between layers: attention window, rotary positions, placement of norms.

    ``norm_after`` puts the norms after attention and feed-forward, x + norm(f(x)), or after the sum, norm(x + f(x)),
    instead of before, x + f(norm(x)).
    """

    window: Count | None = setting(None, "tokens that a query attends to, itself included; default all")
    rotary: bool = setting(True, "apply rotary positions in this layer")
    rotary_base: Positive | None = setting(None, "base of this layer's rotary positions, which are not scaled")
    norm_after: Literal[False, True, "sum"] = setting(
        False, "norms on the outputs of attention and MLP, not on their inputs; or on the residual sums (sum)"
    )

    @model_serializer(mode="wrap", when_used="json")
    def _leave_out_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in write(self).items() if value != type(self).model_fields[key].default}


PLAIN: Final = LayerConfig()
QK_NORMS_0_3: Final = {"qk_norm_full": "full", "qk_norm_by_head": "by-head"}
"""Keys of version 0.3, as kinds of ``qk_norm``."""


class ModelConfig(Settings):
    """Shape of a decoder. Only the first five settings are required; the defaults of all others are MT-NLG's GPT.

    ``vocabulary`` counts the rows of the token embedding, padding included; the last ``vocabulary_padding`` of them are
    no tokens and have no logit. ``init_std`` None means sqrt(1/(3h)). ``scale_attention_by_layer`` divides queries by
    the layer's number (from 1) and multiplies it back inside the softmax: half-precision products stay small, the
    result is the same (paper.md section 1, attention numerics).

    ``head_size``, ``kv_heads``, ``ffn`` and ``out_bias`` are hidden / heads, heads, 4 hidden and ``bias`` unless given.
    Files (``mode="json"``) leave out settings beyond a GPT's that equal their default, so a GPT's file is as it was
    before other decoders were added. Compare configurations by `compare.differences`. ``by_layer`` is reduced to the
    shortest pattern that gives the same layers, () if all are plain.
    """

    layers: Count = Field(description="number of layers")
    hidden: Count = Field(description="width of the hidden state")
    heads: Count = Field(description="attention heads per layer")
    sequence: Count = Field(description="tokens per training sample; the maximum for learned positions")
    vocabulary: Count = Field(description="rows of the token embedding, padding included")
    dropout: Rate = setting(0.1, "dropout rate of the hidden state")
    attention_dropout: Rate = setting(0.1, "dropout rate of the attention weights")
    init_std: Positive | None = setting(None, "standard deviation of initial weights; default sqrt(1 / (3 hidden))")
    layer_norm_eps: Positive = Field(1e-5, description="added to the variance in all norms")
    scale_attention_by_layer: bool = setting(
        False, "divide queries by the layer's number, and multiply it back in the softmax"
    )
    head_size: Count = setting(None, "width of an attention head; default hidden / heads")
    kv_heads: Count = setting(None, "key-value heads, each shared by heads / kv_heads query heads")
    ffn: Count = setting(None, "width of the feed-forward layer; default 4 hidden")
    positions: Literal["learned", "rotary", "alibi", "alibi-bf16"] = setting(
        "learned", "a table of positions, rotated q and k, or scores that fall with distance (rounded, as Falcon's)"
    )
    rotary_base: Positive = setting(10_000.0, "wavelengths of rotary positions: 2π base^(2i / size)")
    rotary_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = setting(1.0, "share of a head that is rotated")
    rotary_scaling: RotaryScaling | None = None
    norm: Literal["layer", "layer-no-bias", "layer-no-weight", "rms"] = setting(
        "layer", "layer norm, without bias or any weight, or by root mean square"
    )
    mlp: Literal["gelu-tanh", "gelu", "relu", "relu2", "swiglu", "geglu"] = setting(
        "gelu-tanh", "GeLU by tanh or exact, ReLU or its square, gates of SiLU or of GeLU by tanh"
    )
    bias: bool = setting(True, "biases of the linear layers except attention's")
    qkv_bias: bool = setting(True, "biases of q, k and v")
    qk_norm: Literal[False, True, "full", "by-head"] = setting(
        False, "RMS norm of each head's q and k, of all heads' (full), or layer norms with weights by head (by-head)"
    )
    parallel_residual: bool = setting(False, "attention and MLP read the same input")
    tied: bool = setting(True, "the head's weights are the token embedding's")
    vocabulary_padding: Annotated[int, Field(ge=0)] = setting(0, "last rows of the vocabulary that are not tokens")
    by_layer: Annotated[tuple[LayerConfig, ...], Field(strict=False, max_length=1024)] = setting(
        (), "settings per layer, repeated: window, rotary, rotary_base, norm_after"
    )
    zero_centered_norm: bool = setting(False, "norms multiply by 1 + weight")
    sandwich_norm: bool = setting(False, "additional norms on the outputs of attention and MLP")
    attention_scale: Positive | None = setting(None, "factor of q k; default 1 / sqrt(head_size)")
    attention_softcap: Positive | None = setting(None, "c of attention's scores c tanh(x / c)")
    logit_softcap: Positive | None = setting(None, "c of the logits c tanh(x / c)")
    logits_scaling: Positive = setting(1.0, "divides the logits")
    embedding_multiplier: Positive = setting(1.0, "factor of the token embedding")
    residual_multiplier: Positive = setting(1.0, "factor of the outputs of attention and MLP")
    position_offset: Annotated[int, Field(ge=0, lt=1 << 20)] = setting(
        0, "unused rows at the start of the table of positions"
    )
    embedding_norm: bool = setting(False, "a norm of the token embedding")
    shared_norm: bool = setting(False, "with parallel_residual: attention and MLP read one norm")
    out_bias: bool = setting(None, "bias of the output of attention; default bias")
    head_bias: bool = setting(False, "bias of an untied head")
    qkv_clip: Positive | None = setting(None, "maximum magnitude of q, k and v before positions")
    embedding_size: Count = setting(None, "width of the token embedding and the head; default hidden, else projected")
    final_norm: bool = setting(True, "a norm before the head")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_widths(cls, content: Any) -> Any:  # noqa: ANN401  (not validated yet)
        if not isinstance(content, dict):
            return content
        content = dict(content)
        for key, kind in QK_NORMS_0_3.items():
            if content.pop(key, False):
                content["qk_norm"] = kind
        hidden, heads = (content.get(key) for key in ("hidden", "heads"))
        if all(type(width) is int and 0 < width < MAX_SIZE for width in (hidden, heads)):
            if "head_size" not in content and hidden % heads:
                near = [n for n in range(1, min(hidden, 4096) + 1) if hidden % n == 0]
                near.sort(key=lambda n: abs(n - heads))
                choices = ", ".join(str(n) for n in sorted(near[:4]))
                raise ValueError(f"heads = {heads} does not divide hidden = {hidden}; use for example {choices}")
            return {**_widths(hidden, heads), "out_bias": content.get("bias") is not False, **content}
        return content

    @field_validator("by_layer")
    @classmethod
    def _shortest_pattern(cls, pattern: tuple[LayerConfig, ...], info: ValidationInfo) -> tuple[LayerConfig, ...]:
        size = len(pattern)
        layers = [pattern[n % size] for n in range(min(info.data.get("layers", 0), 2 * size))]
        periods = (n for n in range(1, size) if all(layers[i] == layers[i % n] for i in range(n, len(layers))))
        shortest = tuple(layers[: next(periods, size)])
        return () if shortest == (PLAIN,) else shortest

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        scaling, pairs, of_each = self.rotary_scaling, self.rotary_size / 2, self.kv_heads == self.heads
        factors = {len(getattr(scaling, name, ())) for name in ("factors", "long_factors")} - {0, pairs}
        after = {layer.norm_after for layer in self.by_layer}
        for is_wrong, problem in (
            (self.heads % self.kv_heads, f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}"),
            (
                self.positions == "rotary" and (pairs % 1 or not pairs),
                f"rotary positions rotate pairs; {self.rotary_size} of {self.head_size} values are not pairs",
            ),
            (
                self.sandwich_norm and after - {False},
                "sandwich_norm already norms the outputs; by_layer.norm_after must be false",
            ),
            (
                self.parallel_residual and "sum" in after,
                "by_layer.norm_after = sum needs parallel_residual = false",
            ),
            (self.shared_norm and not self.parallel_residual, "shared_norm needs parallel_residual"),
            (self.head_bias and self.tied, "head_bias needs an untied head: tied = false"),
            (factors, f"rotary_scaling: {factors} factors for {pairs:g} pairs of values"),
            (self.positions == "alibi-bf16" and not of_each, "positions = alibi-bf16 needs kv_heads = heads"),
            (
                self.vocabulary_padding >= self.vocabulary,
                f"vocabulary_padding = {self.vocabulary_padding} leaves none of {self.vocabulary} tokens",
            ),
        ):
            if is_wrong:
                raise ValueError(problem)
        return self

    @model_serializer(mode="wrap", when_used="json")
    def _leave_out_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key in GPT_FIELDS or key in self.beyond_gpt}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A validated copy; widths that have their derived value are derived again."""
        del deep  # nothing in it can change
        return self.model_validate({**self.model_dump(mode="json"), **(update or {})})

    @property
    def beyond_gpt(self) -> dict[str, Any]:
        """Settings that differ from MT-NLG's GPT in kind, not in size, with their values."""
        defaults = {name: field.default for name, field in type(self).model_fields.items() if name not in GPT_FIELDS}
        defaults |= {**_widths(self.hidden, self.heads), "out_bias": self.bias}
        return {name: value for name, default in defaults.items() if (value := getattr(self, name)) != default}

    @property
    def rotary_size(self) -> int:
        """Values per head that rotary positions rotate; the others carry no position."""
        return int(self.head_size * self.rotary_fraction)

    @property
    def core_head_size(self) -> int:
        """Head size of the attention core: with ALiBi larger than ``head_size`` (`alibi`)."""
        return self.head_size + ALIBI_COLUMNS * self.positions.startswith("alibi")

    @property
    def longest_short_text(self) -> int | None:
        """Tokens beyond which a text has other rotary positions throughout (`LongRopeScaling`); None if never."""
        scaling = self.rotary_scaling
        return scaling.original_sequence if isinstance(scaling, LongRopeScaling) and scaling.long_factors else None

    @property
    def tokens(self) -> int:
        """Rows of the vocabulary that are tokens or may become tokens: all but the padding."""
        return self.vocabulary - self.vocabulary_padding

    @property
    def unpadded(self) -> Self:
        """The same decoder without vocabulary padding."""
        return self.model_copy(update={"vocabulary": self.tokens, "vocabulary_padding": 0})

    @property
    def std(self) -> float:
        """Standard deviation of the initial weights (paper.md section 1: sqrt(1/(3h)))."""
        return self.init_std if self.init_std is not None else math.sqrt(1 / (3 * self.hidden))

    @property
    def gated(self) -> bool:
        """Whether the feed-forward layer has gates, which are a third matrix."""
        return self.mlp in {"swiglu", "geglu"}

    def layer(self, number: int) -> LayerConfig:
        """Settings of layer ``number``, counted from 0."""
        return self.by_layer[number % len(self.by_layer)] if self.by_layer else PLAIN

    def rotates(self, layer: LayerConfig) -> bool:
        """Whether a layer with these settings rotates q and k by their positions."""
        return self.positions == "rotary" and layer.rotary

    def mean_of_layers(self, figure: Callable[[LayerConfig], float]) -> float:
        """Mean of a figure over the layers."""
        return sum(times * figure(self.layer(number)) for number, times in self._kinds) / self.layers

    @property
    def _kinds(self) -> list[tuple[int, int]]:
        """(number of its first layer, number of its layers) for each place in the ``by_layer`` pattern."""
        period = len(self.by_layer) or 1
        return [(n, len(range(n, self.layers, period))) for n in range(min(period, self.layers))]

    @property
    def parameters_by_part(self) -> dict[str, int]:
        """Exact parameter counts by part. A tied head is counted as the token embedding."""
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

    def parameter_shape(self, name: str) -> tuple[int, ...]:
        """Global shape of one parameter. Raises ``KeyError`` for an unknown name."""
        is_inner = name.startswith("layers.")
        return self.layer_shapes()[name.split(".", 2)[2]] if is_inner else self.outer_shapes()[name]

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and global shape of the parameters outside the layers: embeddings, final norm, and an untied head."""
        h, width = self.hidden, self.embedding_size
        table = (self.vocabulary, width)
        shapes: dict[str, tuple[int, ...]] = {"embedding.token.weight": table}
        if self.positions == "learned":
            shapes["embedding.position.weight"] = (self.sequence + self.position_offset, h)
        shapes |= self._norm_shapes("embedding.norm") if self.embedding_norm else {}
        shapes |= self._norm_shapes("final_norm") if self.final_norm else {}
        if width != h:
            shapes |= {"embedding.project.weight": (h, width), "final_norm.project.weight": (width, h)}
        return shapes if self.tied else {**shapes, **_linear_shapes("head", *table, self.head_bias)}

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name within the layer and global shape of one layer's parameters, in model order."""
        h, q, d = self.hidden, self.heads * self.head_size, self.head_size
        k = self.kv_heads * d
        qk_norms = {"q_norm": q, "k_norm": k} if self.qk_norm else {}
        after = [self._norm_shapes(f"{part}_post_norm") if self.sandwich_norm else {} for part in ("attention", "mlp")]
        return {
            **self._norm_shapes("attention_norm"),
            **_linear_shapes("attention.qkv", q + 2 * k, h, self.qkv_bias),
            **_linear_shapes("attention.out", h, q, self.out_bias),
            **{f"attention.{name}.weight": (d if self.qk_norm is True else size,) for name, size in qk_norms.items()},
            **after[0],
            **({} if self.shared_norm else self._norm_shapes("mlp_norm")),
            **(_linear_shapes("mlp.gate", self.ffn, h, self.bias) if self.gated else {}),
            **_linear_shapes("mlp.up", self.ffn, h, self.bias),
            **_linear_shapes("mlp.down", h, self.ffn, self.bias),
            **after[1],
        }

    def _norm_shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        kinds = {"layer": ("weight", "bias"), "layer-no-weight": ()}.get(self.norm, ("weight",))
        return {f"{name}.{kind}": (self.hidden,) for kind in kinds}

    def model_flops(self, batch: int) -> float:
        """72-coefficient formula: forward and backward of ``batch`` sequences. MFU counts these."""
        return self._flops(3, batch)

    def hardware_flops(self, batch: int) -> float:
        """96-coefficient formula: with every layer's forward pass recomputed as well. HFU counts these."""
        return self._flops(4, batch)

    def layer_flops(self, number: int) -> tuple[int, int]:
        """Forward FLOPs per token of layer ``number``: (in its weight matrices, in the attention core)."""
        weights = sum(math.prod(shape) for shape in self.layer_shapes().values() if len(shape) == 2)
        keys = min(self.sequence, self.layer(number).window or self.sequence)
        return 2 * weights, 4 * keys * self.heads * self.head_size

    @property
    def outer_flops(self) -> tuple[int, int]:
        """Forward FLOPs per token in the matrices (before the layers, after them): projections, and the head."""
        h, width = self.hidden, self.embedding_size
        projection = 2 * h * width * (h != width)
        return projection, projection + 2 * width * self.vocabulary

    def _flops(self, passes: int, batch: int) -> float:
        """FLOPs of ``batch`` sequences: ``passes`` forward-sized passes through the layers, three through the head."""
        layers = sum(times * sum(self.layer_flops(number)) for number, times in self._kinds)
        return float(batch * self.sequence * (passes * layers + 3 * sum(self.outer_flops)))


VOCABULARY_TENSORS: Final = frozenset({"embedding.token.weight", "head.weight", "head.bias"})
"""Parameters that have a row per entry of the vocabulary, padding included."""

GPT_FIELDS: Final = tuple(takewhile(lambda name: name != "head_size", ModelConfig.model_fields))
"""Settings of the decoder that the paper describes; other settings are written only if they differ from its values."""

PARTS: Final = {
    "token": "token embedding",
    "position": "position embedding",
    "attention": "attention",
    "mlp": "feed-forward",
    "norm": "norms",
    "project": "projections",
    "head": "head",
}
"""Part that a parameter is counted in, by a substring of its name; the last match wins."""


def _widths(hidden: int, heads: int) -> dict[str, int]:
    """Default widths, derived from ``hidden`` and ``heads``."""
    head_size = {} if hidden % heads else {"head_size": hidden // heads}
    return {**head_size, "kv_heads": heads, "ffn": 4 * hidden, "embedding_size": hidden}


def _linear_shapes(name: str, outputs: int, inputs: int, bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (outputs, inputs)}
    return weight | ({f"{name}.bias": (outputs,)} if bias else {})
