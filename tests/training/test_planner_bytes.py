"""Memory per rank: the planner's against the bytes of a run, and what sharding frees."""

import math
from pathlib import Path

import pytest

from mtnlg_parallel.planner.memory import CONTEXT_BYTES, memory
from mtnlg_parallel.planner.programs import ENGINES, load_software
from mtnlg_parallel.planner.run import Run, train_run
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


@pytest.mark.parametrize("gradients", ["fp32", "bf16"])
def test_an_update_holds_the_bytes_that_the_planner_predicts(
    run_ranks: RunRanks, data: Path, tmp_path: Path, gradients: str
) -> None:
    """Sums in bf16 are then copied to fp32, which without other ranks is more than they save."""
    recipe = recipe_of((1, 1, 1), {"layers": 4, "hidden": 128}, samples=8, precision="bf16", gradients=gradients)
    (held,) = run_ranks("sharded_bytes", [recipe], data=data, outs=[tmp_path])
    (planned,) = memory(train_run(recipe))
    copy = planned.total - planned.slack - CONTEXT_BYTES - planned.state if gradients == "bf16" else 0.0
    assert held["bytes"] == pytest.approx(planned.state + copy, rel=0.02)


@pytest.mark.parametrize(("layout", "precision"), [((1, 1, 2), "bf16"), ((2, 1, 2), "fp32")])
def test_sharding_frees_full_gradients_and_weights(
    run_ranks: RunRanks, data: Path, tmp_path: Path, layout: tuple[int, int, int], precision: str
) -> None:
    """At rest a rank holds half of them, and within a step the buffers of two modules."""
    model = {"layers": 4, "hidden": 128, "tied": False, "positions": "rotary"}
    found = []
    for shard in ("state", "gradients", "parameters"):
        recipe = recipe_of(layout, model, samples=8, shard=shard, precision=precision)
        found.append(run_ranks("sharded_bytes", [recipe], data=data, outs=[tmp_path / shard]))
    matrices = sum(math.prod(shape) for shape in recipe.model.parameter_shapes().values() if len(shape) > 1)
    half, width = matrices / layout[0] / 2, 4 if precision == "fp32" else 2
    for state, gradients, parameters in zip(*found, strict=True):
        assert state["bytes"] - gradients["bytes"] == pytest.approx(4 * half, rel=0.01)
        assert gradients["bytes"] - parameters["bytes"] == pytest.approx(width * half, rel=0.01)
        assert parameters["weights"] == 2
        assert gradients["gradients"] == parameters["gradients"] == 2 + (layout[0] > 1)  # where a product is deferred
