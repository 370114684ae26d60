"""Bytes on each GPU of every stage, by kind, and whether they fit.

Model state in bytes per parameter in 16-bit training (paper.md section 3): weights 2, gradients 2, fp32 accumulated
gradients 4, master weights 4, Adam's moments 8; ZeRO-1 divides the last two by dp. If a gradient is added to its fp32
sum as it arrives, or by the matrix product itself, no 16-bit gradients are kept. fp32 training has neither master
weights nor a second gradient.

Activations: bytes that a layer keeps of a micro-batch (`costs.activations`) times layers times micro-batches in flight
(from the schedule). A layer being recomputed keeps all its activations. A deferred weight gradient keeps the factors of
a layer's four products. FSDP shards fp32 weights, gradients and moments, and gathers one layer at a time; our engine
shards 16-bit and master weights.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_parallel.layout import head_chunk
from mtnlg_parallel.schedules.schedule import PASSES_ON_DEVICE

from .costs.activations import core_bytes, layer_bytes
from .costs.attention import ring_bytes
from .costs.layer import sums_apart
from .programs import ENGINES
from .run import SHARED_GRADIENTS
from .step import stage_layers, stage_parameters

if TYPE_CHECKING:
    from .cluster import Cluster
    from .run import Run

LOSS_BYTES: Final = 8
"""Bytes per logit of the fp32 cross entropy: logits, and their gradient or, before it, their exponentials."""

PLAIN_LOSS_BYTES: Final = 12
"""Bytes per logit of PyTorch's cross entropy in backward, with logits freed: log-softmax, its gradient, the logits'."""

SHARDED_LOSS_BYTES: Final = 16
"""The same for sliced logits, by separate operations: logits, logits less their maximum, exponentials, result."""

CONTEXT_BYTES: Final = 1.2e9
"""GPU memory in bytes in use before the first tensor: driver context, library workspaces."""

CHANNEL_BYTES: Final = 0.25e9
"""Bytes of one communicator's buffers; a rank has one communicator per parallel axis."""

SLACK: Final = 0.03
"""Allocator overhead on temporary tensors, as a share: rounding and fragmentation."""

STATE_SLACK: Final = 0.01
"""Allocator overhead on weights and gradients, which are never freed, as a share."""

GRADIENT_BUCKETS: Final = 4e9
"""Bytes of DeepSpeed's buckets of 16-bit gradients, which ``Software.bucket_bytes`` includes."""

MARGIN: Final = 0.025
"""Share of GPU memory that must stay free for a run to count as fitting."""


class Memory(NamedTuple):
    """Bytes on each GPU of a stage.

    ``activations``: of the layers. ``deferred_gradients``: factors of deferred weight gradients. ``recomputed``: the
    layer being recomputed, and with DeepSpeed's engine what its backward pass adds. ``embedding``: masks and inputs
    kept by embedding, final norm and head, and the token table's 16-bit gradient if only layers add theirs in the
    product. ``logits``: peak of the loss. ``gathered``: what FSDP holds besides its shards. ``messages``: DeepSpeed's
    copies of messages between stages.
    """

    weights: float
    gradients: float
    master: float
    moments: float
    activations: float
    deferred_gradients: float
    recomputed: float
    embedding: float
    logits: float
    gathered: float
    messages: float
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


def memory(run: Run) -> tuple[Memory, ...]:
    """Bytes on each GPU, stage by stage."""
    return tuple(_stage_memory(run, stage) for stage in range(run.layout.pp))


def fullest_stage(stages: tuple[Memory, ...]) -> int:
    """Index of the stage that needs the most memory."""
    return max(range(len(stages)), key=lambda stage: stages[stage].total)


def memory_error(stages: tuple[Memory, ...], cluster: Cluster) -> str | None:
    """Why the run does not fit, with the figures; None if it fits."""
    stage = fullest_stage(stages)
    total, available = stages[stage].total, cluster.gpu.memory_bytes * (1 - MARGIN)
    if total <= available:
        return None
    kind = max(stages[stage]._fields, key=lambda name: getattr(stages[stage], name))
    share = f"{getattr(stages[stage], kind) / 1e9:.1f} GB of it {kind.replace('_', ' ')}"
    needed = f"stage {stage} needs {total / 1e9:.1f} GB on each {cluster.gpu.name}, {share}"
    return f"{needed}; of its {cluster.gpu.memory_bytes / 1e9:.1f} GB a run may use {available / 1e9:.1f}"


