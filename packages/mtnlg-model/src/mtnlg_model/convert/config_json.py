"""config.json of Hugging Face's folders, read as a `ModelConfig` and written for one.

A field is one of these, and any other is refused by its name, unless it is null:

    a row of `Family.fields`    a size, rate or kind that sets ours, or one that is supported at one value only
    rotary positions            rope_theta, rope_scaling, rotary_pct ... of transformers 4, or rope_parameters of 5
    windows of attention        sliding_window and layer_types, as `Family.windows` says
    `UNREAD`                    accepted at one value
    no matter of ours           `IGNORED`, and those of the family

The fields of transformers 4 are written, which both versions read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from mtnlg_model.checkpoint.chat_files import own_file
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.families import load_family, references
from mtnlg_model.families.family import REQUIRED, Field, only
from mtnlg_model.files import read_small
from mtnlg_model.settings import validate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mtnlg_model.families.family import Family

CONFIG_BYTES: Final = 1 << 20
_CONTENT = TypeAdapter(dict[str, Any])
ROTARY_TABLES: Final = ("rope_scaling", "rope_parameters")
FULL, SLIDING = "full_attention", "sliding_attention"
MOST_LAYERS: Final = 1025
"""Layers that are listed to read a window of attention: one more than a pattern of settings by layer may have."""
LLAMA3: Final = {
    "factor": "factor",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "original_max_position_embeddings": "original_sequence",
}
_IGNORED = """
    model_type architectures transformers_version torch_dtype dtype _name_or_path name_or_path use_cache
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    tokenizer_class prefix task_specific_params finetuning_task problem_type id2label label2id num_labels
    return_dict return_dict_in_generate output_hidden_states output_attentions output_scores torchscript use_bfloat16
    tf_legacy_loss pruned_heads is_encoder_decoder is_decoder cross_attention_hidden_size tie_encoder_decoder
    chunk_size_feed_forward _attn_implementation _attn_implementation_autoset attn_implementation classifier_dropout
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences exponential_decay_length_penalty suppress_tokens begin_suppress_tokens remove_invalid_values
    n_special predict_special_tokens output_past _num_labels custom_pipelines
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    unk_token_id _model_name_or_path
    is_llama_config max_sequence_length neftune_noise_alpha transformers.js_config unsloth_fixed unsloth_version
"""
IGNORED: Final = frozenset(_IGNORED.split())
"""Fields that decide no logit: names, text generation, other heads, other programs' notes."""

UNREAD: Final = {
    "use_mrope": only(False),  # Qwen2.5
    "rope_interleaved": only(False),  # SmolLM
    "activation": only("swiglu"),  # Falcon3, beside hidden_act
}
"""Fields of published folders that transformers does not read, at the values that say what it computes."""

FOREIGN: Final = {
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "alibi": "ALiBi positions",
    "quantization_config": "quantized weights",
}
"""What some fields of others stand for."""


def read_config(folder: Path) -> ModelConfig:
    """The decoder's configuration of a folder. Raises ``Failure`` for what this decoder does not support."""
    return read_family(folder)[1]


def read_family(
    folder: Path, vocabulary_multiple: int = 1, sequence: int | None = None, family: str | None = None
) -> tuple[Family, ModelConfig]:
    """Family and configuration, the vocabulary padded to a multiple; otherwise as `read_config`, `from_config_json`."""
    path = folder / "config.json"
    try:
        content = _CONTENT.validate_json(read_small(own_file(folder, path.name), CONFIG_BYTES))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; is it a Hugging Face folder?") from None
    except ValidationError as error:
        raise Failure(f"{path}: {error.errors(include_url=False)[0]['msg']}") from None
    found, config = from_config_json(content, str(path), sequence, family)
    padding = -config.vocabulary % vocabulary_multiple
    padded = {"vocabulary": config.vocabulary + padding, "vocabulary_padding": padding}
    return found, config.model_copy(update=padded)


