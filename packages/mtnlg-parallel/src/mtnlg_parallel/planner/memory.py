"""Bytes on each GPU of every stage, by kind, and whether they fit.

Model state a parameter in 16-bit training (paper.md section 3): weights 2, gradients 2, fp32 accumulated gradients 4,
master weights 4, Adam's moments 8; ZeRO-1 divides the last two by dp. Where the matrix product accumulates in fp32
itself, there is no 16-bit gradient. fp32 training has neither master weights nor a second gradient.

Activations of a layer for a micro-batch, in bytes, sequence s, batch b, hidden h, heads a, t-way tensor parallelism
(Korthikanti et al. 2022, equations 1 to 6)

    kept whole         s b h (10 + 24 / t + 5 a s / (h t))        with sequence parallelism  s b h / t (34 + 5 a s / h)
    attention's core recomputed                                   without the last term
    layer recomputed   2 s b h, its input                         with sequence parallelism  2 s b h / t

times the layers, times the micro-batches in flight (from the schedule). A layer being recomputed keeps them all.

A weight gradient that waits (zero-bubble) keeps the factors of a layer's four products, of the sliced ones this rank's
part:  s b h (8 + 24 / t)
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import head_chunk

from .simulation import forwards_in_flight
from .step import chunks, stage_parameters

if TYPE_CHECKING:
    from .cluster import Cluster, Software
    from .run import Run, Shape

CONTEXT_BYTES: Final = 1.2e9
"""GPU memory in use before the first tensor: driver context, library workspaces."""

CHANNEL_BYTES: Final = 0.25e9
"""Buffers of one communicator; a rank has one for each parallel axis."""

SLACK: Final = 0.05
"""Allocator overhead on temporary tensors: rounding and fragmentation."""

STATE_SLACK: Final = 0.01
"""Allocator overhead on weights and gradients, which are never freed."""

MARGIN: Final = 0.06
"""Share of GPU memory that must stay free for a run to count as fitting."""


class Memory(NamedTuple):
    """Bytes on each GPU of a stage.

    ``activations``: the layers'. ``waiting``: factors of weight gradients that are put off. ``recomputed``: the layer
    being recomputed. ``embedding``: masks and inputs kept by embedding, final norm and head, and the 16-bit gradient of
    the token table where only those of layers are added in the product. ``logits``: peak of the loss.
    """

    weights: float
    gradients: float
    master: float
    moments: float
    activations: float
    waiting: float
    recomputed: float
    embedding: float
    logits: float
    buffers: float
    slack: float

    @property
    def total(self) -> float:
        """The sum of all kinds."""
        return sum(self)

    @property
    def state(self) -> float:
        """Weights, gradients and optimizer state: what the run holds between steps."""
        return self.weights + self.gradients + self.master + self.moments


def memory(run: Run, software: Software) -> tuple[Memory, ...]:
    """Bytes on each GPU, stage by stage."""
    return tuple(_stage_memory(run, software, stage) for stage in range(run.layout.pp))


def fullest_stage(stages: tuple[Memory, ...]) -> int:
    """Number of the stage that needs most memory."""
    return max(range(len(stages)), key=lambda stage: stages[stage].total)


def memory_error(stages: tuple[Memory, ...], cluster: Cluster) -> str | None:
    """Why the run does not fit, with the figures; None if it fits."""
    stage = fullest_stage(stages)
    total, available = stages[stage].total, cluster.gpu.memory_bytes * (1 - MARGIN)
    if total <= available:
        return None
    kind = max(stages[stage]._fields, key=lambda name: getattr(stages[stage], name))
    share = f"{getattr(stages[stage], kind) / 1e9:.1f} GB of it {kind}"
    needed = f"stage {stage} needs {total / 1e9:.1f} GB on each {cluster.gpu.name}, {share}"
    return f"{needed}; of its {cluster.gpu.memory_bytes / 1e9:.1f} GB a run may use {available / 1e9:.1f}"


def _stage_memory(run: Run, software: Software, stage: int) -> Memory:
    shape, layout = run.shape, run.layout
    parameters = stage_parameters(run, software, stage)
    weights = shape.width * parameters
    accumulated = shape.gradient_bytes if shape.width == 2 else 0
    unaccumulated = 0 if software.fused_accumulation and accumulated == 4 else shape.width
    unaccumulated = (
        unaccumulated if accumulated != shape.width else 0
    )  # fp16 accumulates where the backward pass writes
    sharded = parameters / (layout.dp if run.zero else 1)
    activations = _activation_bytes(run, software, stage)
    waiting = _waiting_bytes(run, software, stage)
    recomputed = layer_bytes(shape, software, "none") if run.recompute == "full" else 0.0
    embedding = _end_activations(run, stage)
    if software.fused_accumulation and not software.fused_head and stage in {0, layout.pp - 1}:
        embedding += shape.width * shape.vocabulary * shape.hidden / layout.tp
    logits = _logit_bytes(shape, software) if stage == layout.pp - 1 else 0.0
    axes = sum(degree > 1 for degree in (layout.tp, layout.pp, layout.dp))
    temporary = activations + waiting + recomputed + embedding + logits
    return Memory(
        weights=weights,
        gradients=(unaccumulated + accumulated) * parameters,
        master=4 * sharded if shape.width == 2 else 0.0,
        moments=8 * sharded,
        activations=activations,
        waiting=waiting,
        recomputed=recomputed,
        embedding=embedding,
        logits=logits,
        buffers=CONTEXT_BYTES + axes * CHANNEL_BYTES,
        slack=SLACK * temporary + STATE_SLACK * (unaccumulated + accumulated + shape.width) * parameters,
    )


def _logit_bytes(shape: Shape, software: Software) -> float:
    """Logits of a micro-batch and their fp32 copy; or, with a chunked head, of a chunk, and the gradient of x."""
    width = ceil(shape.vocabulary / shape.tp)
    if not software.chunked_head:
        return (shape.width + 4.0) * shape.tokens * width
    rows = min(head_chunk(shape.tokens, shape.hidden, width), shape.tokens)
    return (shape.width + (0 if software.fused_kernels else 8)) * rows * width + shape.width * shape.elements


def _activation_bytes(run: Run, software: Software, stage: int) -> float:
    """Peak bytes of activations waiting for the backward pass."""
    shape, pp = run.shape, run.layout.pp
    chunks_of_run = chunks(run, software)
    kept = layer_bytes(shape, software, run.recompute)
    in_flight = forwards_in_flight(stage, pp, run.interleave, run.micro_batches)
    return kept * in_flight * max(chunk.layers for chunk in chunks_of_run[stage::pp])


def _waiting_bytes(run: Run, software: Software, stage: int) -> float:
    """Peak bytes that weight gradients put off keep: of as many micro-batches of each chunk as there are stages."""
    if not run.splits_backward:
        return 0.0
    shape, pp = run.shape, run.layout.pp
    layers = sum(chunk.layers for chunk in chunks(run, software)[stage::pp])
    return shape.width * shape.elements * (4 + 12 / shape.tp) * min(pp, run.micro_batches) * layers


def layer_bytes(shape: Shape, software: Software, recompute: str) -> float:
    """Activation bytes that one layer keeps of one micro-batch."""
    scale = shape.width / 2  # the formulas count 16-bit activations
    sbh, t = shape.elements, shape.tp
    if recompute == "full":
        return 2 * scale * sbh / (t if shape.sequence_parallel else 1)
    core = 5 * shape.heads * shape.sequence / shape.hidden / t
    if recompute == "selective" or software.flash_attention:
        core = 0.0
    return scale * sbh * ((34 / t if shape.sequence_parallel else 10 + 24 / t) + core)


def _end_activations(run: Run, stage: int) -> float:
    """First stage: the embedding's dropout masks in flight. Last stage: inputs of final norm and head."""
    shape, pp = run.shape, run.layout.pp
    in_flight = min(pp, run.micro_batches)
    first = shape.repeated * in_flight if stage == 0 else 0.0
    return first + (4 * shape.repeated * shape.width / 2 if stage == pp - 1 else 0.0)