def _stage_memory(run: Run, stage: int) -> Memory:
    layout = run.layout
    parameters = stage_parameters(run, stage)
    state, gradients = run.state_shards, run.state_shards if run.zero > 1 else 1
    fsdp = run.zero > 1 and not run.is_ours  # which shards fp32 weights, and gathers them in 16 bits
    weights, shards = 4 if fsdp else run.width, state if fsdp or run.zero > SHARED_GRADIENTS else 1
    accumulated = _gradient_bytes(run)
    activations = _activation_bytes(run, stage)
    waiting = _waiting_bytes(run, stage)
    recomputed = _recomputed_bytes(run)
    recomputed += ring_bytes(run) if run.is_ours and layout.cp > 1 else 0.0
    if run.splits_backward and run.recompute == "full":
        # The last layer's factors wait in place of all that it keeps at work.
        last = _factor_bytes(run) + (run.width * run.table if layout.pp == 1 else 0.0)
        waiting, recomputed = waiting - _factor_bytes(run), max(recomputed, last)
    embedding = _end_activations(run, stage)
    if run.software.fused_accumulation and run.is_ours and stage in {0, layout.pp - 1}:
        embedding += run.width * run.table
    logits = _logit_bytes(run, recomputed) if stage == layout.pp - 1 else 0.0
    messages = 0.0
    if run.software.name == ENGINES["deepspeed"]:
        table = run.width * run.table if stage == layout.pp - 1 else 0.0
        waits = layout.pp == 1 and run.model.tied  # for the embedding's part of the same gradient
        recomputed += _layer_gradient_bytes(run) + (table if waits else 0.0)
        logits = max(logits + (table if waits else _added_bytes(run) / run.width * table) - recomputed, 0.0)
        messages = _message_bytes(run, stage)
    axes = sum(degree > 1 for degree in (layout.tp, layout.pp, layout.copies))
    # ZeRO's buckets; the fp16 optimizer also copies its share of the gradients to fp32.
    buckets = run.software.bucket_bytes if run.zero else 0.0
    if buckets and state > 1:
        buckets += (run.gradient_bytes - 2) / 2 * GRADIENT_BUCKETS
    copied = 4 * parameters / state if buckets and run.precision == "fp16" else 0.0
    temporary = activations + waiting + recomputed + embedding + logits + messages
    # Our update copies 16-bit sums to fp32, when activations are gone.
    in_fp32 = 4 * parameters / state if run.is_ours and run.reduced_bytes == 2 else 0.0
    return Memory(
        weights=weights * parameters / shards + _cast_bytes(run, stage),
        gradients=accumulated * parameters / gradients + copied + max(_apart_bytes(run) - logits, 0.0),
        master=run.software.master_bytes * parameters / state if run.width == 2 and not fsdp else 0.0,
        moments=8 * parameters / state,
        activations=activations,
        deferred_gradients=waiting,
        recomputed=recomputed,
        embedding=embedding,
        logits=logits,
        gathered=_gathered_bytes(run, parameters),
        messages=messages,
        buffers=CONTEXT_BYTES + axes * CHANNEL_BYTES + buckets + max(in_fp32 - temporary, 0.0),
        slack=SLACK * temporary + STATE_SLACK * (weights / shards + accumulated / gradients) * parameters,
    )


def _cast_bytes(run: Run, stage: int) -> float:
    """Bytes of the layers' 8-bit weights and their transposes, if both are kept; of one layer if sharded."""
    if not run.casts_once:
        return 0.0
    layers = 1 if run.gathers_again else sum(stage_layers(run, stage))
    return 2.0 * layers * run.layer_parameters


def _gradient_bytes(run: Run) -> int:
    """Bytes of gradients per parameter: the sum, and a micro-batch's gradients if they are kept until backward ends."""
    if run.zero > 1 and not run.is_ours:
        return 4
    kept = run.reduced_bytes
    at_once = run.software.fused_accumulation or run.is_ours
    return kept if run.width != 2 or kept == run.width or at_once else kept + run.width


def _apart_bytes(run: Run) -> float:
    """Bytes of the largest weight gradient of 8-bit factors, if a separate operation adds it to its sum.

    It exists after the loss.
    """
    width = float(run.reduced_bytes)
    return width * max(n * k for n, k in run.linears) if sums_apart(run) else 0.0


def _gathered_bytes(run: Run, parameters: int) -> float:
    """Bytes that FSDP holds besides its shards: the current layer, the next, the head's table, one layer's gradients.

    In a pipeline: all weights, and the sums of all gradients. Our engine: gradients of two layers or tables, one of
    which is being reduced, of another layer if it defers a product, and, if weights are sharded, the current layer's
    and the next's or the head's.
    """
    if (run.gathered_over if run.is_ours else run.zero) < 2:
        return 0.0
    layer, table = run.layer_parameters, run.table
    width = run.reduced_bytes
    if run.is_ours:
        gathered = run.width * (layer + max(layer, table)) if run.gathers_again else 0.0
        return gathered + width * (2 * max(layer, table) + (layer if run.layout.tp > 1 else 0))
    if run.layout.pp > 1:
        return (2.0 + width) * parameters + 2 * max(layer, table)
    if not run.gathers_again:
        return 2.0 * parameters + (2 + width) * layer
    return 2 * (2 * layer + table) + (2 + width) * max(layer, table)


def _recomputed_bytes(run: Run) -> float:
    """Bytes that a layer recomputes; under sequence parallelism also a gathered input and its gradient."""
    gathered = 2 * run.width * run.elements if run.sequence_parallel and run.recompute == "full" else 0.0
    if run.recompute in {"full", "alternate"}:
        return layer_bytes(run, "none") + gathered
    if run.recompute == "operators":
        return layer_bytes(run, "none") - layer_bytes(run, "operators")
    return core_bytes(run) if run.recompute == "selective" else 0.0


