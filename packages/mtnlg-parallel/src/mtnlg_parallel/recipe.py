"""The training recipe: model, layout and schedule; and the options of a run that never change it.

Lengths are in samples of ``model.sequence`` tokens. `recipe_file` reads ``train.toml``, which may have them in words. A
recipe that cannot work is refused here, before anything starts.
"""

from __future__ import annotations

import fnmatch
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from mtnlg_model.config import ModelConfig  # noqa: TC001  (pydantic reads the annotation)
from mtnlg_model.console import UsageFailure, say
from mtnlg_model.families import preset
from mtnlg_model.settings import Settings, did_you_mean
from mtnlg_parallel.training.schedule import (
    IN_SAMPLES,
    LIMIT,
    BatchSize,
    LearningRate,
    Ramp,
    Samples,
    Shape,
)

from .engine.contract import deepspeed_error
from .layout import Layout, Recompute, eight_bit_error, layout_error
from .schedules import DEFAULT, OURS, resolve_name, schedule_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mtnlg_parallel.record.metrics import Step
    from mtnlg_parallel.record.trackers import Tracker

    Callback = Callable[[Step], bool | None]

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Patience = Annotated[float, Field(gt=0.0, lt=1e9)]
Every = Annotated[int, Field(ge=0)]
AbsolutePath = Annotated[str, AfterValidator(lambda path: path and str(Path(path).absolute()))]
"""A path, unless empty, made absolute: ranks and restarts may have another working folder."""
RETIRED: Final = {"memory_checkpoint_every": "state is no longer copied into other nodes' memory; use checkpoint_every"}
"""Former keys of [train] and why they are ignored: a run's own recipe.toml holds every key of its version."""

