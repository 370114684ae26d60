"""ZeRO-1 of the pipeline engine, by its own: the gradient norm."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mtnlg_parallel.engine.sharded_optimizer import BucketKind, ShardedOptimizer
from mtnlg_parallel.recipe import Train

ALONE: Any = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
TRAIN = Train.model_validate({"samples": 8, "batch": 8, "lr": 1e-3, "decay": 8})


@pytest.mark.parametrize("elements", [3, 1024, 1_000_007])
def test_sum_of_squares_matches_fp64(elements: int) -> None:
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(elements))
    kind = BucketKind(0, decays=False, counts=True, summed_over=None)
    optimizer = ShardedOptimizer(
        [(kind, cast("Any", SimpleNamespace(name="w", parameter=weight, layer=None)))], ALONE, TRAIN
    )
    gradient = torch.randn(elements) * 10.0 ** torch.randint(-4, 2, (elements,))
    optimizer.begin_step(1)
    weight.grad = gradient.clone()
    optimizer.buckets[0].sums[0].take(weight)
    squares = optimizer.finish_gradients()
    exact = gradient.double().square().sum()
    assert float(squares) == pytest.approx(float(exact), rel=2e-7), "of a norm compared to 1e-5"
