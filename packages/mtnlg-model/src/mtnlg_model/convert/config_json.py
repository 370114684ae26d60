"""Read a Hugging Face config.json as a `ModelConfig`, and write one for it.

A field that no released transformers reads for a family cannot change its logits, and is ignored. The others are

    a row of `Family.fields`    a size, rate or kind that sets ours, or one that is supported at one value only
    rotary positions            rope_theta, rope_scaling, rotary_pct ... of transformers 4, or rope_parameters of 5
    settings by layer           sliding_window and layer_types, as `Family.layers_by` says
    `QUANTIZED`                 rejected for every family, since quantized weights are not supported

tests/test_families.py compares these with the fields of transformers' own classes. `to_config_json` writes the fields
of transformers 4, which both versions read.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from mtnlg_model.checkpoint.chat_files import own_file
from mtnlg_model.checkpoint.manifest import MANIFEST
from mtnlg_model.config import LinearScaling, Llama3Scaling, LongRopeScaling, ModelConfig, YarnScaling
from mtnlg_model.console import Failure
from mtnlg_model.families import load_family, references
from mtnlg_model.families.family import REQUIRED, Field, Fields
from mtnlg_model.files import read_small
from mtnlg_model.settings import Settings, validate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mtnlg_model.families.family import Family

CONFIG: Final = "config.json"
CONFIG_BYTES: Final = 1 << 20
_CONTENT = TypeAdapter(dict[str, Any])
ROTARY_TABLES: Final = ("rope_scaling", "rope_parameters")
FULL, SLIDING = "full_attention", "sliding_attention"
MOST_LAYERS: Final = 1025
"""Layers listed to read settings by layer: one more than the longest ``by_layer`` pattern."""
QUANTIZED: Final = "quantization_config"
EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
"""Fields that show a mixture of experts."""

LOCAL_BASE: Final = "rope_local_base_freq"
ORIGINAL: Final = "original_max_position_embeddings"
SCALINGS: Final[Mapping[str, tuple[type[Settings], Mapping[str, str]]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            ORIGINAL: "original_sequence",
        },
    ),
    "yarn": (
        YarnScaling,
        {ORIGINAL: "original_sequence"}
        | {name: name for name in ("factor", "attention_factor", "beta_fast", "beta_slow", "truncate")},
    ),
    "longrope": (
        LongRopeScaling,
        {"short_factor": "factors", "attention_factor": "attention_factor"}
        | {"long_factor": "long_factors", ORIGINAL: "original_sequence"},
    ),
}
"""Scaling class per rope_type, and our name of each setting by its name in config.json's table."""


def read_config(folder: Path) -> ModelConfig:
    """The decoder configuration of a folder. Raises ``Failure`` if this decoder does not support it."""
    return read_family(folder)[1]


def read_family(
    folder: Path, vocabulary_multiple: int = 1, sequence: int | None = None, family: str | None = None
) -> tuple[Family, ModelConfig]:
    """`from_config_json` of a folder, with the vocabulary padded to a multiple of ``vocabulary_multiple``."""
    path = own_file(folder, CONFIG)
    content = read_object(path, "; is it a Hugging Face folder?")
    definition, config = from_config_json(content, str(path), sequence, family)
    padding = -config.vocabulary % vocabulary_multiple
    padded = {"vocabulary": config.vocabulary + padding, "vocabulary_padding": padding}
    return definition, config.model_copy(update=padded)


def is_huggingface(folder: Path) -> bool:
    """Whether a folder is a Hugging Face model and not one of our checkpoints."""
    return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists()


def read_object(path: Path, hint: str = "") -> dict[str, Any]:
    """The object in a JSON file. Raises ``Failure``."""
    try:
        return _CONTENT.validate_json(read_small(path, CONFIG_BYTES))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}{hint}") from None
    except ValidationError as error:
        raise Failure(f"{path}: {error.errors(include_url=False)[0]['msg']}") from None


