"""The training recipe, ``train.toml``: model, layout and schedule; and the options of a run that never change it.

Lengths are in samples of ``model.sequence`` tokens. A recipe may word them, and is then counted in samples once, here:

    "300B tokens"    tokens / model.sequence, rounded to the nearest sample, halves to the even one
    "5000 steps"     the samples of the first 5,000 steps by train.batch and train.ramp; for train.ramp itself the
                     shortest ramp of so many steps. No layout's rounding of the ramp counts, so that a length is the
                     same in every layout

A recipe that cannot work is refused here, before anything starts.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import UsageFailure, say
from mtnlg_model.families import preset
from mtnlg_model.settings import Settings, load
from mtnlg_parallel.training.schedule import (
    IN_SAMPLES,
    LIMIT,
    BatchSize,
    LearningRate,
    Ramp,
    Samples,
    parse_length,
)

from .layout import Layout, Recompute, eight_bit_error, layout_error
from .schedules import DEFAULT, OURS, resolve_name, schedule_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


FILE = "train.toml"

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Patience = Annotated[float, Field(gt=0.0, lt=1e9)]
Every = Annotated[int, Field(ge=0)]
LENGTHS: Final = ("samples", "warmup", "decay", "start_sample")
"""Keys of [train] in samples, which a recipe may word otherwise; ``ramp.samples`` is another."""
RETIRED: Final = {"memory_checkpoint_every": "state is no longer copied into other nodes' memory; use checkpoint_every"}
"""Former keys of [train] and why they are ignored. Each run's own recipe.toml holds every key of its version."""


class Train(Settings):
    """How the decoder is trained (paper.md section 2).

    ``checkpoint_every``: a failure costs half of it on average. 500 steps of a second are 8 minutes, and a 6.7B's 94 GB
    are then 190 MB/s; 500 steps of the 530B are 8 hours, so its recipe says 10.
    """

    samples: Annotated[Samples, IN_SAMPLES] = Field(description="length of the run")
    batch: Samples = Field(description="samples of a step, over all ranks")
    micro_batch: Samples = Field(1, description="samples of a pass through the pipeline")
    ramp: Ramp | None = None
    lr: Positive = Field(description="peak of the learning rate")
    min_lr: Annotated[float, Field(ge=0.0)] = Field(0.0, description="its value behind the decay")
    warmup: Annotated[Every, IN_SAMPLES] = Field(0, description="over which it rises from 0, linear")
    decay: Annotated[Samples, IN_SAMPLES] = Field(description="where its cosine ends; all samples unless given")
    # strict=False: a list, after `Recipe` has counted the lengths
    betas: tuple[Share, Share] = Field((0.9, 0.95), strict=False, description="AdamW's, of the moments")
    eps: Positive = Field(1e-8, description="AdamW's, beside the second moment's root")
    weight_decay: Annotated[float, Field(ge=0.0)] = Field(0.1, description="of matrices, not of biases and norms")
    clip: Positive = Field(1.0, description="largest norm of the gradients")
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = Field(1234, description="of initial weights and dropout")
    precision: Literal["fp32", "bf16", "fp8"] = Field(
        "bf16", description="of weights and activations; fp8: bf16, and the layers' products of 8-bit factors"
    )
    recompute: Recompute = Field("full", description="what backward computes again: nothing, attention's core, layers")
    schedule: str = Field(DEFAULT, description=f"order of a pipeline rank's work: {', '.join(OURS)}, or a reference")
    chunks: Samples = Field(1, description="parts of the decoder on each pipeline rank")
    sequence_parallel: bool = Field(True, description="split activations along the sequence where tp > 1")
    offload_activations: bool = Field(False, description="keep activations in host memory until backward")
    kernels: bool = Field(True, description="use fused kernels where the device has them")
    deterministic: bool = Field(False, description="ask for kernels that give the same bits each time")
    checkpoint_every: Every = Field(500, description="steps; 0: only at the end")
    keep: Samples = Field(5, description="number of checkpoints kept, the newest")
    initial: str = Field("", description="checkpoint whose weights the run starts from; empty: initial weights")
    new_tokenizer: bool = Field(False, description="start from `initial` though its tokenizer is not the data's")
    start_sample: Annotated[Every, IN_SAMPLES] = Field(0, lt=LIMIT, description="of the token stream, the run's first")
    validation_every: Every = Field(0, description="steps; 0: never")
    validation_samples: Samples = Field(64, description="held-out samples of a validation")

    @model_validator(mode="before")
    @classmethod
    def _drop_retired(cls, content: Any) -> Any:  # noqa: ANN401  (what the file holds)
        """Drop keys of earlier versions, with a line where one was in use."""
        if not isinstance(content, dict):
            return content
        for key in content.keys() & RETIRED:
            if content[key]:
                say(f"train.{key} = {content[key]!r} is ignored: {RETIRED[key]}")
        return {key: value for key, value in content.items() if key not in RETIRED}

    @field_validator("initial")
    @classmethod
    def _make_absolute(cls, initial: str) -> str:
        """Ranks and restarts may have another working folder."""
        return str(Path(initial).absolute()) if initial else ""

    @field_validator("schedule")
    @classmethod
    def _check_name(cls, name: str) -> str:
        """Refuse an unknown name. What a reference names is loaded by who trains or plans, not by who reads a run."""
        try:
            return resolve_name(name)
        except UsageFailure as failure:
            raise ValueError(str(failure)) from None

    @property
    def storage(self) -> Literal["fp32", "bf16"]:
        """Type of the weights and activations in memory."""
        return "fp32" if self.precision == "fp32" else "bf16"

    @property
    def learning_rate(self) -> LearningRate:
        """The learning rate as a function of the samples consumed."""
        return LearningRate(peak=self.lr, floor=self.min_lr, warmup=self.warmup, decay=self.decay)

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.warmup >= self.decay:
            raise ValueError(f"warmup = {self.warmup} must end before decay = {self.decay}, which counts it in")
        if self.new_tokenizer and not self.initial:
            raise ValueError("new_tokenizer = true needs initial: --new-tokenizer goes with --from")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} is above lr = {self.lr}")
        if self.ramp and not self.ramp.meets(self.batch):
            ramp = f"start = {self.ramp.start} by increment = {self.ramp.increment}"
            raise ValueError(f"ramp from {ramp} never meets batch = {self.batch}; batch - start must be a multiple")
        return self


