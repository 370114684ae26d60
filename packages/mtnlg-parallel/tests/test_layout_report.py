"""What a stage holds is what its modules are on the meta device."""

import pytest
import torch

from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import Layout, Stage, stages
from mtnlg_parallel.layout_report import layout_facts
from mtnlg_parallel.model.slicing import fake_process_group
from mtnlg_parallel.model.stage_modules import StageModules
from mtnlg_parallel.recipe import Recipe


def built(recipe: Recipe, stage: Stage, rank: int) -> int:
    """Parameters of a stage's modules on a tensor-parallel rank."""
    train, meta = recipe.train, torch.device("meta")
    with fake_process_group(rank, recipe.layout.tp, recipe.model, train.sequence_parallel) as slicing:
        modules = StageModules(stage, recipe.model, slicing, train.recompute, meta)
        return sum(parameter.numel() for parameter in modules.parameters())


@pytest.mark.parametrize(
    ("model", "layout", "numbers"),
    [
        ("mt-nlg-530b", Layout(tp=8, pp=35, dp=8), [0, 1, 17, 34]),
        ("llama-3.1-8b", Layout(), [0]),
        ("llama-3.1-8b", Layout(tp=4, pp=2), [0, 1]),
        ("tiny", Layout(), [0]),
    ],
)
def test_stage_counts_match_modules(model: str, layout: Layout, numbers: list[int]) -> None:
    """On one rank a tied head counts once, an untied one counts."""
    train = {"samples": 1, "batch": layout.dp, "lr": 1.0}
    recipe = Recipe.model_validate({"model": PRESETS[model], "layout": layout, "train": train})
    for number in numbers:
        stage = stages(recipe.model, layout, "full")[number]
        assert stage.parameters == built(recipe, stage, layout.tp - 1)
        assert number != 17 or stage.parameters == 1_887_859_200
        assert layout.world > 1 or stage.parameters == recipe.model.parameters


def test_chunks_are_stages_of_their_own() -> None:
    train = {"samples": 1, "batch": 8, "lr": 1.0, "schedule": "interleaved", "chunks": 3}
    recipe = Recipe.model_validate(
        {"model": PRESETS["mt-nlg-530b"], "layout": Layout(tp=8, pp=35, dp=8), "train": train}
    )
    cut = layout_facts(recipe)["stages"]
    assert [part for stage in cut[34::35] for part in stage["parts"]] == [
        "layers.34",
        "layers.69",
        "layers.104",
        "final_norm",
        "head",
    ]
