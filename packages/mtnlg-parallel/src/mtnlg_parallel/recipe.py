"""The training recipe, ``train.toml``: model, layout and schedule; and the options of a run that never change it.

Lengths are in samples of ``model.sequence`` tokens. A recipe that cannot work is refused here, before anything starts.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  (pydantic reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from mtnlg_model.config import ModelConfig, preset
from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import Settings, load
from mtnlg_parallel.training.schedule import BatchSize, LearningRate, Ramp, Samples

from .layout import Layout, Recompute, layout_error

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
    sequence_parallel: bool = Field(True, description="split activations along the sequence where tp > 1")
    kernels: bool = Field(True, description="use fused kernels where the device has them")
    checkpoint_every: Every = Field(description="steps; 0: only at the end")
    keep: Samples = Field(2, description="number of checkpoints kept")
    memory_checkpoint_every: Every = Field(0, description="steps between copies in host memory on two nodes; 0: never")
    initial: str = Field("", description="checkpoint whose weights the run starts from; empty: initial weights")
    validation_every: Every = Field(0, description="steps; 0: never")
    validation_samples: Samples = 64

    @property
    def learning_rate(self) -> LearningRate:
        """The learning rate as a function of the samples consumed."""
        return LearningRate(peak=self.lr, floor=self.min_lr, warmup=self.warmup, decay=self.decay)

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.warmup >= self.decay:
            raise ValueError(f"warmup = {self.warmup} must end before decay = {self.decay}, which counts it in")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} is above lr = {self.lr}")
        if self.ramp and (self.ramp.start > self.batch or (self.batch - self.ramp.start) % self.ramp.increment):
            ramp = f"start = {self.ramp.start} by increment = {self.ramp.increment}"
            raise ValueError(f"ramp from {ramp} never meets batch = {self.batch}; batch - start must be a multiple")
        return self


class GuardSettings(Settings):
    """When a step is skipped (`mtnlg_parallel.training.guard`), and how long it may take."""

    deviations: Annotated[float, Field(ge=0.0)] = Field(6.0, description="threshold; 0: skip only non-finite steps")
    window: Samples = Field(128, description="steps")
    most_skips: Samples = Field(10, description="consecutive skipped steps that end the run")
    patience: Positive = Field(600.0, description="seconds a step may take before the run ends")
    disk_patience: Positive = Field(3600.0, description="seconds that loading or writing a checkpoint may take")

    @property
    def history(self) -> int:
        """Number of past steps that the guard needs at most."""
        return self.window + self.most_skips


class Slurm(Settings):
    """What a site's Slurm needs (`mtnlg_parallel.launch.slurm`)."""

    sbatch: dict[str, str | int | bool] = Field({}, description='options of sbatch, such as partition = "batch"')
    srun: dict[str, str | int | bool] = Field({}, description="options of srun, such as container-image")
    setup: tuple[str, ...] = Field((), description="lines of bash before srun, such as module load cuda")


class Recipe(Settings):
    """A complete ``train.toml``."""

    model: ModelConfig
    layout: Layout = Layout()
    train: Train
    guard: GuardSettings = GuardSettings()
    slurm: Slurm = Slurm()

    @field_validator("model", mode="before")
    @classmethod
    def _expand_preset(cls, model: Any) -> Any:  # noqa: ANN401  (what the file holds)
        """Replace ``preset = "dense-350m"`` by that model's values; keys beside it override them."""
        if not isinstance(model, dict) or "preset" not in model:
            return model
        overrides = {key: value for key, value in model.items() if key != "preset"}
        try:
            return preset(str(model["preset"])).model_dump() | overrides
        except UsageFailure as failure:
            raise ValueError(str(failure)) from None

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if reason := layout_error(self.layout, self.model, self.train.sequence_parallel):
            raise ValueError(reason)
        train, dp = self.train, self.layout.dp
        multiple = dp * train.micro_batch
        product = f"layout.dp = {dp} x train.micro_batch = {train.micro_batch}"
        for key, value in (("batch", train.batch), ("validation_samples", train.validation_samples)):
            if value % multiple:
                nearest = sorted({max(value // multiple, 1) * multiple, (value // multiple + 1) * multiple})
                choices = " or ".join(map(str, nearest))
                raise ValueError(f"{product} does not divide train.{key} = {value}; use {key} = {choices}")
        return self

    @property
    def batch_size(self) -> BatchSize:
        """The batch size as a function of the samples consumed, in this layout."""
        train = self.train
        return BatchSize(size=train.batch, ramp=train.ramp, multiple=self.layout.dp * train.micro_batch)

    @property
    def steps(self) -> int:
        """Number of steps of the whole run in this layout."""
        return self.batch_size.number_of_steps(self.train.samples)


CHANGEABLE: dict[str, set[str] | bool] = {
    "layout": True,
    "guard": True,
    "slurm": True,
    "train": {"samples", "micro_batch", "precision", "recompute", "sequence_parallel", "kernels"}
    | {"checkpoint_every", "memory_checkpoint_every", "keep", "validation_every", "validation_samples"},
}
"""Keys that a resumed run may change; any other change makes it a different run."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read ``path``, a recipe or a folder that holds ``train.toml``, with ``KEY=VALUE`` overrides.

    Raises ``Failure`` where there is none, ``UsageFailure`` with a line for each mistake.
    """
    return load(path, FILE, Recipe, overrides)


def first_difference(before: Recipe, now: Recipe) -> str | None:
    """The first key that makes ``now`` a different run than ``before``, with both values; None where it may resume."""
    old, new = (recipe.model_dump(exclude=CHANGEABLE) for recipe in (before, now))
    for section, keys in new.items():
        for key, value in keys.items():
            if old[section][key] != value:
                return f"{section}.{key} was {old[section][key]} and is {value} now"
    return None


class RunOptions(NamedTuple):
    """W&B project and steps to profile. Never changes what is trained."""

    wandb: str | None = None
    profile: range | None = None