def from_config_json(
    content: Fields, place: str, sequence: int | None = None, family: str | None = None
) -> tuple[Family, ModelConfig]:
    """Family and configuration of a config.json; ``sequence`` limits the file's sequence length, in tokens.

    The family is the one named by ``model_type``, unless ``family`` refers to another. Raises ``Failure`` with one line
    that begins with ``place`` and names what is not supported.
    """
    model_type = content.get("model_type")
    if family is None and str(model_type) not in (names := references()):
        kinds = (f" ({name}: a mixture of experts)" for name in EXPERTS if content.get(name))
        raise Failure(
            f"{place}: model_type = {model_type!s:.100}{next(kinds, '')}: not supported; {', '.join(names)} are"
        )
    if content.get(QUANTIZED) is not None:
        raise Failure(f"{place}: {QUANTIZED} = {content[QUANTIZED]!s:.100}: quantized weights are not supported")
    definition = load_family(family or str(model_type))
    content = _by_usual_names(content, definition, place)
    rotary = _rotary_fields(content, definition, place, sequence)
    values = {name: _value({**content, **rotary}, name, field, place) for name, field in definition.fields.items()}
    settings: dict[str, Any] = {"rotary_scaling": rotary.get("scaling")}
    for name, field in definition.fields.items():
        for ours in field.sets.split() if values[name] is not None else ():
            if settings.setdefault(ours, values[name]) != values[name]:
                raise Failure(f"{place}: {name} = {values[name]!s:.100}: only {settings[ours]!s:.100} is supported")
    said = {**values, **settings}
    kind: dict[str, object] = {}
    with suppress(ArithmeticError):  # of sizes that `ModelConfig` refuses
        kind = {name: value(said) if callable(value) else value for name, value in definition.kind.items()}
    config = validate({**kind, **settings}, ModelConfig, place)
    if (
        definition.rotary_fields
        and "head_dim" not in definition.fields
        and content.get("head_dim") not in (None, config.head_size)
    ):
        raise Failure(f"{place}: head_dim = {content['head_dim']!s:.100}: only {config.head_size} is supported")
    if sequence is not None:
        if sequence > config.sequence or config.positions == "learned":
            raise Failure(
                f"{place}: --sequence {sequence}: only rotary positions up to {config.sequence} can be limited"
            )
        config = config.model_copy(update={"sequence": sequence})
    return definition.of(config), _by_layer(content, values, definition, config, place)


def to_config_json(config: ModelConfig, family: str | None = None) -> tuple[Family, dict[str, Any]]:
    """The first family that supports this decoder, or ``family``, and the config.json. Raises ``Failure`` if none does.

    A Mistral without a window is exported as a Llama, which is the same decoder.
    """
    # Settings that change no logit or have no field: dropout, the layer scaling that softmax undoes, initial weights.
    plain = {"dropout": 0.0, "scale_attention_by_layer": False, "init_std": config.std}
    expected = config.unpadded.model_copy(update=plain)
    names = [family] if family else list(references())
    for name in names:
        definition = load_family(name)
        content = {"model_type": name, "architectures": [definition.architecture], **_fields(expected, definition)}
        try:
            read = from_config_json(content, "", family=name)[1]
        except Failure:
            continue
        if read.model_copy(update=plain) == expected:
            dropout = {key: config.dropout for key, field in definition.fields.items() if field.sets == "dropout"}
            return definition.of(config), {**content, **dropout}
    kind = ", ".join(f"{name} = {value}" for name, value in expected.beyond_gpt.items())
    raise Failure(f"no family of {', '.join(names)} has a decoder with {kind or 'these settings'}; cannot be exported")


def _fields(config: ModelConfig, family: Family) -> dict[str, Any]:
    content: dict[str, Any] = {name: field.written(config) for name, field in family.fields.items() if field.is_written}
    for kind, (scaling, names) in SCALINGS.items():
        if isinstance(config.rotary_scaling, scaling):
            table = {theirs: getattr(config.rotary_scaling, ours) for theirs, ours in names.items()}
            if kind == "longrope":
                content[ORIGINAL] = config.longest_short_text or config.sequence
                long = table["long_factor"] or table["short_factor"]
                table |= {"factor": 1.0, "long_factor": long, ORIGINAL: content[ORIGINAL]}
            content["rope_scaling"] = {**table, "rope_type": kind}
            if ROTARY_TABLES[1] in content:
                content[ROTARY_TABLES[1]][FULL] |= content["rope_scaling"]
    windows = [config.layer(n).window for n in range(config.layers)]
    if (rule := family.layers_by) is not None:
        window = max(filter(None, windows), default=None)
        if window or not rule.switch:
            content[rule.name] = window
            if rule.reads_types:
                content["layer_types"] = [SLIDING if each else FULL for each in windows]
        if rule.switch:
            content[rule.switch] = window is not None
    return content


