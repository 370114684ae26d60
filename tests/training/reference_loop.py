"""The reference for whole runs: `mtnlg_parallel.conformance.reference`'s plain loop on the samples of a data folder."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_parallel.conformance.reference import PlainLoop, State
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import open_data, validation_samples

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]
RunRanks = Callable[..., list[Any]]
Reference = tuple[list[Json], State]
FP32 = 1e-5
STEPS = 20
RECIPE: dict[str, Json] = {
    "model": {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 64, "dropout": 0.0}
    | {"attention_dropout": 0.0, "scale_attention_by_layer": True},
    "train": {"samples": 84, "batch": 8, "micro_batch": 2, "ramp": {"start": 4, "increment": 4, "samples": 76}}
    | {"lr": 1e-2, "min_lr": 1e-3, "warmup": 24, "decay": 256, "clip": 0.5, "precision": "fp32", "checkpoint_every": 0}
    | {"validation_every": 20, "validation_samples": 8, "seed": 5},
}


def recipe_of(
    layout: tuple[int, ...] = (1, 1, 1), model: Json | None = None, guard: Json | None = None, **train: object
) -> Recipe:
    """`RECIPE` in a layout (tp, pp, dp) or (tp, pp, dp, cp), with some keys changed."""
    sections = {
        "model": RECIPE["model"] | (model or {}),
        "layout": Layout(**dict(zip(("tp", "pp", "dp", "cp"), layout, strict=False))),
        "train": RECIPE["train"] | train,
        "guard": guard or {},
    }
    return Recipe.model_validate(sections, strict=False)


def reference_run(recipe: Recipe, data: Path, skipped: Collection[int] = ()) -> Reference:
    """Train in fp32 on the same samples, without an update at the ``skipped`` steps; returns steps and last state."""
    train, stream = recipe.train, open_data(data, recipe)
    loop = PlainLoop(recipe, "fp32", stream=stream.train)
    steps: list[Json] = []
    for number, (before, batch) in enumerate(recipe.batch_size.steps(train.samples), 1):
        loss, norm = loop.step(before, batch, number not in skipped)
        lr = train.at(before).learning_rate.at(before + batch)
        steps.append({"step": number, "samples": before + batch, "batch_size": batch, "lr": lr})
        steps[-1] |= {"loss": loss, "grad_norm": norm}
        if train.validation_every and number % train.validation_every == 0:
            with torch.no_grad():
                held_out = range(validation_samples(recipe, stream.validation))
                steps[-1]["validation_loss"] = float(loop.loss(held_out, stream.validation))
    return steps, loop.state()


def assert_same_steps(steps: list[Json], reference: list[Json], bound: float = FP32) -> None:
    """The same steps, with losses, gradient norms, learning rates and batch sizes equal within ``bound``."""
    assert [step["step"] for step in steps] == [step["step"] for step in reference]
    for step, expected in zip(steps, reference, strict=True):
        for key in expected.keys() & step.keys():
            assert step[key] == pytest.approx(expected[key], rel=bound), (step["step"], key)


def assert_holds(path: Path | None, state: State) -> None:
    """The checkpoint is whole and holds the state: the half of each tensor's elements that differ least, to 1e-4.

    The gradient of a key's bias is all rounding, so Adam moves it by chance.
    """
    assert path
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    assert checkpoint.optimizer_steps == state.optimizer_steps
    for name, slots in state.arrays.items():
        for slot, expected in slots.items():
            saved = checkpoint.tensor(name, slot="weight" if slot == "master" else slot).double().numpy()
            assert np.median(abs(saved - expected)) <= 1e-4 * abs(expected).max(), (name, slot)
