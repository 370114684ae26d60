"""What one rank holds is what the layout says, and what its modules are on the meta device."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import Layout, Stage, stages
from mtnlg_parallel.layout_report import print_rank, rank_shard
from mtnlg_parallel.model.slicing import fake_process_group
from mtnlg_parallel.model.stage_modules import StageModules
from mtnlg_parallel.recipe import Recipe, load_recipe

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture(scope="module")
def mt_nlg() -> Recipe:
    train = {"samples": 1, "batch": 1920, "lr": 1.0, "decay": 1, "checkpoint_every": 0, "validation_samples": 1920}
    train |= {"engine": "deepspeed"}  # type: ignore[dict-item]
    layout = Layout(tp=8, pp=35, dp=8)
    return Recipe.model_validate({"model": PRESETS["mt-nlg-530b"], "layout": layout, "train": train})


@settings(max_examples=20)
@given(st.integers(0, 2239))
def test_every_rank_of_the_paper_holds_what_its_stage_says(mt_nlg: Recipe, rank: int) -> None:
    shard, layout = rank_shard(mt_nlg, rank), mt_nlg.layout
    stage = stages(mt_nlg.model, layout, "full")[shard.place.pp]
    assert shard.parameters == stage.parameters == built(mt_nlg, stage, shard.place.tp)
    assert tuple(shard.parts) == stage.parts


def built(recipe: Recipe, stage: Stage, rank: int) -> int:
    """Parameters of a stage's modules on a tensor-parallel rank."""
    train, meta = recipe.train, torch.device("meta")
    with fake_process_group(rank, recipe.layout.tp, recipe.model, train.sequence_parallel) as slicing:
        modules = StageModules(stage, recipe.model, slicing, train.recompute, meta)
        return sum(parameter.numel() for parameter in modules.parameters())


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 2)])
def test_a_decoder_with_a_head_of_its_own_is_counted_with_it(tp: int, pp: int) -> None:
    train = {"samples": 1, "batch": 8, "lr": 1.0}
    layout = Layout(tp=tp, pp=pp)
    recipe = Recipe.model_validate({"model": PRESETS["llama-3.1-8b"], "layout": layout, "train": train})
    for stage in stages(recipe.model, layout, "full"):
        shard = rank_shard(recipe, layout.rank(tp=tp - 1, pp=stage.number, dp=0))
        assert shard.parameters == stage.parameters == built(recipe, stage, tp - 1)
    assert tp * pp > 1 or shard.parameters == recipe.model.parameters


def test_middle_rank_of_the_paper(mt_nlg: Recipe) -> None:
    shard = rank_shard(mt_nlg, 1200)
    assert shard.parameters == 1_887_859_200
    assert sum(shard.state.values()) == pytest.approx(9.5 * 1.887859e9)  # paper.md section 3, ZeRO-1 over dp 8


def test_one_rank_counts_the_tied_head_once() -> None:
    train = {"samples": 1, "batch": 1, "lr": 1.0, "decay": 1, "checkpoint_every": 0, "precision": "fp32"}
    recipe = Recipe.model_validate({"model": PRESETS["tiny"], "train": train})
    shard = rank_shard(recipe, 0)
    assert shard.parameters == PRESETS["tiny"].parameters
    assert sum(shard.state.values()) == 16 * shard.parameters


def test_a_rank_is_printed_with_its_parameters_and_groups(mt_nlg: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    print_rank(rank_shard(mt_nlg, 2239), mt_nlg)
    printed = capsys.readouterr().out
    assert "rank 2239 of 2,240 (tp 7, pp 34, dp 7)" in printed
    assert "131,072,000" in printed
    assert "dp: in the group [2183 2191 2199 2207 2215 2223 2231 2239]" in printed


@pytest.mark.parametrize("name", ["mt-nlg-530b", "dense-6.7b", "dense-1.3b", "dense-350m"])
def test_the_ranks_of_a_published_recipe_hold_its_decoder(name: str) -> None:
    if not RECIPES.is_dir():
        pytest.skip(f"{RECIPES}: the recipes are not beside this package")
    recipe = load_recipe(RECIPES / name)
    shards = [rank_shard(recipe, recipe.layout.rank(tp=0, pp=stage, dp=0)) for stage in range(recipe.layout.pp)]
    head = recipe.model.vocabulary * recipe.model.hidden if recipe.layout.pp > 1 else 0
    total = sum(shard.parameters for shard in shards) * recipe.layout.tp
    replicated = recipe.model.hidden * (6 * recipe.model.layers + 2 + recipe.model.sequence)
    assert total == recipe.model.parameters + head + (recipe.layout.tp - 1) * replicated


def test_rank_with_chunks_holds_strided_stages(mt_nlg: Recipe) -> None:
    train = mt_nlg.train.model_copy(update={"engine": "pipeline", "schedule": "interleaved", "chunks": 3})
    shard = rank_shard(mt_nlg.model_copy(update={"train": train}), 2239)
    assert tuple(shard.parts) == ("layers.34", "layers.69", "layers.104", "final_norm", "head")
    assert list(shard.state) == ["weights", "accumulated gradients", "master weights", "moments"]
    halved = train.model_copy(update={"gradients": "bf16"})
    state = rank_shard(mt_nlg.model_copy(update={"train": halved}), 2239).state
    assert state == {**shard.state, "accumulated gradients": shard.state["accumulated gradients"] / 2}
