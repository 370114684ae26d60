"""Any rank of any job can be built here, from meta tensors alone, and holds what the layout says."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_model.config import PRESETS
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.layout import Layout, stages
from mtnlg_parallel.recipe import Recipe, load_recipe

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns of what it could use and we do not
    from mtnlg_parallel.layout_report import draw_rank, shard_of

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture(scope="module")
def mt_nlg() -> Recipe:
    train = {"samples": 1, "batch": 1920, "lr": 1.0, "decay": 1, "checkpoint_every": 0, "validation_samples": 1920}
    layout = Layout(tp=8, pp=35, dp=8)
    return Recipe.model_validate({"model": PRESETS["mt-nlg-530b"], "layout": layout, "train": train})


@settings(max_examples=20)
@given(st.integers(0, 2239))
def test_every_rank_of_the_paper_holds_what_its_stage_says(mt_nlg: Recipe, rank: int) -> None:
    shard = shard_of(mt_nlg, rank)
    stage = stages(mt_nlg.model, mt_nlg.layout, "full")[shard.place.pp]
    assert shard.parameters == stage.parameters
    assert tuple(shard.parts) == stage.parts


def test_a_rank_in_the_middle_holds_1_887e9_parameters_and_18_gigabytes_of_state(mt_nlg: Recipe) -> None:
    shard = shard_of(mt_nlg, 1200)
    assert shard.parameters == 1_887_859_200
    assert sum(shard.state.values()) == pytest.approx(9.5 * 1.887859e9)  # paper.md section 3, ZeRO-1 over dp 8


def test_one_rank_holds_the_whole_decoder_and_counts_the_tied_head_once() -> None:
    train = {"samples": 1, "batch": 1, "lr": 1.0, "decay": 1, "checkpoint_every": 0, "precision": "fp32"}
    recipe = Recipe.model_validate({"model": PRESETS["tiny"], "train": train})
    shard = shard_of(recipe, 0)
    assert shard.parameters == PRESETS["tiny"].parameters
    assert sum(shard.state.values()) == 20 * shard.parameters


def test_it_is_drawn(mt_nlg: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    draw_rank(shard_of(mt_nlg, 2239), mt_nlg)
    said = capsys.readouterr().out
    assert "rank 2239 of 2,240 (tp 7, pp 34, dp 7)" in said
    assert "131,072,000" in said
    assert "dp: in the group [2183 2191 2199 2207 2215 2223 2231 2239]" in said


def test_a_rank_that_is_not_there_is_refused(mt_nlg: Recipe) -> None:
    with pytest.raises(UsageFailure, match="--rank 2240: layout tp=8,pp=35,dp=8 has ranks 0 to 2239"):
        shard_of(mt_nlg, 2240)


@pytest.mark.parametrize("name", ["mt-nlg-530b", "dense-6.7b", "dense-1.3b", "dense-350m"])
def test_the_ranks_of_a_published_recipe_hold_its_decoder(name: str) -> None:
    if not RECIPES.is_dir():
        pytest.skip(f"{RECIPES}: the recipes are not beside this package")
    recipe = load_recipe(RECIPES / name)
    first = [shard_of(recipe, recipe.layout.rank(tp=0, pp=stage, dp=0)) for stage in range(recipe.layout.pp)]
    copies = recipe.model.vocabulary * recipe.model.hidden if recipe.layout.pp > 1 else 0
    whole = sum(shard.parameters for shard in first) * recipe.layout.tp
    norms = recipe.model.hidden * (6 * recipe.model.layers + 2 + recipe.model.sequence)  # whole on every slice
    assert whole == recipe.model.parameters + copies + (recipe.layout.tp - 1) * norms
