"""What the planner says a rank holds, against the bytes that a run's parameters, gradients and moments take."""

from pathlib import Path

import pytest

from mtnlg_parallel.planner.cluster import load_software
from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.run import Run
from training.plain import World, recipe_of


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 2, 1)])
def test_a_run_holds_the_bytes_that_were_planned(
    world: World, data: Path, tmp_path: Path, layout: tuple[int, int, int]
) -> None:
    recipe = recipe_of(layout, samples=8)
    train, tp = recipe.train, recipe.layout.tp
    run = Run(recipe.model, recipe.layout, train.batch, train.micro_batch, train.recompute, precision="fp32")
    planned = memory(run, load_software("mtnlg-parallel"))
    answers = world("bytes_held", [recipe], data=data, outs=[tmp_path])
    for rank, held in enumerate(answers):
        stage = planned[rank // tp]
        assert held == {"parameters": stage.weights, "gradients": stage.gradients, "moments": stage.moments}
