"""A family of decoders as data: presets, fields of its config.json, names of its tensors.

These rows convert config.json to `ModelConfig` and back; parameters, FLOPs and kernels follow from the `ModelConfig`,
and no other code depends on the family. A new family is a `Family`, or a `Family.like` of another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from mtnlg_model.config import ModelConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REQUIRED: Final = object()


Fields: TypeAlias = "Mapping[str, Any]"
"""Fields of a config.json, by name."""


class Field(NamedTuple):
    """A field of config.json, and our settings that it ``sets`` (blank-separated; "": it is only read).

    ``default`` is the value of a missing field; None leaves our settings to `ModelConfig`. ``kind`` is the value's
    type: by default that of the default, or an integer. ``values`` maps supported values to ours; the first is the
    default. Otherwise ours is the field's value to the ``power``. ``write`` computes the value from a configuration,
    for a field without ``sets``. Null means missing, unless ``nullable``.
    """

    sets: str = ""
    default: object = REQUIRED
    kind: type | None = None
    values: Mapping[Any, object] = {}
    power: float = 1.0
    write: Callable[[ModelConfig], object] | None = None
    nullable: bool = False

    @property
    def value_type(self) -> type:
        """Type of the field's value."""
        return self.kind or (type(self.default) if isinstance(self.default, int | float | list) else int)

    @property
    def is_written(self) -> bool:
        """Whether an exported config.json has the field."""
        return bool(self.sets or self.values or self.write)

    def written(self, config: ModelConfig) -> object:
        """The field's value in the config.json of a decoder."""
        if self.write is not None:
            return self.write(config)
        ours: Any = getattr(config, self.sets.split()[0]) if self.sets else None
        if self.power != 1 and ours is not None:
            ours = self.value_type(round(ours ** (1 / self.power), 6))
        return next((theirs for theirs, value in self.values.items() if value == ours), ours)


def only(value: object) -> Field:
    """A field that is supported at one value, which is also its default."""
    return Field(values={value: None})


UNTIED: Final = Field("tied", values={False: False})

NO_PADDING: Final[Mapping[str, Field]] = {"pad_token_id": Field(default=None, write=lambda _config: None)}
"""For families whose default padding token may be outside the vocabulary."""


class LayersBy(NamedTuple):
    """Settings by layer: which layers have the attention window of the field ``name``, and other settings.

    ``default`` is the window if that field is missing; ``switch`` names a field that must be true for windows.
    ``slides(fields, n)`` says whether layer n has the window; the list ``layer_types`` takes precedence if the family
    ``reads_types``. ``settings(fields, n, slides)`` gives other settings of layer n, with ``slides`` None if there
    is no window.
    """

    default: int | None = None
    switch: str = ""
    slides: Callable[[Fields, int], bool] = lambda _fields, _n: True
    reads_types: bool = False
    settings: Callable[[Fields, int, bool | None], Mapping[str, object]] = lambda _fields, _n, _slides: {}
    name: str = "sliding_window"


def by_pattern(fields: Fields, n: int) -> bool:
    """Whether layer ``n`` has a window where every ``sliding_window_pattern``-th layer has none."""
    return bool((n + 1) % fields["sliding_window_pattern"])


@dataclass(frozen=True)
class Family:
    """One model_type of config.json.

    ``kind`` has the settings that all models of the family share; a function computes one from the other settings and
    the fields. ``aliases`` maps other names of fields to the usual ones.

    ``modules`` maps our modules to theirs, blank-separated if several correspond. Names in layer N are preceded by
    ``prefix``, ``layers`` and N, other names except the head's by ``prefix``. A packed qkv is ``ordered_by_head``, as
    ours, or has all q, all k, all v; ``transposed`` linear layers are [inputs, outputs]; ``interleaved`` q and k store
    the two values of a rotary pair side by side. ``variant`` returns modules that only some decoders have.
    """

    architecture: str
    kind: Mapping[str, object]
    fields: Mapping[str, Field]
    modules: Mapping[str, str]
    prefix: str = "model."
    layers: str = "layers."
    layers_by: LayersBy | None = None
    transposed: bool = False
    ordered_by_head: bool = False
    interleaved: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    variant: Callable[[ModelConfig], Mapping[str, str]] | None = None
    presets: Mapping[str, ModelConfig] = field(default_factory=dict)

    def like(self, architecture: str, **changes: Any) -> Family:  # noqa: ANN401  (any of its rows)
        """A copy of this family with changes, without its presets.

        ``kind``, ``fields`` and ``modules`` are added to this family's; an entry that is None is removed.
        """
        for table in ("kind", "fields", "modules"):
            rows = {**getattr(self, table), **changes.get(table, {})}
            changes[table] = {key: row for key, row in rows.items() if row is not None}
        return replace(self, architecture=architecture, **{"presets": {}, **changes})

    @property
    def rotary_fields(self) -> dict[str, str]:
        """The family's names of the rotary base and fraction fields, by usual name; {} without rotary positions."""
        if not any(row.sets == "rotary_base" for row in self.fields.values()):
            return {}
        usual = {"rotary_base": "rope_theta", "rotary_fraction": "partial_rotary_factor"}
        return {name: next((key for key, f in self.fields.items() if f.sets == s), name) for s, name in usual.items()}

    def of(self, config: ModelConfig) -> Family:
        """The family with the modules that this decoder has."""
        return replace(self, modules={**self.modules, **self.variant(config)}) if self.variant else self

    def group(self, name: str) -> tuple[list[str], list[str]]:
        """Names of corresponding tensors, ours (with ``name``) and theirs. Raises ``KeyError`` if there are none."""
        place, within = "", name
        if name.startswith("layers."):
            _, number, within = name.split(".", 2)
            place = f"layers.{number}."
        module, _, kind = within.rpartition(".")
        ours = next((modules for modules in self.modules if module in modules.split()), name)
        prefix = "" if module == "head" else self.prefix + place.replace("layers.", self.layers)
        theirs = self.modules[ours].split()
        return [f"{place}{key}.{kind}" for key in ours.split()], [f"{prefix}{key}.{kind}" for key in theirs]


GELU: Final = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh", "gelu": "gelu"}
EXACT_GELU: Final = {"gelu": "gelu", **GELU}
TANH_GELU: Final = {"gelu_pytorch_tanh": "gelu-tanh", **GELU}
SILU: Final = {"silu": "swiglu", "swish": "swiglu"}
NO_DROPOUT: Final[Mapping[str, object]] = {"dropout": 0.0, "attention_dropout": 0.0}
SIZES: Final[Mapping[str, Field]] = {
    "initializer_range": Field("init_std", 0.02),
    "vocab_size": Field("vocabulary"),
    "num_hidden_layers": Field("layers"),
    "hidden_size": Field("hidden"),
    "num_attention_heads": Field("heads"),
    "max_position_embeddings": Field("sequence"),
    "intermediate_size": Field("ffn"),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie_word_embeddings": Field("tied", False),
}
"""Fields of most families' config.json."""


def presets(
    columns: str, rows: Mapping[str, tuple[object, ...]], *shared: Mapping[str, object]
) -> dict[str, ModelConfig]:
    """Configurations by name: ``shared`` settings, then those of the row, named by the blank-separated ``columns``."""
    common: dict[str, object] = {"init_std": 0.02}
    for settings in shared:
        common |= settings
    names = columns.split()
    return {
        name: ModelConfig.model_validate({**common, **dict(zip(names, row, strict=True))}) for name, row in rows.items()
    }
