"""The planner's memory per rank against the bytes of a run's parameters, gradients and moments."""

from pathlib import Path

import pytest

from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.programs import ENGINES, load_software
from mtnlg_parallel.planner.run import Run
from training.reference_loop import RunRanks, recipe_of


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 2, 1)])
def test_a_rank_holds_the_bytes_that_the_planner_predicts(
    run_ranks: RunRanks, data: Path, tmp_path: Path, layout: tuple[int, int, int]
) -> None:
    recipe = recipe_of(layout, samples=8, engine="deepspeed")
    train, tp = recipe.train, recipe.layout.tp
    run = Run(recipe.model, recipe.layout, train.batch, train.micro_batch, train.recompute, precision="fp32")
    planned = memory(run._replace(software=load_software(ENGINES["deepspeed"])))
    for rank, state_bytes in enumerate(run_ranks("state_bytes", [recipe], data=data, outs=[tmp_path])):
        stage = planned[rank // tp]
        assert state_bytes == {"parameters": stage.weights, "gradients": stage.gradients, "moments": stage.moments}
