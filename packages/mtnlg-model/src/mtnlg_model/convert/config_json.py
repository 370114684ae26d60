"""config.json of Hugging Face's folders, read as a `ModelConfig` and written for one.

A field is one of these, and any other is refused by its name, unless it is null:

    a size or rate        `Family.settings`: our setting, its type, and the value where the field is missing
    an activation         `Family.activation`
    rotary positions      rope_theta, rope_scaling, rotary_pct … of transformers 4, or rope_parameters of transformers 5
    a window              of attention: accepted where it is as long as the sequence
    something else        `Family.fixed` and `UNREAD`: accepted at these values only
    no matter of ours     `IGNORED`, and those of the family

The fields of transformers 4 are written, which both versions read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from mtnlg_model.checkpoint.chat_files import own_file
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure
from mtnlg_model.files import read_small
from mtnlg_model.settings import validate

from .families import FAMILIES, REQUIRED, UNREAD, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .families import Family

CONFIG_BYTES: Final = 1 << 20
_CONTENT = TypeAdapter(dict[str, Any])
ROTARY_FIELDS: Final = ("rope_theta", "partial_rotary_factor")
NEOX_FIELDS: Final = ("rotary_emb_base", "rotary_pct")
"""What gpt_neox reads for `ROTARY_FIELDS` outside of a table."""
ROTARY_TABLES: Final = ("rope_scaling", "rope_parameters")
WINDOW_FIELDS: Final = ("sliding_window", "max_window_layers", "layer_types")
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
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    unk_token_id _model_name_or_path
    is_llama_config max_sequence_length neftune_noise_alpha transformers.js_config unsloth_fixed unsloth_version
"""
IGNORED: Final = frozenset(_IGNORED.split())
"""Fields that decide no logit: names, text generation, other heads, other programs' notes."""

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


def read_family(folder: Path, vocabulary_multiple: int = 1, sequence: int | None = None) -> tuple[Family, ModelConfig]:
    """Family and configuration, the vocabulary padded to a multiple; otherwise as `read_config`, `from_config_json`."""
    path = folder / "config.json"
    try:
        content = _CONTENT.validate_json(read_small(own_file(folder, path.name), CONFIG_BYTES))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; is it a Hugging Face folder?") from None
    except ValidationError as error:
        raise Failure(f"{path}: {error.errors(include_url=False)[0]['msg']}") from None
    family, config = from_config_json(content, str(path), sequence)
    padding = -config.vocabulary % vocabulary_multiple
    padded = {"vocabulary": config.vocabulary + padding, "vocabulary_padding": padding}
    return family, config.model_copy(update=padded)


def from_config_json(content: Mapping[str, Any], place: str, sequence: int | None = None) -> tuple[Family, ModelConfig]:
    """Family and configuration of a config.json; ``sequence`` limits that of the file.

    Raises ``Failure`` with one line that begins with ``place`` and names what is not supported.
    """
    family = FAMILIES.get(content["model_type"]) if isinstance(content.get("model_type"), str) else None
    if family is None:
        kinds = (f" ({name}: {kind})" for name, kind in FOREIGN.items() if content.get(name))
        given = f"model_type = {content.get('model_type')!s:.100}{next(kinds, '')}"
        raise Failure(f"{place}: {given}: not supported; {', '.join(FAMILIES)} are")
    fixed = {**family.fixed, **UNREAD}
    known = {family.activation[0], *family.settings, *fixed, *family.ignored, *IGNORED, *WINDOW_FIELDS}
    known |= {*ROTARY_FIELDS, *ROTARY_TABLES} if family.rotary else set()
    for name, value in content.items():
        if name not in known and value is not None:
            reason = f"a field that {content['model_type']} is not known to have"
            reason += f" ({FOREIGN[name]})" if name in FOREIGN else ""
            raise Failure(f"{place}: {name:.100} = {value!s:.100}: {reason}")
    for name, values in fixed.items():
        if content.get(name, values[0]) not in values:
            raise Failure(f"{place}: {name} = {content[name]!s:.100}: only {values[0]} is supported")
    merged = {**content, **_rotary_fields(content, family, place)}
    settings = {ours.name: _value(merged, name, ours, place) for name, ours in family.settings.items()}
    settings = {name: value for name, value in settings.items() if value is not None}
    activation, kinds_of_mlp = family.activation
    mlp = kinds_of_mlp.get(str(content.get(activation, next(iter(kinds_of_mlp)))))
    if mlp is None:
        raise Failure(
            f"{place}: {activation} = {content[activation]!s:.100}: only {', '.join(kinds_of_mlp)} are supported"
        )
    scaling = {"rotary_scaling": merged["scaling"]} if "scaling" in merged else {}
    config = validate({**family.kind, **settings, **scaling, "mlp": mlp}, ModelConfig, place)
    if sequence is not None:
        config = _limit(config, sequence, place)
    _check_window(content, family, config, place)
    return family, config


