"""Random runs of a few steps: shape, layouts, schedules, batches and resumes, all drawn from a seed.

    trains alike         dropout 0. One to three recipes, each resuming the run of the one before in another layout,
                         schedule and engine; must give the losses, norms, weights and moments of one plain process
    resumes to the bit   dropout above 0, in one layout: once in one go and once in two halves

The bound is 1e-5, and ten times the plain loop's own rounding error where that is more: some runs on one sample a step
are so sensitive that in fp32 the plain loop is 1e-5 from the one in fp64.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from pydantic import ValidationError

from mtnlg_model.checkpoint.manifest import latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.console import Failure
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import open_data
from training.reference_loop import FP32, assert_holds, assert_same_steps, reference_run, steps_of

if TYPE_CHECKING:
    from pathlib import Path

    from training.reference_loop import Json, RunRanks

LIMIT_SECONDS = 60
"""After which a rank counts as hung. A case takes one or two on an idle machine."""

COMPARED = {"loss", "grad_norm"}
MOST_STEPS = 16
TOKENS = 64
"""Different tokens in the data of `conftest.make_data`."""

LAYOUTS = [
    (tp, pp, dp)
    for tp, pp, dp in itertools.product((1, 2, 3, 4), (1, 2, 3, 4, 8), (1, 2, 3, 4, 8))
    if tp * pp * dp <= 8
]
SCHEDULES = {"1f1b": (1,), "interleaved": (2, 2, 3), "zero-bubble": (1, 2, 3)}


class Agreement(NamedTuple):
    """Largest relative difference of a loss or norm, and whether the bound was ten times the rounding error."""

    difference: float
    within_rounding: bool


class RandomRun(NamedTuple):
    """Recipes in order, each resuming the run of the one before; two with dropout are the whole run and its half."""

    parts: tuple[Recipe, ...]
    skipped: tuple[int, ...]
    """Steps whose gradient is not a number."""
    bucket_elements: int
    """As `sharded_optimizer.BUCKET_ELEMENTS` and `deepspeed_engine.COPIED_ELEMENTS`."""

    @property
    def drops(self) -> bool:
        """Whether it has dropout, so that no plain process trains alike."""
        return self.parts[0].model.dropout > 0

    @property
    def batches(self) -> list[int]:
        """The batch size of every step."""
        return [batch for _, _, batch in steps_of(self.parts)]

    def check(self, run_ranks: RunRanks, data: Path, out: Path) -> Agreement:
        """Train, and compare. Raises where the run is wrong."""
        return self._check_bits(run_ranks, data, out) if self.drops else self._check_alike(run_ranks, data, out)

    def _train(self, run_ranks: RunRanks, parts: list[Recipe], data: Path, outs: list[Path]) -> list[list[Json]]:
        request: Json = {"limit_seconds": LIMIT_SECONDS, "bucket_elements": self.bucket_elements}
        request |= {"faults": {"nan": self.skipped}, "data": data, "outs": outs}
        answers: list[list[Json]] = [answer["steps"] for answer in run_ranks("train", parts, **request)[0]]
        return answers

    def _check_alike(self, run_ranks: RunRanks, data: Path, out: Path) -> Agreement:
        steps = [step for part in self.parts for step in self._train(run_ranks, [part], data, [out])[0]]
        reference = reference_run(self.parts[0], data, self.skipped, self.parts[1:])
        for step, expected in zip(steps, reference[0], strict=True):
            if step["step"] in self.skipped:
                assert step["grad_norm"] is None, step
                del expected["grad_norm"]
        try:
            assert_same_steps(steps, reference[0])
            assert_holds(latest(out / "checkpoints"), *reference[1:])
        except AssertionError:
            exact = reference_run(self.parts[0], data, self.skipped, self.parts[1:], torch.float64)
            assert_same_steps(steps, reference[0], max(FP32, 10 * largest_difference(reference[0], exact[0])))
            assert_holds(latest(out / "checkpoints"), *reference[1:], exact)
            return Agreement(largest_difference(steps, reference[0]), within_rounding=True)
        return Agreement(largest_difference(steps, reference[0]), within_rounding=False)

    def _check_bits(self, run_ranks: RunRanks, data: Path, out: Path) -> Agreement:
        half, whole = self.parts
        outs = [out / "halves", out / "halves", out / "whole"]
        first, second, uninterrupted = self._train(run_ranks, [half, whole, whole], data, outs)
        assert figures_of([*first, *second]) == figures_of(uninterrupted)
        halves, untouched = (Checkpoint.open(latest(folder / "checkpoints") or folder) for folder in outs[1:])
        for name in whole.model.parameter_shapes():
            for slot in ("weight", "exp_avg", "exp_avg_sq"):
                assert torch.equal(halves.tensor(name, slot=slot), untouched.tensor(name, slot=slot)), (name, slot)
        return Agreement(0.0, within_rounding=False)


def largest_difference(steps: list[Json], reference: list[Json]) -> float:
    """Of a loss or gradient norm, relative."""
    pairs: list[tuple[float, float]] = [
        (step[key], expected[key])
        for step, expected in zip(steps, reference, strict=True)
        for key in COMPARED & step.keys() & expected.keys()
    ]
    return max(abs(figure / expected - 1) for figure, expected in pairs)


def figures_of(steps: list[Json]) -> list[tuple[float | None, ...]]:
    """What two runs must have in common, of every step; the last of a run also validates."""
    return [tuple(step[key] for key in ("step", "samples", "lr", "loss", "grad_norm")) for step in steps]


def draw_run(seed: int, number: int, data: Path) -> RandomRun:
    """Draw case ``number`` of a seed; what a recipe or the data refuses is drawn again."""
    draw = random.Random(f"{seed}/{number}")
    while True:
        drops = draw.random() < 0.15
        sections = [_draw_part(draw)] * 2 if drops else [_draw_part(draw) for _ in range(draw.choice((1, 1, 2, 2, 3)))]
        model, common = _draw_model(draw, sections, drops), _draw_schedule_of_batches(draw, sections)
        samples = itertools.accumulate(common["batch"] * draw.randint(1, 3) for _ in sections)
        try:
            parts = tuple(
                Recipe.model_validate(
                    {**part, "model": model, "train": {**part["train"], **common, "samples": end}}, strict=False
                )
                for part, end in zip(sections, samples, strict=True)
            )
            for part in parts:
                open_data(data, part)
        except (ValidationError, Failure):
            continue
        run = RandomRun(parts, (), draw.choice((1, 500, 5000, 1 << 25)))
        if (steps := len(run.batches)) <= MOST_STEPS:
            return run._replace(skipped=(draw.randint(1, steps),)) if steps > 1 and draw.random() < 0.15 else run


def _draw_part(draw: random.Random) -> Json:
    """What a resumed run may change: a layout of up to four ranks, rarely of eight, and how it trains."""
    (most,) = draw.choices((1, 2, 4, 8), (1, 5, 16, 2))
    stages = draw.choice((1, 2, 2)) if most > 1 else 1
    fitting = [layout for layout in LAYOUTS if layout[1] >= stages and most // 2 < math.prod(layout) <= most]
    tp, pp, dp = draw.choice(fitting)
    schedule = draw.choice([*SCHEDULES, "zero-bubble"])
    train: Json = {
        "schedule": schedule if pp > 1 or schedule != "interleaved" else "zero-bubble",
        "chunks": draw.choice(SCHEDULES[schedule]) if pp > 1 else 1,
        "micro_batch": draw.choice((1, 1, 2, 3)),
        "recompute": draw.choice(("none", "selective", "full")),
        "sequence_parallel": draw.random() < 0.6,
        "checkpoint_every": draw.choice((0, 0, 2)),
        "validation_every": draw.choice((0, 0, 2)),
    }
    train["offload_activations"] = train["schedule"] != "1f1b" and draw.random() < 0.3
    train["validation_samples"] = dp * train["micro_batch"] * draw.randint(1, 3)
    return {"layout": {"tp": tp, "pp": pp, "dp": dp}, "train": train}


def _draw_model(draw: random.Random, parts: list[Json], drops: bool) -> Json:
    """A shape that every part's layout can cut, at odd sizes where they may be odd."""
    tp = math.lcm(*(part["layout"]["tp"] for part in parts))
    fewest = max(part["layout"]["pp"] * part["train"]["chunks"] for part in parts)
    heads = tp * draw.choice((1, 1, 2))
    sequence = draw.choice((draw.randint(2, 20), draw.randint(2, 20), draw.randint(60, 150)))
    return {
        "layers": fewest + draw.choice((0, 0, 1, 2, 3)),
        "hidden": heads * draw.choice([size for size in (2, 4, 6, 8) if heads * size >= 8]),
        "heads": heads,
        "sequence": -(-sequence // tp) * tp,
        "vocabulary": -(-(TOKENS + draw.choice((0, draw.randint(0, 70)))) // tp) * tp,
        "dropout": draw.choice((0.1, 0.3)) if drops else 0.0,
        "attention_dropout": draw.choice((0.0, 0.2)) if drops else 0.0,
        "scale_attention_by_layer": draw.random() < 0.5,
    }


def _draw_schedule_of_batches(draw: random.Random, parts: list[Json]) -> Json:
    """Batches that every part's ranks can share, a ramp that need not suit them, and the optimizer's settings."""
    multiple = math.lcm(*(part["layout"]["dp"] * part["train"]["micro_batch"] for part in parts))
    batch = multiple * draw.choice([n for n in range(1, 9) if n == 1 or n * multiple <= 24])
    increment = draw.randint(1, max(1, batch // 2))
    increments = draw.randint(0, (batch - 1) // increment)
    ramp: Any = {"start": batch - increments * increment, "increment": increment, "samples": draw.randint(1, 4 * batch)}
    return {
        "batch": batch,
        "ramp": draw.choice((None, ramp)),
        "lr": draw.choice((1e-3, 3e-3, 1e-2)),
        "min_lr": 1e-4,
        "eps": 1e-4,  # at 1e-8 rounding alone would decide where the smallest gradients move their weights
        "warmup": draw.choice((0, batch)),
        "decay": 20 * batch,
        "clip": draw.choice((0.1, 0.5, 1.0, 100.0)),
        "weight_decay": draw.choice((0.0, 0.1)),
        "seed": draw.randint(0, 1 << 40),
        "precision": "fp32",
        "kernels": False,
    }


def overrides(recipe: Recipe) -> str:
    """The drawn keys as ``KEY=VALUE`` words, as ``mtnlg-parallel train`` takes them."""
    sections = recipe.model_dump(mode="json", exclude_defaults=True)
    return " ".join(
        f"{section}.{key}={json.dumps(value)}" for section, keys in sections.items() for key, value in keys.items()
    )