class GuardSettings(Settings):
    """When a step is skipped (`mtnlg_parallel.training.guard`), and how long it may take."""

    deviations: Annotated[float, Field(ge=0.0)] = Field(6.0, description="threshold; 0: skip only non-finite steps")
    window: Samples = Field(128, description="steps")
    most_skips: Samples = Field(10, description="consecutive skipped steps that end the run")
    patience: Patience = Field(600.0, description="seconds a step may take before the run ends")
    disk_patience: Patience = Field(3600.0, description="seconds that loading or writing a checkpoint may take")


class Slurm(Settings):
    """What a site's Slurm needs (`mtnlg_parallel.launch.slurm`)."""

    sbatch: dict[str, str | int | bool] = Field({}, description='options of sbatch, such as partition = "batch"')
    srun: dict[str, str | int | bool] = Field({}, description="options of srun, such as container-image")
    setup: tuple[str, ...] = Field((), strict=False, description="lines of bash before srun, such as module load cuda")


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
        try:
            return _expand_preset(model)
        except UsageFailure as failure:
            raise ValueError(str(failure)) from None

    @model_validator(mode="before")
    @classmethod
    def _count_samples(cls, content: Any) -> Any:  # noqa: ANN401  (what the file holds)
        """Replace worded lengths by samples, and give ``decay`` its default; fields explain what is left unresolved."""
        train = content.get("train") if isinstance(content, dict) else None
        if not isinstance(train, dict):
            return content
        return {**content, "train": _in_samples(train, _sequence(content.get("model")))}

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if reason := layout_error(self.layout, self.model, self.train.sequence_parallel):
            raise ValueError(reason)
        train, dp = self.train, self.layout.dp
        named = ":" not in train.schedule
        if named and (reason := schedule_error(self.layout, self.model, train.schedule, train.chunks)):
            raise ValueError(reason)
        if train.offload_activations and train.schedule == "1f1b":
            hint = 'use train.schedule = "interleaved" or "zero-bubble"'
            raise ValueError(f'train.offload_activations: the engine of "1f1b" keeps them on the device; {hint}')
        if train.precision == "fp8" and (reason := eight_bit_error(self.layout, self.model, train.micro_batch)):
            raise ValueError(reason)
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

    @property
    def warnings(self) -> list[str]:
        """Notes for the user on what will run, but perhaps not as meant."""
        train, rounding = self.train, self.batch_size.rounding
        notes = [rounding] if rounding else []
        if train.samples > train.decay and train.min_lr == 0:
            notes.append(
                f"the learning rate is 0 after train.decay = {train.decay} of train.samples = {train.samples}; "
                "raise train.decay, or set train.min_lr"
            )
        if train.warmup >= train.samples:
            notes.append(
                f"the learning rate never reaches train.lr = {train.lr}: train.warmup = {train.warmup} does not end "
                f"before train.samples = {train.samples}"
            )
        return notes