def from_config_json(
    content: Mapping[str, Any], place: str, sequence: int | None = None, family: str | None = None
) -> tuple[Family, ModelConfig]:
    """Family and configuration of a config.json; ``sequence`` limits that of the file.

    The family is that of ``model_type``, by its name, or the one that ``family`` refers to. Raises ``Failure`` with one
    line that begins with ``place`` and names what is not supported.
    """
    model_type = content.get("model_type")
    if family is None and str(model_type) not in (names := references()):
        kinds = (f" ({name}: {kind})" for name, kind in FOREIGN.items() if content.get(name))
        raise Failure(
            f"{place}: model_type = {model_type!s:.100}{next(kinds, '')}: not supported; {', '.join(names)} are"
        )
    found = load_family(family or str(model_type))
    fields = {**found.fields, **UNREAD}
    window = ("sliding_window", "layer_types", "max_window_layers")
    rotary = {*found.rotary_fields, *ROTARY_TABLES} if found.rotary_fields else set()
    known = {*fields, *found.ignored.split(), *IGNORED, *window, *rotary}
    for name, value in content.items():
        if name not in known and value is not None:
            reason = f"a field that {model_type!s:.100} is not known to have"
            reason += f" ({FOREIGN[name]})" if name in FOREIGN else ""
            raise Failure(f"{place}: {name:.100} = {value!s:.100}: {reason}")
    merged = {**content, **_rotary_fields(content, found, place)}
    values = {name: _value(merged, name, field, place) for name, field in fields.items()}
    settings = {ours: values[name] for name, field in fields.items() for ours in field.sets.split()}
    settings = {name: value for name, value in settings.items() if value is not None}
    scaling = {"rotary_scaling": merged["scaling"]} if "scaling" in merged else {}
    config = validate({**found.kind, **settings, **scaling}, ModelConfig, place)
    if sequence is not None:
        if sequence > config.sequence or config.positions == "learned":
            raise Failure(
                f"{place}: --sequence {sequence}: only rotary positions up to {config.sequence} can be limited"
            )
        config = config.model_copy(update={"sequence": sequence})
    return found, _with_windows(content, values, found, config, place)


def to_config_json(config: ModelConfig) -> tuple[Family, dict[str, Any]]:
    """The first family that has this decoder, and its config.json. Raises ``Failure`` if none has.

    A Mistral without a window is exported as the Llama that it is.
    """
    # What changes no logit, or has no field: dropout, and a scaling that is undone.
    plain = {"dropout": 0.0, "scale_attention_by_layer": False, "init_std": config.std}
    wanted = config.unpadded.model_copy(update=plain)
    for name in references():
        found = load_family(name)
        content = {"model_type": name, "architectures": [found.architecture], **_fields(wanted, found)}
        try:
            read = from_config_json(content, "")[1]
        except Failure:
            continue
        if read.model_copy(update=plain) == wanted:
            dropout = {key: config.dropout for key, field in found.fields.items() if field.sets == "dropout"}
            return found, {**content, **dropout}
    kind = ", ".join(f"{name} = {value}" for name, value in wanted.beyond_gpt.items())
    known = ", ".join(references())
    raise Failure(f"no family of {known} has a decoder with {kind or 'these settings'}; it cannot be exported")


def _fields(config: ModelConfig, family: Family) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, field in family.fields.items():
        ours = getattr(config, field.sets.split()[0]) if field.sets else None
        if field.sets or field.values:
            content[name] = next((theirs for theirs, value in field.values.items() if value == ours), ours)
    if config.rotary_scaling is not None:
        scaling = {theirs: getattr(config.rotary_scaling, ours) for theirs, ours in LLAMA3.items()}
        content["rope_scaling"] = {**scaling, "rope_type": "llama3"}
    windows = [config.layer(n).window for n in range(config.layers)]
    if (rule := family.windows) is not None:
        window = max(filter(None, windows), default=None)
        if window or not rule.switch:
            content["sliding_window"] = window
        if rule.reads_types and (window or not rule.switch):
            content["layer_types"] = [SLIDING if each else FULL for each in windows]
        if rule.switch:
            content[rule.switch] = window is not None
    return content


def _value(content: Mapping[str, Any], name: str, field: Field, place: str) -> object:
    """Our value of a field: that of the file, in its type, or what its absence stands for."""
    value = content.get(name)
    if field.values:
        value = content.get(name, next(iter(field.values)))
        if not isinstance(value, str | bool) or value not in field.values:
            choices = ", ".join(map(str, field.values)) + (" are" if len(field.values) > 1 else " is")
            raise Failure(f"{place}: {name} = {value!s:.100}: only {choices} supported")
        return field.values[value]
    if value is None:
        if field.default is REQUIRED:
            raise Failure(f"{place}: {name}: missing")
        return field.default
    if field.kind is float and type(value) is int:
        return float(value)
    if type(value) is not field.kind:
        raise Failure(f"{place}: {name} = {value!s:.100}: not of type {field.kind.__name__}")
    return value


