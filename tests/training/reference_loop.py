"""The reference for every layout: the recipe trained by one process with PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mtnlg_model import functional
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import micro_batches, open_data, validation_samples

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.stream import TokenStream
    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_model.config import ModelConfig

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


def reference_run(
    recipe: Recipe,
    data: Path,
    skipped: Collection[int] = (),
    resumed_as: Sequence[Recipe] = (),
    dtype: torch.dtype = torch.float32,
) -> Reference:
    """Train in ``dtype`` on the same samples, the whole batch at once, without an update at the ``skipped`` steps.

    ``resumed_as``: recipes that take over where the one before has ended; their layouts may round a ramp otherwise.
    """
    parts = [recipe, *resumed_as]
    train, stream = recipe.train, open_data(data, parts[-1])
    decoder = Decoder(recipe.model, seed=train.seed).to(dtype)
    matrices = [parameter for parameter in decoder.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in decoder.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": train.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps)
    steps: list[Json] = []
    for number, (part, before, batch) in enumerate(steps_of(parts), 1):
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
        if part.train.validation_every and number % part.train.validation_every == 0:
            with torch.no_grad():
                validation = mean_loss(decoder, stream.validation, range(validation_samples(part, stream.validation)))
            steps[-1]["validation_loss"] = float(validation)
    return steps, decoder, optimizer


def steps_of(parts: Sequence[Recipe]) -> Iterator[tuple[Recipe, int, int]]:
    """Every step's recipe, samples consumed before, and batch size; each recipe resumes the run of the one before."""
    begin = 0
    for part in parts:
        for before, batch in part.batch_size.steps(part.train.samples, begin):
            yield part, before, batch
            begin = before + batch


def mean_loss(decoder: Decoder, stream: TokenStream, samples: range) -> torch.Tensor:
    """Mean cross entropy over the samples."""
    inputs, targets = next(micro_batches(stream, samples, len(samples), 1, 0))
    return functional.cross_entropy(decoder(inputs), targets).mean()


def assert_same_steps(steps: list[Json], reference: list[Json], bound: float = FP32) -> None:
    """The same steps, with losses, gradient norms, learning rates and batch sizes equal within ``bound``."""
    assert [step["step"] for step in steps] == [step["step"] for step in reference]
    for step, expected in zip(steps, reference, strict=True):
        for key in expected.keys() & step.keys():
            assert step[key] == pytest.approx(expected[key], rel=bound), (step["step"], key)


def assert_holds(
    path: Path | None, decoder: Decoder, optimizer: torch.optim.AdamW, exact: Reference | None = None
) -> None:
    """The checkpoint is whole and holds the weights of ``decoder`` and the moments of ``optimizer``.

    With the same run in fp64, ``exact``, within ten times the rounding error of ``decoder`` where that is more.
    """
    assert path
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    config = checkpoint.config
    rounded, precise = (state_of(*run[-2:]) for run in ((decoder, optimizer), exact or (decoder, optimizer)))
    for (name, slot), value in rounded.items():
        saved, expected = (determined(name, tensor, config) for tensor in (checkpoint.tensor(name, slot=slot), value))
        rounding = float((expected - determined(name, precise[name, slot], config)).abs().max())
        tolerance = max(1e-4 * float(expected.abs().max()), 10 * rounding)
        torch.testing.assert_close(saved, expected, rtol=1e-3, atol=tolerance)
    assert checkpoint.optimizer_steps == next(iter(optimizer.state.values()))["step"]


def state_of(decoder: Decoder, optimizer: torch.optim.AdamW) -> dict[tuple[str, SlotName], torch.Tensor]:
    """Weights and moments, by the parameter's name and the slot."""
    slots: tuple[SlotName, ...] = ("weight", "exp_avg", "exp_avg_sq")
    return {
        (name, slot): {"weight": parameter.detach(), **optimizer.state[parameter]}[slot]
        for name, parameter in decoder.named_parameters()
        for slot in slots
    }


def determined(name: str, value: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Leave out key biases that softmax ignores, so that Adam moves them by rounding errors alone.

    It does not ignore those that rotary positions turn, which may be all.
    """
    if not name.endswith("qkv.bias") or (config.positions == "rotary" and config.rotary_fraction == 1):
        return value
    return value.view(config.heads, 3, -1)[:, ::2]
