"""The interface between the training loop and an engine, ours or DeepSpeed's.

    pipeline     ours, the default: every schedule, with gradients reduced in fp32 while backward runs
    deepspeed    the paper's: 1F1B and ZeRO-1 of DeepSpeed over megatron-core's layers

Either engine resumes a checkpoint of the other, since it holds `Fragment`s of the decoder's own tensors.
`mtnlg_parallel.conformance` checks an engine's numbers against this contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_model.functional import Documents
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.stage_modules import LocalParameter
    from mtnlg_parallel.recipe import Recipe

    MicroBatches = Iterator["MicroBatch"]
    Judge = Callable[[float, float], "Skip | None"]
    """Why a step with this loss and gradient norm must be skipped; None where it may be taken."""

    Observe = Callable[[str, Tensor], None]
    """Takes "loss" and the loss of each sample of a micro-batch [B], or "layers.N" and the hidden states behind it.

    Where only some targets count, the loss is 0 at others, and "targets" and their number in each sample come before.
    """


ENGINES: Final = {
    "deepspeed": "mtnlg_parallel.engine.deepspeed:DeepSpeedEngine",
    "pipeline": "mtnlg_parallel.engine.pipeline_engine:PipelineEngine",
}

MOMENTS: tuple[SlotName, SlotName] = ("exp_avg", "exp_avg_sq")


class MicroBatch(NamedTuple):
    """Inputs and targets of whole samples, int64 [B, S] each; with isolated documents also the documents' bounds.

    ``positions`` [B, S] count from 0 in each document; ``bounds``, int32, has the start of each document in the
    flattened inputs, and the end of the last; ``lengths`` has the documents' lengths. ``counted`` is the number of
    targets that the loss counts; all others are negative. It is None in a run where every target counts.
    """

    inputs: Tensor
    targets: Tensor
    positions: Tensor | None = None
    bounds: Tensor | None = None
    lengths: tuple[int, ...] = ()
    counted: int | None = None

    def attention(self, layers: int, device: torch.device) -> tuple[Tensor | None, list[Documents] | None]:
        """Positions, and each layer's documents in place of causal attention, on ``device``; None by default."""
        if self.positions is None or self.bounds is None:
            return None, None
        from mtnlg_model.functional import Documents  # noqa: PLC0415  (this module imports no torch)

        bounds = self.bounds.to(device, non_blocking=True) if device.type == "cuda" else None
        return self.positions.to(device, non_blocking=True), [Documents(self.lengths, bounds)] * layers


@dataclass(frozen=True)
class Fragment:
    """ZeRO's fragment of a parameter on this rank: views of elements [start, stop) of its flattened box."""

    local: LocalParameter
    start: int
    stop: int
    weight: Tensor
    master: Tensor
    moments: dict[SlotName, Tensor]

    def slots(self, with_moments: bool) -> dict[SlotName, Tensor]:
        """The fragment's tensors by slot; the moments only if ``with_moments``, as there are none before an update."""
        return {"master": self.master, **(self.moments if with_moments else {})}


class Skip(NamedTuple):
    """Why a step is skipped: a code, and words for people."""

    code: str
    reason: str


class Outcome(NamedTuple):
    """Loss and gradient norm of a step, equal on every rank, and why it was skipped.

    Where none of the step's targets counts, they are NaN and 0.
    """

    loss: float
    grad_norm: float
    skip: Skip | None


class StepSettings(NamedTuple):
    """Settings that may change every step: learning rate, weight decay of matrices, gradient norm to clip at.

    Parameters whose names match a pattern of ``frozen`` do not change, nor their moments or the norm by them.
    """

    lr: float
    weight_decay: float
    clip: float
    frozen: Sequence[str] = ()


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a parameter's name matches one of these patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Engine(Protocol):
    """One rank's part of the decoder and its optimizer. All ranks call `train_batch` and `evaluate` together."""

    before_update: Callable[[], None]
    """Called before weights and moments change."""

    observe: Observe
    """Called while a step trains, in micro-batch order. An engine may never call it; the figures are then missing."""

    optimizer_steps: int
    """Number of updates; steps that were skipped do not count."""

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of this rank, in model order. All ranks iterate together: an engine may gather weights."""

    def fragments(self) -> Iterator[Fragment]:
        """The rank's fragments of master weights and moments."""

    def train_batch(
        self, batches: MicroBatches | None, micro_batches: int, settings: StepSettings, judge: Judge
    ) -> Outcome:
        """Run ``micro_batches`` micro-batches, then update unless ``judge`` returns a reason not to.

        ``batches`` is needed where `Recipe.reads_samples`.
        """

    def evaluate(self, batches: MicroBatches, micro_batches: int) -> float:
        """Mean loss over ``micro_batches`` micro-batches, in nats per token; equal on every rank."""


class EngineClass(Protocol):
    """Builds an engine, on every rank of an initialized job, with uninitialised parameters."""

    def __call__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> Engine:
        """Build this rank's engine."""

    @staticmethod
    def unsupported(recipe: Recipe) -> str | None:
        """Why the engine cannot train this recipe, in one line; None if it can."""


def deepspeed_error(recipe: Recipe) -> str | None:
    """Why DeepSpeed's engine cannot train this recipe; None if it can. Needs no torch, as recipes are checked by it."""
    if recipe.train.schedule != "1f1b":
        return f'DeepSpeed runs train.schedule = "1f1b", not "{recipe.train.schedule}"'
    if recipe.layout.cp > 1:
        return f"DeepSpeed has no context parallelism, and layout.cp = {recipe.layout.cp}"
    if recipe.train.shard != "state":
        return f'DeepSpeed runs train.shard = "state", not "{recipe.train.shard}"'
    if recipe.train.frozen or any(change.frozen for change in recipe.train.change):
        return "DeepSpeed trains every parameter, and train.frozen names some"
    if recipe.train.gradients != "fp32":
        return "DeepSpeed sums gradients in fp32"
    return "DeepSpeed keeps activations on the device" if recipe.train.offload_activations else None