Range = Annotated[tuple[Every, Every], Field(strict=False)]
Ranges = Annotated[tuple[Range, ...], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class GuardChange(Settings):
    """Settings of the guard from a sample on, as in [guard]."""

    deviations: Annotated[float, Field(ge=0.0)] | None = Field(None, description="as in [guard], like the keys below")
    window: Samples | None = Field(None, description="steps")
    most_skips: Samples | None = Field(None, description="consecutive skipped steps that end the run")


class Change(Settings):
    """Settings of a run from sample ``at`` on: of the first step that begins there or later, and those after it."""

    at: Annotated[Samples, IN_SAMPLES] = Field(description="samples that the run has consumed")
    lr: Positive | None = Field(None, description="as in [train], like the keys below")
    min_lr: Annotated[float, Field(ge=0.0)] | None = Field(None, description="learning rate after the decay")
    warmup: Annotated[Every, IN_SAMPLES] | None = Field(None, description="another rise from 0, from `at` on")
    hold: Annotated[Every, IN_SAMPLES] | None = Field(None, description="until when the peak is held")
    decay: Annotated[Samples, IN_SAMPLES] | None = Field(None, description="where the decay ends")
    decay_shape: Shape | None = Field(None, description="cosine, linear or constant")
    batch: Samples | None = Field(None, description="samples per step, over all ranks")
    weight_decay: Annotated[float, Field(ge=0.0)] | None = Field(None, description="of matrices")
    clip: Positive | None = Field(None, description="maximum norm of the gradients")
    frozen: Names | None = Field(None, description="parameters that no longer change; [] trains all")
    guard: GuardChange | None = None
    data: AbsolutePath | None = Field(None, description="token folder to read, on from where it stopped; empty: --data")
    skip: Ranges = Field((), description="ranges [first, end) of this folder's samples that are left out")

    @property
    def settings(self) -> dict[str, Any]:
        """The changed keys of [train], except those of the stream."""
        return self.model_dump(exclude_none=True, exclude={"at", "guard", "data", "skip"})


class StreamPart(NamedTuple):
    """What a run reads from its sample ``at`` on: token folder ``data`` (empty: --data), from its sample ``start``."""

    at: int
    data: str
    start: int
    skip: tuple[tuple[int, int], ...]

    def number(self, sample: int) -> int:
        """Number in the folder's stream of the run's sample ``sample``, which is at or after ``at``."""
        number = self.start + sample - self.at
        for first, end in self.skip:
            if max(first, self.start) <= number and end > self.start:
                number += end - max(first, self.start)
        return number

    def until(self, samples: int) -> StreamPart:
        """Return this part with only the skipped ranges that come before the run's sample number ``samples``."""
        last = self.number(samples - 1) if samples > self.at else -1
        return self._replace(skip=tuple(each for each in self.skip if each[1] <= last))


class Train(Settings):
    """How the decoder is trained (paper.md section 2).

    ``checkpoint_every``: a failure costs half of it on average. 500 steps of a second are 8 minutes, and a 6.7B's 94 GB
    are then 190 MB/s; 500 steps of the 530B are 8 hours, so its recipe says 10.
    """

    samples: Annotated[Samples, IN_SAMPLES] = Field(description="length of the run")
    batch: Samples = Field(description="samples per step, over all ranks")
    micro_batch: Samples = Field(1, description="samples per pass through the pipeline")
    ramp: Ramp | None = None
    lr: Positive = Field(description="peak learning rate")
    min_lr: Annotated[float, Field(ge=0.0)] = Field(0.0, description="learning rate after the decay")
    warmup: Annotated[Every, IN_SAMPLES] = Field(0, description="linear rise of the learning rate from 0")
    hold: Annotated[Every, IN_SAMPLES] = Field(
        0, description="until when the peak is held; the warm-up's end unless later"
    )
    decay: Annotated[Samples, IN_SAMPLES] = Field(description="where its decay ends; all samples unless given")
    decay_shape: Shape = Field(
        "cosine", description="cosine or linear (with a hold: warmup-stable-decay), or constant: none"
    )
    betas: tuple[Share, Share] = Field((0.9, 0.95), strict=False, description="AdamW's, of the moments")
    eps: Positive = Field(1e-8, description="epsilon of AdamW, added to the square root of the second moment")
    weight_decay: Annotated[float, Field(ge=0.0)] = Field(0.1, description="for matrices, not for biases and norms")
    clip: Positive = Field(1.0, description="maximum norm of the gradients")
    frozen: Names = Field(
        (),
        description="names of parameters, or patterns such as layers.0.*, that keep their weights and moments and do "
        "not count in the norm; their gradients are computed all the same",
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = Field(1234, description="seed of initial weights and dropout")
    precision: Literal["fp32", "bf16", "fp8"] = Field(
        "bf16", description="dtype of weights and activations; fp8: bf16, with the layers' products in 8 bits"
    )
    gradients: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="dtype of gradient sums over micro-batches and ranks; bf16 rounds each, in half the memory",
    )
    shard: Literal["state", "gradients", "parameters"] = Field(
        "state",
        description="what is split over dp x cp ranks: state of the optimizer, also gradients (ZeRO-2), or also "
        "parameters (ZeRO-3, FSDP)",
    )
    recompute: Recompute = Field("full", description="what backward recomputes: nothing, attention's core, or layers")
    engine: str = Field("pipeline", description="what runs the stages: pipeline, deepspeed, or one of your own")
    schedule: str = Field(DEFAULT, description=f"order of work of a pipeline rank: {', '.join(OURS)}, or a reference")
    chunks: Samples = Field(1, description="parts of the decoder on each pipeline rank")
    sequence_parallel: bool = Field(True, description="split activations along the sequence where tp > 1")
    offload_activations: bool = Field(False, description="keep activations in host memory until backward")
    kernels: bool = Field(True, description="use fused kernels where the device has them")
    deterministic: bool = Field(False, description="ask for kernels that give the same bits each time")
    checkpoint_every: Every = Field(500, description="steps; 0: only at the end")
    keep: Samples = Field(5, description="number of checkpoints kept, the newest")
    keep_every: Every = Field(0, description="also keep, for good, those whose step is a multiple of this; 0: none")
    copy_to: str = Field(
        "", description="URL or folder to which each checkpoint is copied, such as s3://bucket/run; empty: none"
    )
    initial: AbsolutePath = Field(
        "", description="checkpoint or Hugging Face folder whose weights the run starts from; empty: initial weights"
    )
    new_tokenizer: bool = Field(False, description="start from `initial` though its tokenizer is not the data's")
    start_sample: Annotated[Every, IN_SAMPLES] = Field(0, lt=LIMIT, description="first sample in the token stream")
    skip: Ranges = Field((), description="ranges [first, end) of the token stream's samples that are left out")
    change: tuple[Change, ...] = Field((), strict=False, description="settings of later samples, as [[train.change]]")
    validation_every: Every = Field(0, description="steps; 0: never")
    validation_samples: Samples = Field(64, description="held-out samples per validation")

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, content: Any) -> Any:  # noqa: ANN401  (what the file holds)
        """Drop keys of earlier versions, printing a line for each that was in use; set ``decay``'s default."""
        if not isinstance(content, dict):
            return content
        for key in content.keys() & RETIRED:
            if content[key]:
                say(f"train.{key} = {content[key]!r} is ignored: {RETIRED[key]}")
        samples = content.get("samples")
        decay = samples if type(samples) is int and 0 < samples < LIMIT else LIMIT - 1  # samples reports the error
        return {"decay": decay, **{key: value for key, value in content.items() if key not in RETIRED}}

    @field_validator("copy_to")
    @classmethod
    def _make_url(cls, place: str) -> str:
        return f"file://{Path(place).absolute()}" if place and "://" not in place else place

    @field_validator("schedule")
    @classmethod
    def _check_name(cls, name: str) -> str:
        """Refuse an unknown name. A reference is loaded only to train or plan, not to read a run's recipe."""
        try:
            return resolve_name(name)
        except UsageFailure as failure:
            raise ValueError(str(failure)) from None

    @property
    def storage(self) -> Literal["fp32", "bf16"]:
        """Dtype of weights and activations in memory."""
        return "fp32" if self.precision == "fp32" else "bf16"

    @property
    def learning_rate(self) -> LearningRate:
        """The learning rate as a function of the samples consumed, after all changes."""
        start = max((change.at for change in self.change if change.warmup is not None), default=0)
        return LearningRate(self.lr, self.min_lr, self.warmup, self.decay, self.hold, self.decay_shape, start)

    def at(self, samples: int) -> Self:
        """The settings of the step that begins after ``samples`` consumed samples, and the changes made until then."""
        made = tuple(change for change in self.change if change.at <= samples)
        settings = {key: value for change in made for key, value in change.settings.items()}
        return self.model_copy(update={**settings, "change": made})

    @property
    def stream_parts(self) -> list[StreamPart]:
        """The parts of streams that the run reads, in order."""
        parts = [StreamPart(0, "", self.start_sample, self.skip)]
        stopped: dict[str, StreamPart] = {}
        for change in self.change:
            before = parts[-1]
            stopped[before.data] = StreamPart(0, before.data, before.number(change.at), before.skip)
            if change.data is not None or change.skip:
                data = before.data if change.data is None else change.data
                part = stopped.get(data, StreamPart(0, data, 0, ()))
                parts.append(part._replace(at=change.at, skip=tuple(sorted({*part.skip, *change.skip}))))
        return parts

    @property
    def decays(self) -> bool:
        """Whether its learning rate ever decays, so that `decay`, `hold` and `min_lr` count."""
        return {self.decay_shape, *(change.decay_shape for change in self.change)} - {None} != {"constant"}

    def until(self, samples: int) -> Self:
        """The settings of the run's first ``samples`` samples: without later changes and skipped ranges."""
        train = self.model_copy(update={"change": tuple(change for change in self.change if change.at < samples)})
        parts = {part.at: part for part in train.stream_parts}
        ends = [*sorted(parts)[1:], samples]
        passed = {at: {*parts[at].until(end).skip} for at, end in zip(sorted(parts), ends, strict=True)}

        def kept(at: int, skip: tuple[tuple[int, int], ...]) -> dict[str, Any]:
            return {"skip": tuple(each for each in skip if each in passed.get(at, ()))}

        changes = tuple(change.model_copy(update=kept(change.at, change.skip)) for change in train.change)
        unknown = {} if train.decays else {"decay": LIMIT - 1}
        return train.model_copy(update={**kept(0, train.skip), "change": changes, **unknown})

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        for key, end in (("warmup", self.warmup), ("hold", self.hold)):
            if end >= self.decay and self.decays:
                raise ValueError(f"{key} = {end} must end before decay = {self.decay}, which counts it in")
        if self.gradients == "bf16" and self.precision == "fp32":
            raise ValueError('gradients = "bf16" needs precision = "bf16" or "fp8", not "fp32"')
        if self.new_tokenizer and not self.initial:
            raise ValueError("new_tokenizer = true needs initial: --new-tokenizer goes with --from")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr = {self.min_lr} is above lr = {self.lr}")
        if self.ramp and not self.ramp.meets(self.batch):
            ramp = f"start = {self.ramp.start} by increment = {self.ramp.increment}"
            raise ValueError(f"ramp from {ramp} never meets batch = {self.batch}; batch - start must be a multiple")
        return self

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        for skip in (self.skip, *(change.skip for change in self.change)):
            if any(first >= end for first, end in skip) or any(one[1] > two[0] for one, two in pairwise(skip)):
                raise ValueError(f"skip = {[*map(list, skip)]}: write ranges [first, end) in order without overlap")
        before, ramped = 0, self.ramp.samples if self.ramp else 0
        for change in self.change:
            settings, place = self.at(change.at), f"change at = {change.at}"
            if change.at <= before:
                raise ValueError(f"{place} must come after the one at = {before}")
            if change.batch and change.at < ramped:
                raise ValueError(f"{place}: batch = {change.batch} within the ramp of {ramped} samples")
            if self.decays and (end := settings.learning_rate.peak_end) >= settings.decay:
                raise ValueError(f"{place}: warmup or hold ends at {end}, not before decay = {settings.decay}")
            if settings.min_lr > settings.lr:
                raise ValueError(f"{place}: min_lr = {settings.min_lr} is above lr = {settings.lr}")
            before = change.at
        return self


