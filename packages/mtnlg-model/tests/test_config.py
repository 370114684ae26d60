import json
import math
from pathlib import Path
from typing import Final

import pytest
from pydantic import ValidationError

from mtnlg_model.compare import Difference, differences
from mtnlg_model.config import ModelConfig
from mtnlg_model.console import UsageFailure
from mtnlg_model.families import PRESETS, preset
from mtnlg_model.settings import dump, read_toml, validate

PUBLISHED: Final[dict[str, int]] = json.loads((Path(__file__).parent / "preset_sizes.json").read_text())
"""Published numbers of parameters of presets."""


@pytest.mark.parametrize("name", PRESETS)
def test_counts_shapes_and_parts_agree(name: str) -> None:
    config = preset(name)
    assert sum(math.prod(shape) for shape in config.parameter_shapes().values()) == config.parameters
    assert sum(config.parameters_by_part.values()) == config.parameters


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_presets_have_the_published_parameters(name: str, published: int) -> None:
    assert PRESETS[name].parameters == published


def test_gpt_config_format_is_unchanged() -> None:
    """So that its checkpoints keep their digest, and older versions read them."""
    assert list(PRESETS["mt-nlg-530b"].model_dump(mode="json")) == [
        "layers",
        "hidden",
        "heads",
        "sequence",
        "vocabulary",
        "dropout",
        "attention_dropout",
        "init_std",
        "layer_norm_eps",
        "scale_attention_by_layer",
    ]


def test_nested_settings_are_compared_one_by_one() -> None:
    longer, plain = PRESETS["llama-3.1-8b"], PRESETS["llama-2-7b"]
    shorter = longer.model_copy(update={"rotary_scaling": {**dict(longer.rotary_scaling or {}), "factor": 2.0}})
    assert differences(longer, shorter) == [Difference("rotary_scaling.factor", 8.0, 2.0)]
    assert Difference("rotary_scaling", None, longer.rotary_scaling) in differences(plain, longer)
    assert not differences(longer, shorter, {"rotary_scaling": "a table's key stands for all in it"})


@pytest.mark.parametrize("name", ["mt-nlg-530b", "pythia-1b", "llama-3.1-8b", "qwen2.5-0.5b", "qwen3-4b"])
def test_a_configuration_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    config = PRESETS[name]
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    (tmp_path / "model.toml").write_text(dump(config))
    assert validate(read_toml(tmp_path, "model.toml")[1], ModelConfig, "") == config


def test_keys_of_0_3_set_the_kind_of_qk_norm() -> None:
    old = {**PRESETS["tiny"].model_dump(), "qk_norm": True, "qk_norm_full": False, "qk_norm_by_head": True}
    assert ModelConfig.model_validate(old).qk_norm == "by-head"


def test_a_wrong_kind_of_qk_norm_is_one_line() -> None:
    with pytest.raises(UsageFailure) as failure:
        validate({**PRESETS["tiny"].model_dump(), "qk_norm": "all"}, ModelConfig, "recipe.toml")
    assert str(failure.value) == "recipe.toml: qk_norm = 'all': Input should be false, true, 'full' or 'by-head'"


def test_a_key_of_another_kind_of_scaling_is_not_offered() -> None:
    model = {"layers": 1, "hidden": 8, "heads": 1, "sequence": 8, "vocabulary": 9, "positions": "rotary"}
    with pytest.raises(UsageFailure) as failure:
        validate({**model, "rotary_scaling": {"factor": 2.0, "beta_fats": 3.0}}, ModelConfig, "here")
    lines = str(failure.value).splitlines()
    assert "here: rotary_scaling.LinearScaling.beta_fats = 3.0: unknown key; valid keys: factor" in lines
    assert any("YarnScaling.beta_fats = 3.0: unknown key; did you mean beta_fast? " in line for line in lines)


def test_derived_widths_follow_in_a_copy() -> None:
    small, wide = PRESETS["tiny"], PRESETS["tiny"].model_copy(update={"hidden": 128})
    assert (small.head_size, small.ffn, small.kv_heads) == (16, 256, 4)
    assert (wide.head_size, wide.ffn, wide.kv_heads, wide.embedding_size) == (32, 512, 4, 128)
    assert PRESETS["llama-3.1-8b"].model_copy(update={"layers": 1}).kv_heads == 8


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        (
            {"positions": "rotary", "rotary_fraction": 0.05},
            "rotary positions rotate pairs; 0 of 16 values are not pairs",
        ),
        ({"positions": "table"}, "Input should be 'learned', 'rotary', 'alibi' or 'alibi-bf16'"),
        ({"shared_norm": True}, "shared_norm needs parallel_residual"),
        (
            {"parallel_residual": True, "by_layer": [{}, {"norm_after": "sum"}]},
            "by_layer.norm_after = sum needs parallel_residual = false",
        ),
        ({"sandwich_norm": True, "by_layer": [{"norm_after": "sum"}]}, "sandwich_norm already norms the outputs"),
        ({"head_bias": True}, "head_bias needs an untied head: tied = false"),
        ({"vocabulary_padding": 512}, "vocabulary_padding = 512 leaves none of 512 tokens"),
    ],
)
def test_inconsistent_settings_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PRESETS["tiny"].model_copy(update=changed)


def test_a_bias_that_is_no_boolean_is_one_mistake() -> None:
    with pytest.raises(ValidationError) as caught:
        PRESETS["tiny"].model_copy(update={"bias": 5})
    assert [each["loc"] for each in caught.value.errors()] == [("bias",)]


def test_flops_of_shared_kv_heads_count_their_own_matrices() -> None:
    config = PRESETS["llama-3.1-8b"].model_copy(update={"sequence": 8192})
    matrices = config.parameters - config.vocabulary * config.hidden - config.parameters_by_part["norms"]
    per_token = 3 * (2 * matrices + 4 * config.layers * 8192 * 4096)
    assert config.model_flops(2) == 2 * 8192 * per_token


def test_flops_count_a_narrow_table_and_its_projections() -> None:
    narrow = PRESETS["tiny"].model_copy(update={"embedding_size": 16})
    tables = 512 * 16 + narrow.parameters_by_part["position embedding"] + narrow.parameters_by_part["norms"]
    biases = narrow.layers * (3 + 1 + 4 + 1) * 64
    matrices = narrow.parameters - tables - biases
    assert narrow.parameters_by_part["projections"] == 2 * 16 * 64
    assert narrow.model_flops(1) == 128 * 3 * (2 * (matrices + 512 * 16) + 4 * narrow.layers * 128 * 64)


def test_initial_deviation_follows_the_rule_unless_it_is_given() -> None:
    rule = ModelConfig(layers=1, hidden=12, heads=3, sequence=4, vocabulary=5)
    assert rule.std == pytest.approx(1 / 6)
    assert PRESETS["mt-nlg-530b"].std == 0.004


def test_heads_must_divide_hidden_with_nearest_choices() -> None:
    with pytest.raises(ValidationError, match=r"heads = 5 does not divide hidden = 16; use for example 1, 2, 4, 8"):
        ModelConfig(layers=1, hidden=16, heads=5, sequence=4, vocabulary=5)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageFailure, match="preset gpt5: unknown; choose from mt-nlg-530b, "):
        preset("gpt5")


def test_explicit_head_size_is_written() -> None:
    config = ModelConfig(layers=1, hidden=24, heads=9, head_size=2, sequence=8, vocabulary=8)
    assert ModelConfig.model_validate(config.model_dump(mode="json")) == config
