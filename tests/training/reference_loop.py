"""The reference for every layout: the recipe trained by one process with PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mtnlg_model import functional
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import micro_batches, open_data, validation_samples

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.stream import TokenStream

Json = dict[str, Any]
RunRanks = Callable[..., list[Any]]
Reference = tuple[list[Json], Decoder, torch.optim.AdamW]
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
    layout: tuple[int, int, int] = (1, 1, 1), model: Json | None = None, guard: Json | None = None, **train: object
) -> Recipe:
    """`RECIPE` in a layout (tp, pp, dp), with some keys changed."""
    tp, pp, dp = layout
    sections = {
        "model": RECIPE["model"] | (model or {}),
        "layout": Layout(tp=tp, pp=pp, dp=dp),
        "train": RECIPE["train"] | train,
        "guard": guard or {},
    }
    return Recipe.model_validate(sections, strict=False)


def reference_run(recipe: Recipe, data: Path, skipped: Collection[int] = ()) -> Reference:
    """Train in fp32 on the same samples, the whole batch at once, without an update at the ``skipped`` steps."""
    train, stream = recipe.train, open_data(data, recipe)
    decoder = Decoder(recipe.model, seed=train.seed)
    matrices = [parameter for parameter in decoder.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in decoder.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": train.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps)
    steps: list[Json] = []
    for number, (before, batch) in enumerate(recipe.batch_size.steps(train.samples), 1):
        lr = train.learning_rate.at(before + batch)
        for group in optimizer.param_groups:
            group["lr"] = lr
        loss = mean_loss(decoder, stream.train, range(before, before + batch))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_([*matrices, *vectors], train.clip)
        if number not in skipped:
            optimizer.step()
        optimizer.zero_grad()
        metrics = {"loss": float(loss.detach()), "grad_norm": float(norm), "lr": lr, "batch_size": batch}
        steps.append({"step": number, "samples": before + batch, **metrics})
        if number % train.validation_every == 0:
            with torch.no_grad():
                validation = mean_loss(decoder, stream.validation, range(validation_samples(recipe, stream.validation)))
            steps[-1]["validation_loss"] = float(validation)
    return steps, decoder, optimizer


def mean_loss(decoder: Decoder, stream: TokenStream, samples: range) -> torch.Tensor:
    """Mean cross entropy over the samples."""
    inputs, targets = next(micro_batches(stream, samples, len(samples), 1, 0))
    return functional.cross_entropy(decoder(inputs), targets).mean()


def assert_same_steps(steps: list[Json], reference: list[Json]) -> None:
    """The same steps, with losses, gradient norms, learning rates and batch sizes equal within `FP32`."""
    assert [step["step"] for step in steps] == [step["step"] for step in reference]
    for step, expected in zip(steps, reference, strict=True):
        for key in expected.keys() & step.keys():
            assert step[key] == pytest.approx(expected[key], rel=FP32), (step["step"], key)