def _by_usual_names(content: Fields, family: Family, place: str) -> dict[str, Any]:
    """The fields, with aliases replaced by their usual names. Raises ``Failure`` if a field and its alias differ."""
    fields = {key: value for key, value in content.items() if value is not None}
    renamed = {family.aliases[key]: value for key, value in fields.items() if key in family.aliases}
    _require_equal(fields, renamed, place)
    defaults = {ORIGINAL: family.fields[ORIGINAL].default} if ORIGINAL in family.fields else {}
    return {**defaults, **content, **renamed}


def _value(content: Fields, name: str, field: Field, place: str) -> Any:  # noqa: ANN401  (of the field's kind)
    """Our value of a field: the file's, checked and converted to our type, or the default if it is missing."""
    value: Any = content.get(name)
    if field.values:
        value = content.get(name, next(iter(field.values)))
        if not isinstance(value, str | bool | None) or value not in field.values:
            choices = ", ".join(map(str, field.values)) + (" are" if len(field.values) > 1 else " is")
            raise Failure(f"{place}: {name} = {value!s:.100}: only {choices} supported")
        return field.values[value]
    if value is None:
        if field.nullable and name in content:
            return None
        if field.default is REQUIRED:
            raise Failure(f"{place}: {name}: missing")
        value = field.default
    elif field.value_type is float and type(value) is int:
        value = float(value)
    elif field.value_type not in {object, type(value)}:
        raise Failure(f"{place}: {name} = {value!s:.100}: not of type {field.value_type.__name__}")
    if field.power == 1 or value is None:
        return value
    if value <= 0:
        raise Failure(f"{place}: {name} = {value!s:.100}: not positive")
    return value**field.power


def _by_layer(content: Fields, values: Fields, family: Family, config: ModelConfig, place: str) -> ModelConfig:
    """The configuration with its settings by layer. Raises ``Failure`` if fields contradict each other."""
    rule = family.layers_by
    if rule is None:
        return config
    window = content.get(rule.name, rule.default)
    if rule.switch and not values[rule.switch]:
        window = None
    if window is not None and (type(window) is not int or window < 1):
        raise Failure(f"{place}: {rule.name} = {window!s:.100}: not a number of tokens")
    numbers = range(min(config.layers, MOST_LAYERS))
    types = content.get("layer_types")
    try:
        slides = listed = [{SLIDING: True, FULL: False}[kind] for kind in types or ()]
        if not (rule.reads_types and window is not None and len(listed) == config.layers):
            slides = [window is not None and bool(rule.slides(values, n)) for n in numbers]
        agree = listed in ([], slides) or not any(listed + slides)
        layers = [dict(rule.settings(values, n, slides[n] if window else None)) for n in numbers]
    except (TypeError, LookupError, ValueError, ArithmeticError):
        agree = False
    except Failure as error:
        raise Failure(f"{place}: {error}") from None
    if not agree:
        computed = f"not what {family.architecture} computes by its fields"
        raise Failure(f"{place}: layer_types = {types!s:.100}: {computed}")
    if window is not None and window < config.sequence:
        layers = [layer | {"window": window} if slides[n] else layer for n, layer in enumerate(layers)]
    alike = config.layer(0).model_dump(mode="json")
    return validate(
        {**config.model_dump(mode="json"), "by_layer": [alike | layer for layer in layers]}, ModelConfig, place
    )