class DataSettings(Settings):
    """What a sample's tokens attend to."""

    documents: Literal["joined", "isolated"] = Field(
        "joined",
        description="joined: attend to all tokens before; isolated: within the document, with positions from 0",
    )

    @property
    def isolated(self) -> bool:
        """Whether attention stays within documents."""
        return self.documents == "isolated"


class GuardSettings(Settings):
    """When a step is skipped (`mtnlg_parallel.training.guard`), and how long it may take."""

    deviations: Annotated[float, Field(ge=0.0)] = Field(6.0, description="threshold; 0: skip only non-finite steps")
    window: Samples = Field(128, description="steps")
    most_skips: Samples = Field(10, description="consecutive skipped steps that end the run")
    patience: Patience = Field(600.0, description="maximum seconds per step; then the run ends")
    disk_patience: Patience = Field(3600.0, description="maximum seconds to load or write a checkpoint")


class WatchSettings(Settings):
    """What is measured beside each step's loss and gradient norm (`mtnlg_parallel.training.watch`)."""

    every: Every = Field(100, description="steps between measurements of weights, sources, ranks and memory; 0: never")
    openmetrics: str = Field(
        "", description="file of the newest figures for node_exporter's textfile collector, such as /…/run.prom"
    )


class Slurm(Settings):
    """What a site's Slurm needs (`mtnlg_parallel.launch.slurm`)."""

    sbatch: dict[str, str | int | bool] = Field({}, description='options of sbatch, such as partition = "batch"')
    srun: dict[str, str | int | bool] = Field({}, description="options of srun, such as container-image")
    setup: tuple[str, ...] = Field((), strict=False, description="bash that runs as you before srun: module load cuda")


