"""The recipe of a training run, ``train.toml``: the decoder, the layout, and how it is trained.

Lengths are in samples of the model's sequence length, so a figure in tokens is divided by it. Everything that cannot
work is refused here, before anything starts.

What a person asks of a run beside its recipe, which decides nothing of what is trained.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (pydantic reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from mtnlg_model.config import ModelConfig, preset
from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import Settings, load
from mtnlg_parallel.training.schedule import BatchSize, LearningRate, Ramp, Samples

from .layout import Layout, Recompute, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence


FILE = "train.toml"

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Every = Annotated[int, Field(ge=0)]


class Train(Settings):
    """How the decoder is trained (paper.md section 2)."""

    samples: Samples
    batch: Samples
    micro_batch: Samples = 1
    ramp: Ramp | None = None
    lr: Positive
    min_lr: Annotated[float, Field(ge=0.0)] = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Samples
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    clip: Positive = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1234
    precision: Literal["fp32", "bf16"] = "bf16"
    recompute: Recompute = "full"
    sequence_parallel: bool = Field(True, description="where tp > 1, cut activations between slices too")
    kernels: bool = Field(True, description="fused kernels where the device has them")
    checkpoint_every: Every = Field(description="steps; 0 for the end alone")
    keep: Samples = Field(2, description="how many checkpoints stay")
    validation_every: Every = Field(0, description="steps; 0 for never")
    validation_samples: Samples = 64

    @property
    def learning_rate(self) -> LearningRate:
        """The learning rate by samples consumed."""
        return LearningRate(peak=self.lr, floor=self.min_lr, warmup=self.warmup, decay=self.decay)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.warmup >= self.decay:
            raise ValueError(f"warmup = {self.warmup} must end before decay = {self.decay}, which counts it in")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} is above lr = {self.lr}")
        if self.ramp and (self.ramp.start > self.batch or (self.batch - self.ramp.start) % self.ramp.increment):
            steps = f"start = {self.ramp.start} by increment = {self.ramp.increment}"
            raise ValueError(f"ramp from {steps} never meets batch = {self.batch}; batch - start must be a multiple")
        return self


class GuardSettings(Settings):
    """Which steps are skipped (see `guard`), and how long one may take."""

    deviations: Annotated[float, Field(ge=0.0)] = Field(6.0, description="of the window; 0: skip what is not finite")
    window: Samples = Field(128, description="steps")
    most_skips: Samples = Field(10, description="in a row, before the run ends")
    patience: Positive = Field(600.0, description="seconds a step may take before the run ends")

    @property
    def reach(self) -> int:
        """How many steps back the guard looks at most."""
        return self.window + self.most_skips


class Recipe(Settings):
    """A whole ``train.toml``."""

    model: ModelConfig
    layout: Layout = Layout()
    train: Train
    guard: GuardSettings = GuardSettings()

    @field_validator("model", mode="before")
    @classmethod
    def _from_preset(cls, model: Any) -> Any:  # noqa: ANN401  (what the file holds)
        """``preset = "dense-350m"`` stands for that decoder's figures; other keys beside it override them."""
        if not isinstance(model, dict) or "preset" not in model:
            return model
        changed = {key: value for key, value in model.items() if key != "preset"}
        try:
            return preset(str(model["preset"])).model_dump() | changed
        except UsageFailure as failure:
            raise ValueError(str(failure)) from None

    @model_validator(mode="after")
    def _can_be_laid_out(self) -> Self:
        if reason := refusal(self.layout, self.model, self.train.sequence_parallel):
            raise ValueError(reason)
        train, dp = self.train, self.layout.dp
        multiple = dp * train.micro_batch
        product = f"layout.dp = {dp} x train.micro_batch = {train.micro_batch}"
        for key, value in (("batch", train.batch), ("validation_samples", train.validation_samples)):
            if value % multiple:
                near = sorted({max(value // multiple, 1) * multiple, (value // multiple + 1) * multiple})
                choices = " or ".join(map(str, near))
                raise ValueError(f"{product} does not divide train.{key} = {value}; use {key} = {choices}")
        return self

    @property
    def batch_size(self) -> BatchSize:
        """The batch by samples consumed, in this layout."""
        train = self.train
        return BatchSize(size=train.batch, ramp=train.ramp, multiple=self.layout.dp * train.micro_batch)

    @property
    def steps(self) -> int:
        """Steps of the whole run in this layout."""
        return self.batch_size.number_of_steps(self.train.samples)


FREE: dict[str, set[str] | bool] = {
    "layout": True,
    "guard": True,
    "train": {"samples", "micro_batch", "precision", "recompute", "sequence_parallel", "kernels"}
    | {"checkpoint_every", "keep", "validation_every", "validation_samples"},
}
"""What may change when a run goes on from its checkpoint; all else decides which run it is."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, or a folder that holds ``train.toml``. Raises ``Failure`` or ``UsageFailure``."""
    return load(path, FILE, Recipe, overrides)


def disagreement(before: Recipe, now: Recipe) -> str | None:
    """The first key by which these are two runs, with both values; None where ``now`` may go on from ``before``."""
    old, new = (recipe.model_dump(exclude=FREE) for recipe in (before, now))
    for section, keys in new.items():
        for key, value in keys.items():
            if old[section][key] != value:
                return f"{section}.{key} was {old[section][key]} and is {value} now"
    return None


class Wishes(NamedTuple):
    """A project of Weights & Biases to show the run in, and steps to profile."""

    wandb: str | None = None
    profiled: range | None = None