def _rotary_fields(content: Fields, family: Family, place: str, sequence: int | None) -> dict[str, Any]:
    """Rotary base and fraction under the family's field names, and ``scaling`` in the form of `ModelConfig`.

    transformers reads one table as a whole; if a field beside it or another table has another value, its versions
    differ in which one takes precedence. Raises ``Failure`` in that case.
    """
    names = family.rotary_fields
    if not names:
        return {}
    whole = Field(default=1.0)
    # Fallbacks for keys that a table lacks.
    found = {key: _value(content, name, family.fields.get(name, whole), place) for key, name in names.items()}
    given = {key: content[key] for key in names if content.get(key) is not None}
    _require_equal(found, given, place)
    said = given | {key: found[key] for key, name in names.items() if content.get(name) is not None}
    for name in ROTARY_TABLES:
        if content.get(name) not in (None, {}):
            read = {**found, "scaling": None, **_rotary_table(content[name], content, f"{place}: {name}", sequence)}
            _require_equal(said, read, place)
            found = said = read
    if {LOCAL_BASE, ROTARY_TABLES[1]} & family.fields.keys() and FULL not in (content.get(ROTARY_TABLES[1]) or (FULL,)):
        raise Failure(f"{place}: {ROTARY_TABLES[1]}: {FULL}: missing")  # transformers reads no other
    fields = {names.get(key, key): value for key, value in found.items() if value is not None}
    fraction = names["partial_rotary_factor"]
    if fraction not in family.fields and fields.get(fraction, 1) != 1:
        raise Failure(f"{place}: {fraction} = {fields[fraction]!s:.100}: only 1 is supported")
    return fields


def _require_equal(one: Fields, other: Fields, place: str) -> None:
    """Raise ``Failure`` for a field that the two have with different values."""
    for key in one:
        if key in other and one[key] != other[key]:
            values = f"{key} = {one[key]!s:.60} and {other[key]!s:.60}"
            raise Failure(f"{place}: {values}: programs differ in which they read; keep one")


def _rotary_table(table: Any, content: Fields, place: str, sequence: int | None) -> dict[str, Any]:  # noqa: ANN401
    """A table's rotary settings under their usual names, and its ``scaling``."""
    if not isinstance(table, dict):
        raise Failure(f"{place} = {table!s:.100}: not a table")
    local: dict[str, Any] = {}
    if isinstance(table.get(FULL), dict):  # a table for each kind of layer
        sliding, table = table.get(SLIDING), table[FULL]
        if not isinstance(sliding, dict) or sliding.get("rope_type", "default") != "default":
            raise Failure(f"{place}: {SLIDING} = {sliding!s:.100}: only rope_type default is supported")
        local = {LOCAL_BASE: sliding.get("rope_theta")}
    table = {key: value for key, value in table.items() if value is not None}
    fields = local | {key: table[key] for key in ("rope_theta", "partial_rotary_factor") if key in table}
    kind = str(table.get("rope_type", table.get("type", "default")))
    kind = "longrope" if kind == "su" else kind  # its former name
    if kind in {"default", "dynamic"}:  # dynamic changes the base only beyond the sequence
        return fields
    if kind not in SCALINGS:
        raise Failure(f"{place}: rope_type = {kind:.100}: only default, dynamic, {', '.join(SCALINGS)} are supported")
    if content.get(ORIGINAL) is not None:
        _require_equal({ORIGINAL: content[ORIGINAL]}, table, place)
    model, names = SCALINGS[kind]
    required = (theirs for theirs, ours in names.items() if model.model_fields[ours].is_required())
    for missing in (theirs for theirs in required if theirs not in table):
        raise Failure(f"{place}: {missing}: missing")
    try:
        table |= _derived(kind, table, content, sequence)
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise Failure(f"{place}: {kind}: {error or type(error).__name__}") from None
    settings = {ours: table[theirs] for theirs, ours in names.items() if theirs in table}
    return {**fields, "scaling": validate(settings, model, place).model_dump(mode="json")}


def _derived(kind: str, table: Fields, content: Fields, sequence: int | None) -> dict[str, Any]:
    """Settings that transformers derives from other fields if a table of this kind lacks them."""
    if kind == "yarn":
        one, other = (table.get(name) or 0.0 for name in ("mscale", "mscale_all_dim"))
        one, other = (one, other) if one and other else (1.0, 0.0)
        growth = 0.1 * math.log(max(1.0, table["factor"]))
        return {"attention_factor": table.get("attention_factor", (one * growth + 1) / (other * growth + 1))}
    if kind != "longrope":
        return {}
    reach = content["max_position_embeddings"]
    original = content.get(ORIGINAL, table.get(ORIGINAL, reach))
    factor = table.get("factor", reach / original)
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = ([float(each) for each in table[name]] for name in ("short_factor", "long_factor"))
    changes = {"long_factor": long, ORIGINAL: original}
    if short == long or (sequence or reach) <= original:
        changes = {"long_factor": [], ORIGINAL: 1}
    return {"short_factor": short, "attention_factor": table.get("attention_factor", scale), **changes}