class Recipe(Settings):
    """A complete ``train.toml``."""

    cluster: str = Field("", description="name or TOML file of the cluster for which `plan` plans without --cluster")
    model: ModelConfig
    layout: Layout = Layout()
    train: Train
    data: DataSettings = DataSettings()
    guard: GuardSettings = GuardSettings()
    watch: WatchSettings = WatchSettings()
    slurm: Slurm = Slurm()

    @field_validator("model", mode="before")
    @classmethod
    def _expand_preset(cls, model: Any) -> Any:  # noqa: ANN401  (what the file holds)
        try:
            return expand_preset(model)
        except UsageFailure as failure:
            raise ValueError(str(failure)) from None

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if reason := layout_error(self.layout, self.model, self.train.sequence_parallel):
            raise ValueError(reason)
        train, dp = self.train, self.layout.dp
        named = ":" not in train.schedule
        if named and (reason := schedule_error(self.layout, self.model, train.schedule, train.chunks)):
            raise ValueError(reason)
        if train.precision == "fp8" and (reason := eight_bit_error(self.layout, self.model, train.micro_batch)):
            raise ValueError(reason)
        if train.shard != "state" and self.layout.pp > 1:
            raise ValueError(f'train.shard = "{train.shard}" needs layout.pp = 1, not {self.layout.pp}')
        if train.engine == "deepspeed" and (reason := deepspeed_error(self)):
            raise ValueError(f'train.engine = "deepspeed": {reason}')
        for pattern in (*train.frozen, *(each for change in train.change for each in change.frozen or ())):
            names = self.model.parameter_shapes()
            if not fnmatch.filter(names, pattern):
                hint = did_you_mean(pattern, names) or f"write names such as {', '.join([*names][:2])}"
                raise ValueError(f'train.frozen: "{pattern}" matches no parameter; {hint.strip()}')
        multiple = dp * train.micro_batch
        product = f"layout.dp = {dp} x train.micro_batch = {train.micro_batch}"
        batches = [("batch", train.batch), *(("change.batch", each.batch) for each in train.change if each.batch)]
        for key, value in (*batches, ("validation_samples", train.validation_samples)):
            if value % multiple:
                nearest = sorted({max(value // multiple, 1) * multiple, (value // multiple + 1) * multiple})
                choices = " or ".join(map(str, nearest))
                raise ValueError(f"{product} does not divide train.{key} = {value}; use {key} = {choices}")
        return self

    def within(self, ranks: int) -> Self:
        """The recipe at the largest ``dp``, up to its own, that ``ranks`` ranks allow and that keeps the same batches.

        Raises ``UsageFailure`` if there is none.
        """
        layout = self.layout
        for dp in range(min(layout.dp, ranks // (layout.world // layout.dp)), 0, -1):
            with suppress(ValidationError):
                smaller = self.model_copy(update={"layout": layout.model_copy(update={"dp": dp})})
                fitted = type(self).model_validate(smaller.model_dump(mode="json"), strict=False)
                if dp == layout.dp or not (fitted.batch_size.rounding or self.batch_size.rounding):
                    return fitted
        raise UsageFailure(f"--elastic: {ranks} ranks cannot run layout {layout} at any dp with the same batches")

    def guard_at(self, samples: int) -> GuardSettings:
        """The guard of the step that begins after ``samples`` consumed samples."""
        made = [change.guard for change in self.train.change if change.guard and change.at <= samples]
        changed = {key: value for each in made for key, value in each.model_dump(exclude_none=True).items()}
        return self.guard.model_copy(update=changed)

    def reads_samples(self, pp: int) -> bool:
        """Whether pipeline rank ``pp`` needs the samples: inputs, targets, or document bounds."""
        return pp in {0, self.layout.pp - 1} or self.data.isolated

    @property
    def batch_size(self) -> BatchSize:
        """The batch size as a function of the samples consumed, in this layout."""
        train = self.train
        changes = tuple((change.at, change.batch) for change in train.change if change.batch)
        return BatchSize(train.batch, train.ramp, self.layout.dp * train.micro_batch, changes)

    @property
    def steps(self) -> int:
        """Number of steps of the whole run in this layout."""
        return self.batch_size.number_of_steps(self.train.samples)

    @property
    def warnings(self) -> list[str]:
        """Notes for the user on settings that work, but perhaps not as intended."""
        train, rounding = self.train, self.batch_size.rounding
        notes = [rounding] if rounding else []
        if train.shard == "parameters" and self.watch.every and self.layout.copies > 1:
            notes.append('train.shard = "parameters": ranks compare their copies of norms and biases, not of matrices')
        if not train.decays and (unused := [key for key in ("hold", "min_lr") if getattr(train, key)]):
            notes.append(f'train.{unused[0]} has no effect: train.decay_shape = "constant" never decays')
        last = train.at(train.samples - 1)
        if train.samples > last.decay and last.min_lr == 0 and last.decay_shape != "constant":
            notes.append(
                f"the learning rate is 0 after train.decay = {last.decay} of train.samples = {train.samples}; "
                "raise train.decay, or set train.min_lr"
            )
        if train.change and (at := train.change[-1].at) >= train.samples:
            notes.append(f"train.change at = {at} is never reached: train.samples = {train.samples}")
        if last.learning_rate.risen >= train.samples:
            notes.append(
                f"the learning rate never reaches train.lr = {last.lr}: train.warmup = {last.warmup} does not end "
                f"before train.samples = {train.samples}"
            )
        return notes


def expand_preset(model: Any) -> Any:  # noqa: ANN401  (what the file holds)
    """Replace ``preset = "dense-350m"`` by that model's values; other keys override them."""
    if not isinstance(model, dict) or "preset" not in model:
        return model
    overrides = {key: value for key, value in model.items() if key != "preset"}
    return preset(str(model["preset"])).model_dump(mode="json") | overrides


class RunOptions(NamedTuple):
    """W&B project, steps to profile, whether to train on the CPU, and rank 0's callbacks and trackers.

    A callback that returns True stops the run after a last checkpoint, as a signal does. Nothing else here changes what
    is trained.
    """

    wandb: str | None = None
    profile: range | None = None
    device: Literal["auto", "cpu"] = "auto"
    callbacks: Sequence[Callback] = ()
    trackers: Sequence[Tracker] = ()
