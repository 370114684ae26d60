"""What one rank holds is what the layout says, and what its modules are on the meta device."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import Layout, Stage, stages
from mtnlg_parallel.layout_report import rank_shard
from mtnlg_parallel.model.slicing import fake_process_group
from mtnlg_parallel.model.stage_modules import StageModules
from mtnlg_parallel.recipe import Recipe

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
def test_untied_head_counts_in_the_layout_report(tp: int, pp: int) -> None:
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


def test_rank_with_chunks_holds_strided_stages(mt_nlg: Recipe) -> None:
    train = mt_nlg.train.model_copy(update={"engine": "pipeline", "schedule": "interleaved", "chunks": 3})
    shard = rank_shard(mt_nlg.model_copy(update={"train": train}), 2239)
    assert tuple(shard.parts) == ("layers.34", "layers.69", "layers.104", "final_norm", "head")
    assert list(shard.state) == ["weights", "accumulated gradients", "master weights", "moments"]
    halved = train.model_copy(update={"gradients": "bf16"})
    state = rank_shard(mt_nlg.model_copy(update={"train": halved}), 2239).state
    assert state == {**shard.state, "accumulated gradients": shard.state["accumulated gradients"] / 2}
