import math
import subprocess
import sys

import pytest
from pydantic import ValidationError

from mtnlg_model.config import PRESETS, ModelConfig, preset
from mtnlg_model.console import UsageFailure


def test_mt_nlg_has_exactly_the_published_number_of_parameters() -> None:
    assert PRESETS["mt-nlg-530b"].parameters == 529_600_819_200


@pytest.mark.parametrize("name", PRESETS)
def test_counts_shapes_and_parts_agree(name: str) -> None:
    config = preset(name)
    assert sum(math.prod(shape) for shape in config.parameter_shapes().values()) == config.parameters
    assert sum(config.parameters_by_part.values()) == config.parameters


def test_gpt2_sizes_are_the_published_ones() -> None:
    sizes = [PRESETS[name].parameters for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")]
    assert sizes == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]


@pytest.mark.parametrize(
    ("seconds", "gpus", "published"), [(60.1, 2240, 125.7), (50.2, 2800, 120.4), (44.4, 3360, 113.5)]
)
def test_the_96_coefficient_formula_gives_the_papers_throughput(seconds: float, gpus: int, published: float) -> None:
    flops = PRESETS["mt-nlg-530b"].hardware_flops(1920)
    assert round(flops / seconds / gpus / 1e12, 1) == published


def test_flops_of_an_iteration_match_the_values_derived_by_hand() -> None:
    config = PRESETS["mt-nlg-530b"]
    assert config.hardware_flops(1920) == pytest.approx(1.69264e19, rel=1e-5)
    assert config.model_flops(1920) == pytest.approx(1.27010e19, rel=1e-5)


def test_initial_deviation_follows_the_rule_unless_it_is_given() -> None:
    rule = ModelConfig(layers=1, hidden=12, heads=3, sequence=4, vocabulary=5)
    assert rule.std == pytest.approx(1 / 6)
    assert PRESETS["mt-nlg-530b"].std == 0.004


def test_heads_that_do_not_divide_hidden_are_refused_with_the_nearest_choices() -> None:
    with pytest.raises(ValidationError, match=r"heads = 5 does not divide hidden = 16; use for example 1, 2, 4, 8"):
        ModelConfig(layers=1, hidden=16, heads=5, sequence=4, vocabulary=5)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageFailure, match="preset gpt5: unknown; choose from mt-nlg-530b, "):
        preset("gpt5")


def test_config_needs_no_torch() -> None:
    code = "import sys, mtnlg_model.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
