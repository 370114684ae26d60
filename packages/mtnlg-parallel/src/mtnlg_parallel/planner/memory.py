"""Bytes on each GPU of every stage, by kind, and whether they fit.

Model state a parameter under 16-bit training (paper.md section 3): weights 2, gradients 2 and accumulated in fp32 4,
master weights 4, Adam's moments 8, the last two divided by dp under ZeRO-1. Where the product accumulates in fp32
itself, there is no 16-bit gradient. In fp32 there is neither a master copy nor a second gradient.

Activations of a layer for a micro-batch, in bytes, sequence s, batch b, hidden h, heads a, t-way tensor parallelism
(Korthikanti et al. 2022, equations 1 to 6)

    kept whole         s b h (10 + 24 / t + 5 a s / (h t))        with sequence parallelism  s b h / t (34 + 5 a s / h)
    attention's core recomputed                                   without the last term
    layer recomputed   2 s b h, its input                         with sequence parallelism  2 s b h / t

times the layers, times the micro-batches that are in flight at once, which the schedule tells; a layer that is being
recomputed is whole for a while.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import head_chunk

from .simulation import in_flight
from .step import chunks, stage_parameters

if TYPE_CHECKING:
    from .cluster import Cluster, Software
    from .run import Run, Shape

CONTEXT_BYTES: Final = 1.2e9
"""What a GPU holds before the first tensor: the driver's context, libraries' workspaces."""

CHANNEL_BYTES: Final = 0.25e9
"""Buffers of one communicator; a rank is in one for each axis that is cut."""

SLACK: Final = 0.05
"""Of what comes and goes, the share more that the allocator holds: rounding, holes between blocks of unlike sizes."""

STATE_SLACK: Final = 0.01
"""The same of weights and gradients, which stay where they are."""

MARGIN: Final = 0.06
"""Share of the GPU's memory that stays free when a run is said to fit."""


class Memory(NamedTuple):
    """Bytes on each GPU of a stage.

    ``activations`` are the layers'; ``recomputed`` is the one layer that is whole while it is recomputed; ``embedding``
    the masks and inputs that embedding, norm and head keep; ``logits`` what the loss needs, at its fullest moment.
    """

    weights: float
    gradients: float
    master: float
    moments: float
    activations: float
    recomputed: float
    embedding: float
    logits: float
    buffers: float
    slack: float

    @property
    def total(self) -> float:
        """All together."""
        return sum(self)

    @property
    def state(self) -> float:
        """Weights, gradients and optimizer: what the run holds between steps."""
        return self.weights + self.gradients + self.master + self.moments


def memory(run: Run, software: Software) -> tuple[Memory, ...]:
    """Bytes on each GPU, stage by stage."""
    return tuple(_stage(run, software, stage) for stage in range(run.layout.pp))


def fullest(held: tuple[Memory, ...]) -> int:
    """The stage that holds most."""
    return max(range(len(held)), key=lambda stage: held[stage].total)


def misfit(held: tuple[Memory, ...], cluster: Cluster) -> str | None:
    """Why the run does not fit, with the figures; None where it does."""
    stage = fullest(held)
    total, room = held[stage].total, cluster.gpu.memory_bytes * (1 - MARGIN)
    if total <= room:
        return None
    kind = max(held[stage]._fields, key=lambda name: getattr(held[stage], name))
    share = f"{getattr(held[stage], kind) / 1e9:.1f} GB of it {kind}"
    return (
        f"stage {stage} needs {total / 1e9:.1f} GB on each {cluster.gpu.name}, {share}; {room / 1e9:.1f} GB are there"
    )


def _stage(run: Run, software: Software, stage: int) -> Memory:
    shape, layout = run.shape, run.layout
    parameters = stage_parameters(run, software, stage)
    weights = shape.width * parameters
    accumulated = shape.gradient_bytes if shape.width == 2 else 0
    fresh = 0 if software.fused_accumulation and accumulated == 4 else shape.width
    fresh = fresh if accumulated != shape.width else 0  # fp16 accumulates where the backward pass writes
    owned = parameters / (layout.dp if run.zero else 1)
    activations = _activations(run, software, stage)
    again = layer_bytes(shape, software, "none") if run.recompute == "full" else 0.0
    embedding = _ends(run, stage)
    logits = _logits(shape, software) if stage == layout.pp - 1 else 0.0
    axes = sum(degree > 1 for degree in (layout.tp, layout.pp, layout.dp))
    passing = activations + again + embedding + logits
    return Memory(
        weights=weights,
        gradients=(fresh + accumulated) * parameters,
        master=4 * owned if shape.width == 2 else 0.0,
        moments=8 * owned,
        activations=activations,
        recomputed=again,
        embedding=embedding,
        logits=logits,
        buffers=CONTEXT_BYTES + axes * CHANNEL_BYTES,
        slack=SLACK * passing + STATE_SLACK * (fresh + accumulated + shape.width) * parameters,
    )


def _logits(shape: Shape, software: Software) -> float:
    """Of a micro-batch, and once more in fp32; or of a chunk, which a fused loss does not copy, and x's gradient."""
    width = ceil(shape.vocabulary / shape.tp)
    if not software.chunked_head:
        return (shape.width + 4.0) * shape.tokens * width
    rows = min(head_chunk(shape.tokens, shape.hidden, width), shape.tokens)
    return (shape.width + (0 if software.fused_kernels else 8)) * rows * width + shape.width * shape.elements


def _activations(run: Run, software: Software, stage: int) -> float:
    """What waits for the backward pass at the schedule's fullest moment."""
    shape, pp = run.shape, run.layout.pp
    cut = chunks(run, software)
    kept = layer_bytes(shape, software, run.recompute)
    flying = in_flight(stage, pp, run.interleave, run.micro_batches)
    return kept * flying * max(chunk.layers for chunk in cut[stage::pp])


def layer_bytes(shape: Shape, software: Software, recompute: str) -> float:
    """Bytes that one layer keeps of one micro-batch."""
    wide = shape.width / 2
    sbh, t = shape.elements, shape.tp
    if recompute == "full":
        return 2 * wide * sbh / (t if shape.sequence_parallel else 1)
    core = 5 * shape.heads * shape.sequence / shape.hidden / t
    if recompute == "selective" or software.flash_attention:
        core = 0.0
    return wide * sbh * ((34 / t if shape.sequence_parallel else 10 + 24 / t) + core)


def _ends(run: Run, stage: int) -> float:
    """The embedding's dropout masks in flight on the first stage, the inputs of norm and head on the last."""
    shape, pp = run.shape, run.layout.pp
    flying = min(pp, run.micro_batches)
    first = shape.repeated * flying if stage == 0 else 0.0
    return first + (4 * shape.repeated * shape.width / 2 if stage == pp - 1 else 0.0)