def _logit_bytes(run: Run, recomputed: float) -> float:
    """Bytes of a micro-batch's logits and their fp32 copy; with a chunked head, of a chunk's logits and x's gradient.

    Eager programs' sliced logits need most, at a time when no layer is recomputed; they add the head's gathered input
    and its gradient unless the head's product gathers piece by piece.
    """
    width = ceil(run.model.vocabulary / run.layout.tp)
    if run.software.fused_loss:
        return 2.0 * run.width * run.tokens * width
    if run.software.eager and run.layout.tp > 1:
        gathered = 0 if run.software.overlap_forward else 2 * run.width * run.elements
        return max((run.width + SHARDED_LOSS_BYTES) * run.tokens * width + gathered - recomputed, 0.0)
    if not run.is_ours:
        return (PLAIN_LOSS_BYTES if run.software.eager else run.width + LOSS_BYTES) * run.tokens * width
    depth = run.model.embedding_size
    rows = min(head_chunk(run.tokens, depth, width), run.tokens)
    return (run.width + (0 if run.software.fused_kernels else 8)) * rows * width + run.width * run.tokens * depth


def _layer_gradient_bytes(run: Run) -> float:
    """Bytes that DeepSpeed's engine adds to a layer: its largest weight gradient; if recomputed, also the MLP's inner.

    The head's gradient stays from the loss on until it is added: at once, or with that of a tied embedding on the same
    stage.
    """
    inner = run.tokens * run.model.ffn / run.layout.tp if run.recompute == "full" else 0.0
    return run.width * inner + _added_bytes(run) * max(columns * depth for columns, depth in run.linears)


def _added_bytes(run: Run) -> int:
    """Bytes per element of a gradient while DeepSpeed adds it to its sum: a 16-bit gradient has an fp32 copy."""
    return run.width + 4 if run.width == 2 else run.width


def _message_bytes(run: Run, stage: int) -> float:
    """Bytes of DeepSpeed's message copies: each pass in flight keeps what it sent and received; receives have a buffer.

    Messages are sliced if tensor-parallel ranks hold replicas. A received message is then kept whole only as the
    layer's input, and a received gradient is gathered.
    """
    layout, size = run.layout, run.width * run.repeated
    in_flight = run.pipeline_schedule.in_flight(stage, layout.pp, 1, run.micro_batches)
    sliced = layout.tp > 1 and not run.sequence_parallel
    sent = in_flight + 1 if stage < layout.pp - 1 else 0
    received = (1 if sliced else in_flight + 1) if stage else 0
    return size * (sent + received) / (layout.tp if sliced else 1) + (size if sliced and sent else 0.0)


def _activation_bytes(run: Run, stage: int) -> float:
    """Peak bytes of the layers' activations that are kept for backward."""
    pp, layers = run.layout.pp, stage_layers(run, stage)
    kept = layer_bytes(run, run.recompute)
    in_flight = run.pipeline_schedule.in_flight(stage, pp, run.interleave, run.micro_batches)
    if run.offload_activations:
        return kept * min(in_flight, PASSES_ON_DEVICE) * max(layers)
    return kept * _most_layers(layers, in_flight, pp, run.micro_batches)


def _most_layers(layers: tuple[int, ...], in_flight: int, pp: int, micro_batches: int) -> int:
    """Peak number of layers in flight on a stage, with ``in_flight`` passes: each backward frees one for a forward."""
    if min(layers) == max(layers):
        return in_flight * layers[0]
    groups = [min(pp, micro_batches - first) for first in range(0, micro_batches, pp)][: 2 * len(layers)]
    forwards = [n for size in groups for n in layers for _ in range(size)]
    backwards = [n for size in groups for n in reversed(layers) for _ in range(size)]
    flying = most = sum(forwards[:in_flight])
    for comes, goes in zip(forwards[in_flight:], backwards, strict=False):
        flying += comes - goes
        most = max(most, flying)
    return most


def _waiting_bytes(run: Run, stage: int) -> float:
    """Peak bytes that deferred weight gradients keep; our own engine defers one to overlap with a collective."""
    if not run.splits_backward:
        one = run.software.name == ENGINES["pipeline"] and run.layout.tp > 1
        return _factor_bytes(run) / len(run.linears) if one else 0.0
    passes = run.pipeline_schedule.waiting(stage, run.layout.pp, run.interleave, run.micro_batches)
    return _factor_bytes(run) * passes * max(stage_layers(run, stage))


def _factor_bytes(run: Run) -> float:
    """Bytes of the factors of weight gradients, per layer and pass."""
    width = 1 if run.casts_once else run.width
    return float(width * sum(run.tokens * (columns + depth) for columns, depth in run.linears))


def _end_activations(run: Run, stage: int) -> float:
    """Bytes of the embedding's dropout masks in flight (first stage), and of final norm's and head's inputs (last)."""
    pp = run.layout.pp
    in_flight = min(pp, run.micro_batches)
    first = run.repeated * in_flight if stage == 0 and run.model.dropout else 0.0
    return first + (4 * run.repeated * run.width / 2 if stage == pp - 1 else 0.0)