def to_config_json(config: ModelConfig) -> tuple[Family, dict[str, Any]]:
    """The first family that has this decoder, and its config.json. Raises ``Failure`` if none has."""
    # What changes no logit, or has no field: dropout, and a scaling that is undone.
    plain = {"dropout": 0.0, "scale_attention_by_layer": False, "init_std": config.std}
    wanted = config.unpadded.model_copy(update=plain)
    for model_type, family in FAMILIES.items():
        content = {"model_type": model_type, "architectures": [family.architecture], **_fields(wanted, family)}
        try:
            read = from_config_json(content, "")[1]
        except Failure:
            continue
        if read.model_copy(update=plain) == wanted:
            dropout = {name: config.dropout for name, ours in family.settings.items() if ours.name == "dropout"}
            return family, {**content, **dropout}
    kind = ", ".join(f"{name} = {value}" for name, value in wanted.beyond_gpt.items())
    raise Failure(
        f"no family of {', '.join(FAMILIES)} has a decoder with {kind or 'these settings'}; it cannot be exported"
    )


def _fields(config: ModelConfig, family: Family) -> dict[str, Any]:
    fields = {name: getattr(config, ours.name) for name, ours in family.settings.items()}
    activation, kinds_of_mlp = family.activation
    fields[activation] = next((theirs for theirs, ours in kinds_of_mlp.items() if ours == config.mlp), config.mlp)
    if config.rotary_scaling is not None:
        scaling = {theirs: getattr(config.rotary_scaling, ours) for theirs, ours in LLAMA3.items()}
        fields["rope_scaling"] = {**scaling, "rope_type": "llama3"}
    return {**fields, **{name: values[0] for name, values in family.fixed.items()}}


def _value(content: Mapping[str, Any], name: str, setting: Setting, place: str) -> object:
    value = content.get(name)
    if value is None:
        value = setting.default
        if value is REQUIRED:
            raise Failure(f"{place}: {name}: missing")
        return value
    if setting.kind is float and type(value) is int:
        return float(value)
    if type(value) is not setting.kind:
        raise Failure(f"{place}: {name} = {value!s:.100}: not of type {setting.kind.__name__}")
    return value


def _rotary_fields(content: Mapping[str, Any], family: Family, place: str) -> dict[str, Any]:
    """Base and fraction of rotary positions by the family's names; ``scaling`` as `ModelConfig` has it.

    transformers takes one table whole, and its versions differ in what comes first where a field beside it, or another
    table, gives another value. Raises ``Failure`` there.
    """
    if not family.rotary:
        return {}
    own = NEOX_FIELDS if NEOX_FIELDS[0] in family.settings else ROTARY_FIELDS
    names = dict(zip(ROTARY_FIELDS, own, strict=True))
    # What a table that lacks a key falls back to.
    behind: dict[str, Any] = {
        key: _value(content, name, family.settings.get(name, Setting("rotary_fraction", float, 1.0)), place)
        for key, name in names.items()
    }
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
    if own == ROTARY_FIELDS and fields.get("partial_rotary_factor", 1) != 1:
        raise Failure(f"{place}: partial_rotary_factor = {fields['partial_rotary_factor']!s:.100}: only 1 is supported")
    return fields


def _rotary_table(table: object, place: str) -> dict[str, Any]:
    """What a table says by the names of `ROTARY_FIELDS`, and its ``scaling``."""
    if not isinstance(table, dict):
        raise Failure(f"{place} = {table!s:.100}: not a table")
    rest = {key: value for key, value in table.items() if value is not None}
    found = {key: rest.pop(key) for key in ROTARY_FIELDS if key in rest}
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


def _limit(config: ModelConfig, sequence: int, place: str) -> ModelConfig:
    if sequence > config.sequence or config.positions == "learned":
        raise Failure(f"{place}: --sequence {sequence}: only rotary positions up to {config.sequence} can be limited")
    return config.model_copy(update={"sequence": sequence})


def _check_window(content: Mapping[str, Any], family: Family, config: ModelConfig, place: str) -> None:
    """Raise ``Failure`` where attention sees less than the sequence."""
    kinds = content.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise Failure(f"{place}: layer_types = {kinds!s:.100}: only full_attention is supported")
    window = content.get("sliding_window", family.window)
    if window is None or content.get("use_sliding_window") is False:
        return
    if type(window) is not int or window < config.sequence:
        way_out = f"; mtnlg-model import --sequence {window} limits it" if type(window) is int else ""
        raise Failure(
            f"{place}: sliding_window = {window!s:.100}: less than the sequence of {config.sequence}{way_out}"
        )
