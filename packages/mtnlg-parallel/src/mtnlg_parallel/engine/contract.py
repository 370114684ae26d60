"""What the training loop asks of an engine, whichever runs the stages: ours or DeepSpeed's.

    pipeline     ours, the default: every schedule, with gradients reduced in fp32 while backward runs
    deepspeed    the paper's: 1F1B and ZeRO-1 of DeepSpeed over megatron-core's layers

A checkpoint of either is resumed by the other: it holds `Fragment`s of the decoder's own tensors. What the contract
means in numbers, `mtnlg_parallel.conformance` checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_model.functional import Documents
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.stage_modules import LocalParameter
    from mtnlg_parallel.recipe import Recipe

    MicroBatches = Iterator["MicroBatch"]
    Judge = Callable[[float, float], str | None]
    """Why a step with this loss and gradient norm must be skipped; None where it may be taken."""

    Observe = Callable[[str, Tensor], None]
    """Takes "loss" and the loss of each sample of a micro-batch [B], or "layers.N" and the hidden states behind it.

    Where only some targets count, the loss is 0 at others, and "targets" and their number in each sample come before.
    """


MOMENTS: tuple[SlotName, SlotName] = ("exp_avg", "exp_avg_sq")


class MicroBatch(NamedTuple):
    """Inputs and targets, int64 [B, S] each. Where documents are isolated, also where they begin.

    ``positions`` [B, S] count from 0 in each document; ``bounds``, int32, is where each begins in the flattened inputs,
    and their end; ``lengths`` are theirs. ``counted`` is the number of targets that the loss counts, of which there may
    be fewer than all: the others are below 0. It is None where all of the run's do.
    """

    inputs: Tensor
    targets: Tensor
    positions: Tensor | None = None
    bounds: Tensor | None = None
    lengths: tuple[int, ...] = ()
    counted: int | None = None

    def attention(self, layers: int, device: torch.device) -> tuple[Tensor | None, list[Documents] | None]:
        """Positions, and what replaces causal attention in each of so many layers, on ``device``; None by default."""
        if self.positions is None or self.bounds is None:
            return None, None
        from mtnlg_model.functional import Documents  # noqa: PLC0415  (this module imports no torch)

        bounds = self.bounds.to(device, non_blocking=True) if device.type == "cuda" else None
        return self.positions.to(device, non_blocking=True), [Documents(self.lengths, bounds)] * layers


@dataclass(frozen=True)
class Fragment:
    """ZeRO's fragment of a parameter on this rank: elements [start, stop) of its flattened box, as views."""

    local: LocalParameter
    start: int
    stop: int
    master: Tensor
    moments: dict[SlotName, Tensor]

    def slots(self, with_moments: bool) -> dict[SlotName, Tensor]:
        """The fragment's tensors that a run starts with; before the first update there are no moments."""
        return {"master": self.master, **(self.moments if with_moments else {})}


class Outcome(NamedTuple):
    """Loss and gradient norm of a step, equal on every rank, and why it was skipped."""

    loss: float
    grad_norm: float
    skip_reason: str | None


class StepSettings(NamedTuple):
    """What may differ from step to step: learning rate, weight decay of matrices, largest norm of the gradients."""

    lr: float
    weight_decay: float
    clip: float


class Engine(Protocol):
    """One rank's part of the decoder and of its optimizer. All ranks call every method of a step together."""

    before_update: Callable[[], None]
    """Called before weights and moments change."""

    observe: Observe
    """Called while a step trains, in the order of its micro-batches; where it never is, these figures are missing."""

    optimizer_steps: int
    """Number of updates; steps that were skipped do not count."""

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of this rank, in model order."""

    def fragments(self) -> Iterator[Fragment]:
        """The rank's fragments of master weights and moments."""

    def train_batch(
        self, batches: MicroBatches | None, micro_batches: int, settings: StepSettings, judge: Judge
    ) -> Outcome:
        """Run so many micro-batches, and update unless ``judge`` gives a reason not to.

        ``batches`` is needed where `Recipe.reads_samples`.
        """

    def evaluate(self, batches: MicroBatches, micro_batches: int) -> float:
        """Mean loss over so many micro-batches, in nats per token; equal on every rank."""


class EngineClass(Protocol):
    """How an engine is had: it is built on every rank of an initialized job, with uninitialised parameters."""

    def __call__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> Engine:
        """Build this rank's engine."""

    @staticmethod
    def unsupported(recipe: Recipe) -> str | None:
        """Why the engine cannot train this recipe, in one line; None where it can."""