def _in_samples(train: dict[str, Any], sequence: int | None) -> dict[str, Any]:
    """A recipe's [train] with its lengths in samples, where the keys that this takes are valid, and with ``decay``."""
    size, ramp = train.get("batch"), train.get("ramp")
    if isinstance(ramp, dict) and "samples" in ramp:
        samples = _count(ramp["samples"], sequence, partial(_ramp_samples, size, ramp))
        ramp = {**ramp, "samples": samples}
        train = {**train, "ramp": ramp}
    schedule = _batch_size(size, ramp)
    lengths: dict[str, Any] = {key: train[key] for key in LENGTHS if key in train}
    for key, value in lengths.items():
        lengths[key] = _count(value, sequence, schedule.samples_after if schedule else lambda _: None)
        if lengths[key] == 0 != value and isinstance(value, str) and parse_length(value).amount:
            tokens = f"of model.sequence = {sequence} tokens"
            raise ValueError(f"train.{key} = {value!r} is less than half a sample {tokens}, so 0 samples; write more")
    samples = lengths.get("samples")
    valid = isinstance(samples, int) and 0 < samples < LIMIT
    return {**train, "decay": samples if valid else LIMIT - 1, **lengths}  # what is wrong with samples is said once


def _count(written: Any, sequence: int | None, after: Callable[[int], int | None]) -> Any:  # noqa: ANN401  (the file's)
    """A length in samples; ``written`` itself where it is none or cannot be counted, which its field explains."""
    try:
        amount, unit = parse_length(written)
    except (TypeError, ValueError):
        return written
    steps = min(int(amount), LIMIT)
    counted = steps if unit == "samples" else after(steps) if unit == "steps" else sequence and round(amount / sequence)
    return written if counted is None else counted


def _expand_preset(model: Any) -> Any:  # noqa: ANN401  (as above)
    """Replace ``preset = "dense-350m"`` by that model's values; keys beside it override them."""
    if not isinstance(model, dict) or "preset" not in model:
        return model
    overrides = {key: value for key, value in model.items() if key != "preset"}
    return preset(str(model["preset"])).model_dump(mode="json") | overrides


def _sequence(model: Any) -> int | None:  # noqa: ANN401  (as above)
    """Tokens of a sample by a recipe's [model]; None where it is not valid."""
    try:
        config = model if isinstance(model, ModelConfig) else ModelConfig.model_validate(_expand_preset(model))
    except (ValidationError, UsageFailure):
        return None
    return config.sequence


def _batch_size(size: Any, ramp: Any) -> BatchSize | None:  # noqa: ANN401  (as above)
    """The batch size as the recipe words it, before a layout rounds it; None where a key is not valid.

    A ramp that does not meet the batch is left out: `Train` refuses it.
    """
    try:
        valid = Ramp.model_validate(ramp) if ramp is not None else None
    except ValidationError:
        return None
    if type(size) is not int or not 0 < size < LIMIT:
        return None
    return BatchSize(size, valid if valid and valid.meets(size) else None, multiple=1)


def _ramp_samples(size: Any, ramp: dict[str, Any], steps: int) -> int | None:  # noqa: ANN401  (as above)
    """Samples of the shortest ramp that lasts ``steps`` steps; None where another key is not valid."""
    schedule = _batch_size(size, {**ramp, "samples": 1})
    if schedule is None:
        return None
    if schedule.ramp is None or steps == 0:
        return steps * schedule.size
    begin = schedule.ramp

    def lasts(samples: int) -> bool:  # longer ramps last as long or longer
        ramp = begin.model_copy(update={"samples": samples})
        return BatchSize(size, ramp, multiple=1).samples_after(steps - 1) < samples

    return bisect_left(range(1, min(steps * size, LIMIT)), True, key=lasts) + 1


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read ``path``, a recipe or a folder that holds ``train.toml``, with ``KEY=VALUE`` overrides.

    Raises ``Failure`` where there is none, ``UsageFailure`` with a line for each mistake.
    """
    return load(path, FILE, Recipe, overrides)


class RunOptions(NamedTuple):
    """W&B project, steps to profile, and whether to train on the CPU. Never changes what is trained."""

    wandb: str | None = None
    profile: range | None = None
    device: Literal["auto", "cpu"] = "auto"