def _with_windows(
    content: Mapping[str, Any], values: Mapping[str, Any], family: Family, config: ModelConfig, place: str
) -> ModelConfig:
    """The configuration with the attention windows of its layers. Raises ``Failure`` where fields disagree on them."""
    rule, sequence = family.windows, config.sequence
    window = content.get("sliding_window", rule.default if rule else None)
    if rule and rule.switch and not values[rule.switch]:
        window = None
    if window is not None and (type(window) is not int or window < 1 or (rule is None and window < sequence)):
        hint = f"; mtnlg-model import --sequence {window} limits it" if type(window) is int else ""
        raise Failure(f"{place}: sliding_window = {window!s:.100}: less than the sequence of {sequence}{hint}")
    slides = [False] * min(config.layers, MOST_LAYERS)
    if rule and window is not None:
        slides = [bool(rule.slides(values, n)) for n in range(len(slides))]
    if types := content.get("layer_types"):
        listed = [{SLIDING: True, FULL: False}.get(str(kind)) for kind in types] if isinstance(types, list) else [None]
        if rule and rule.reads_types and window is not None and len(listed) == config.layers:
            slides = [bool(kind) for kind in listed]
        if None in listed or any(listed) != any(slides) or (any(slides) and listed != slides):
            raise Failure(f"{place}: layer_types = {types!s:.100}: not what {family.architecture} computes")
    if rule is None or window is None:
        return config
    alike = config.layer(0).model_dump(mode="json")
    sliding, others = alike | ({"window": window} if window < sequence else {}), {**alike, **rule.others}
    layers = [sliding if each else others for each in slides]
    return validate({**config.model_dump(mode="json"), "by_layer": layers}, ModelConfig, place)


def _rotary_fields(content: Mapping[str, Any], family: Family, place: str) -> dict[str, Any]:
    """Base and fraction of rotary positions by the family's names; ``scaling`` as `ModelConfig` has it.

    transformers takes one table whole, and its versions differ in what comes first where a field beside it, or another
    table, gives another value. Raises ``Failure`` there.
    """
    names = family.rotary_fields
    if not names:
        return {}
    # What a table that lacks a key falls back to.
    whole = Field(kind=float, default=1.0)
    behind = {key: _value(content, name, family.fields.get(name, whole), place) for key, name in names.items()}
    given = {key for pair in names.items() for key in pair if content.get(key) is not None}
    said = [(name, key, behind[key]) for key, name in names.items() if {key, name} & given]
    said += [(key, key, content[key]) for key in names if key in given]
    for table in ROTARY_TABLES:
        if content.get(table) not in (None, {}):
            read = _rotary_table(content[table], f"{place}: {table}")
            said += [(table, key, value) for key, value in {**behind, "scaling": None, **read}.items()]
    found: dict[str, tuple[str, Any]] = {}
    for source, key, value in said:
        first, other = found.setdefault(key, (source, value))
        if other != value:
            values = f"{other!s:.60} by {first}, {value!s:.60} by {source}"
            raise Failure(f"{place}: {key} = {values}: programs differ in which they read; keep the right one")
    fields = {names.get(key, key): value for key, (_, value) in found.items() if value is not None}
    fraction = names["partial_rotary_factor"]
    if fraction not in family.fields and fields.get(fraction, 1) != 1:
        raise Failure(f"{place}: {fraction} = {fields[fraction]!s:.100}: only 1 is supported")
    return fields


def _rotary_table(table: object, place: str) -> dict[str, Any]:
    """What a table says of rotary positions by the usual names, and its ``scaling``."""
    if not isinstance(table, dict):
        raise Failure(f"{place} = {table!s:.100}: not a table")
    rest = {key: value for key, value in table.items() if value is not None}
    found = {key: rest.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rest}
    return found | _scaling(rest, place)


def _scaling(rest: dict[str, Any], place: str) -> dict[str, Any]:
    """The scaling in the ``rest`` of a table, if it is one that we know."""
    kinds = [rest.pop(key) for key in ("rope_type", "type") if key in rest]
    kind = kinds[0] if kinds else "default"
    found = {}
    if kind == "llama3":
        if missing := [theirs for theirs in LLAMA3 if theirs not in rest]:
            raise Failure(f"{place}: {missing[0]}: missing")
        found["scaling"] = {ours: _number(rest.pop(theirs), ours) for theirs, ours in LLAMA3.items()}
    elif kind != "default":
        raise Failure(f"{place}: rope_type = {kind!s:.100}: only default and llama3 are supported")
    for unknown, value in rest.items():
        raise Failure(f"{place}: {unknown:.100} = {value!s:.100}: not known of rope_type {kind}")
    return found


def _number(value: object, name: str) -> object:
    return float(value) if type(value) is int and name != "original_sequence" else value
