"""The engine's first step on this GPU against the same step in fp32 without kernels, where a GPU takes its own path.

One rank trains four layers of recipes/dense-350m without dropout, as `mtnlg-parallel train` would:

    bf16            the defaults: our kernels, and cuDNN's attention from Hopper on
    bf16 sums       ``train.gradients = "bf16"``
    fp8             products of 8-bit factors
    documents       isolated ones, by flash attention of variable lengths; a third of the targets count

Errors are relative: of the loss, of the gradient's norm, and the largest |a - b|₂ / |b|₂ of a parameter's first moment.
The bounds are `conformance`'s; a gradient that is lost, halved or doubled has an error of 0.5 or 1. In fp32 every
document has an attention of its own. The time is that of later steps.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import distributed

from mtnlg_data.stream import Sample
from mtnlg_model.initialization import initial_value
from mtnlg_parallel.conformance.compare import CAPS, FLOORS
from mtnlg_parallel.conformance.reference import Tokens
from mtnlg_parallel.engine.build import build_engine
from mtnlg_parallel.engine.contract import StepSettings
from mtnlg_parallel.engine.process import init_distributed
from mtnlg_parallel.engine.zero import InitialWeights, restore
from mtnlg_parallel.launch.agent import rank_environment
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.rendezvous import HostedStore
from mtnlg_parallel.training.samples import micro_batches

from .clock import Clock, kernels, release
from .training import RECIPES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mtnlg_parallel.recipe import Recipe

    from .results import Results

SETTINGS = (
    *("layout.dp=1", "model.layers=4", "model.dropout=0.0", "model.attention_dropout=0.0"),
    *("train.batch=8", "train.micro_batch=4", "train.samples=64", "train.warmup=0", "train.decay=64"),
)
SMALL = (
    *("model.layers=1", "model.hidden=32", "model.heads=2", "model.sequence=16", "model.vocabulary=128"),
    *("train.batch=2", "train.micro_batch=1"),
)
CASES = {
    "bf16": (),
    "bf16 sums": ('train.gradients="bf16"',),
    "fp8": ('train.precision="fp8"',),
    "documents": ('data.documents="isolated"',),
}


PLAIN = ('train.precision="fp32"', 'train.gradients="fp32"')


class LongDocuments(Tokens):
    """Seven documents per sample, of which a third of the tokens count."""

    def sample(self, sample: int) -> Sample:
        """As `Tokens.sample`."""
        tokens, counts, _ = super().sample(sample)
        return Sample(tokens, counts, np.arange(len(tokens)) % (self.seq_length // 7) == 0)


class First(NamedTuple):
    """A first step: its loss, its gradient's norm, and each parameter's first moment; seconds of a later step."""

    loss: float
    norm: float
    moments: dict[str, Tensor]
    seconds: float


def recipe_of(case: str, tiny: bool, *more: str) -> Recipe:
    """The recipe that a case trains."""
    return load_recipe(RECIPES / "dense-350m", (*SETTINGS, *(SMALL if tiny else ()), *CASES[case], *more))


def train(recipe: Recipe, ops: Any, device: torch.device, weights: dict[str, Tensor], clock: Clock) -> First:  # noqa: ANN401
    """Train some steps from ``weights``, which are drawn where they are missing."""

    def draw(name: str, _box: object) -> Tensor:
        if name not in weights:
            weights[name] = initial_value(recipe.model, name, 1).to(device)
        return weights[name]

    engine, settings, isolated = build_engine(recipe, device, ops), recipe.train, recipe.data.isolated
    restore(engine, InitialWeights(draw))
    stream = (LongDocuments if isolated else Tokens)(recipe.model.sequence, 1, isolated)

    def step() -> tuple[float, float]:
        batches = micro_batches(stream, range(settings.batch), settings.micro_batch, 1, 0, isolated)
        taken = StepSettings(settings.lr, settings.weight_decay, settings.clip)
        return engine.train_batch(batches, settings.batch // settings.micro_batch, taken, lambda *_: None)[:2]

    loss, norm = step()
    moments = {each.local.name: each.moments["exp_avg"].clone() for each in engine.fragments()}
    return First(loss, norm, moments, clock.compare({"step": step})["step"].median)


def main(tiny: bool, results: Results) -> None:
    """Check, and time."""
    if all(map(results.has, CASES)):
        return
    weights: dict[str, Tensor] = {}
    store, clock = HostedStore(), Clock(tiny, rounds=2, repeats=2, flush=False)
    layout = recipe_of("bf16", tiny).layout
    os.environ.update(rank_environment(0, layout, store))
    device, exact = init_distributed(layout), dict[bool, First]()
    for case in CASES:
        if results.has(case):
            continue
        with results.attempt(case):
            recipe, plain = recipe_of(case, tiny), recipe_of(case, tiny, *PLAIN)
            if (isolated := recipe.data.isolated) not in exact:
                exact[isolated] = train(plain, EAGER, device, weights, clock)
            right, ours = exact[isolated], train(recipe, kernels(), device, weights, clock)
            pairs = [(ours.moments[name], moment) for name, moment in right.moments.items()]
            errors = {
                "loss": abs(ours.loss / right.loss - 1),
                "grad_norm": abs(ours.norm / right.norm - 1),
                "exp_avg": max(float((a - b).norm() / b.norm()) for a, b in pairs),
            }
            allowed = {**FLOORS[recipe.train.precision], "exp_avg": CAPS[recipe.train.precision]["exp_avg"]}
            line = ", ".join(f"{what} off by {error:.1e} of {allowed[what]:.0e}" for what, error in errors.items())
            passed = all(error <= allowed[what] for what, error in errors.items())
            figures = {"errors": errors, "allowed": {what: allowed[what] for what in errors}, "passed": passed}
            figures |= {"seconds": ours.seconds, "seconds in fp32": right.seconds}
            results.add(case, f"{ours.seconds * 1e3:.1f} ms; {line}", figures | ({} if passed else {"error": line}))
        release()
    distributed.destroy_process_group()
    store.close()
