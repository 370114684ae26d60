"""The run to plan: decoder, batch, layout, recomputation and pipeline schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from mtnlg_model.config import ModelConfig  # noqa: TC001  (a field of a NamedTuple)
from mtnlg_parallel.layout import Layout, Recompute, Schedule, layout_error, schedule_error

from .cluster import ENGINES, load_software

if TYPE_CHECKING:
    from mtnlg_parallel.recipe import Recipe

    from .cluster import Software

Precision = Literal["bf16", "fp16", "fp32"]

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


class Shape(NamedTuple):
    """The part of a run that a layer's cost depends on: all but numbers of layers and micro-batches."""

    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    micro_batch: int
    tp: int
    recompute: Recompute
    sequence_parallel: bool
    width: int
    gradient_bytes: int
    splits_backward: bool

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def elements(self) -> int:
        """Elements of a micro-batch's activation, n h."""
        return self.tokens * self.hidden

    @property
    def repeated(self) -> float:
        """Elements a rank of activations that tensor parallelism replicates; sequence parallelism slices them."""
        return self.elements / (self.tp if self.sequence_parallel else 1)

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(columns, depth) of a rank's four weight matrices: qkv, attention output, MLP up, MLP down."""
        h, t = self.hidden, self.tp
        return (3 * h // t, h), (h, h // t), (4 * h // t, h), (h, 4 * h // t)

    @property
    def added_bytes(self) -> int:
        """Memory traffic a parameter of accumulating a gradient: read the new, read and write the accumulated."""
        return self.width + 2 * self.gradient_bytes


class Run(NamedTuple):
    """Everything a prediction depends on except the cluster and its software.

    ``interleave`` is the number of model chunks on each stage, 1 for plain 1F1B. With ``splits_backward`` weight
    gradients wait until a stage would be idle (zero-bubble). ``zero`` 1 shares the optimizer's state among
    data-parallel ranks. Under bf16 gradients are accumulated in fp32, under fp16 in fp16.
    """

    model: ModelConfig
    layout: Layout
    batch: int
    micro_batch: int = 1
    recompute: Recompute = "full"
    interleave: int = 1
    sequence_parallel: bool = False
    zero: int = 1
    precision: Precision = "bf16"
    splits_backward: bool = False

    @property
    def schedule(self) -> Schedule:
        """The schedule by the name of ``train.schedule``."""
        return "zero-bubble" if self.splits_backward else "interleaved" if self.interleave > 1 else "1f1b"

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step through each pipeline."""
        return self.batch // (self.micro_batch * self.layout.dp)

    @property
    def width(self) -> int:
        """Bytes of a weight or an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def gradient_bytes(self) -> int:
        """Bytes in which a gradient is accumulated and reduced."""
        return 2 if self.precision == "fp16" else 4

    @property
    def shape(self) -> Shape:
        """What a layer's cost depends on."""
        model = self.model
        return Shape(
            model.hidden,
            model.heads,
            model.sequence,
            model.vocabulary,
            self.micro_batch,
            self.layout.tp,
            self.recompute,
            self.sequence_parallel,
            self.width,
            self.gradient_bytes,
            self.splits_backward,
        )

    def __str__(self) -> str:
        """Layout, micro-batch, recomputation and schedule in words."""
        words = [str(self.layout), f"micro-batch {self.micro_batch}", f"recompute {self.recompute}"]
        words += ["zero-bubble"] if self.splits_backward else []
        words += [f"interleave {self.interleave}"] if self.interleave > 1 else []
        words += ["sequence parallel"] if self.sequence_parallel else []
        return ", ".join(words)


def train_run(recipe: Recipe) -> Run:
    """What ``train`` does with a recipe."""
    train = recipe.train
    return Run(
        model=recipe.model,
        layout=recipe.layout,
        batch=train.batch,
        micro_batch=train.micro_batch,
        recompute=train.recompute,
        interleave=train.chunks,
        sequence_parallel=train.sequence_parallel and recipe.layout.tp > 1,
        precision=train.precision,
        splits_backward=train.schedule == "zero-bubble",
    )


def train_software(run: Run, fused_kernels: bool = True) -> Software:
    """The program that ``train`` runs: which engine depends on the schedule."""
    engine = load_software(ENGINES[run.schedule != "1f1b"])
    return engine if fused_kernels else engine.model_copy(update={"fused_kernels": False})


def run_error(run: Run, software: Software, gpus: int | None = None, node: int = 8) -> str | None:
    """Why this run is impossible, with the nearest possible one; None if possible. `memory` checks memory."""
    layout, model = run.layout, run.model
    if reason := layout_error(layout, model, run.sequence_parallel and layout.tp > 1):
        return reason
    if run.batch % (layout.dp * run.micro_batch):
        multiple = layout.dp * run.micro_batch
        near = max(round(run.batch / multiple), 1) * multiple
        fitting = [dp for dp in range(1, 2 * layout.dp) if run.batch % (dp * run.micro_batch) == 0]
        closest = f"dp {min(fitting, key=lambda dp: abs(dp - layout.dp))} or " if fitting else ""
        product = f"dp {layout.dp} x micro-batch {run.micro_batch}"
        return f"{product} does not divide the batch {run.batch}; use {closest}batch {near}"
    if gpus is not None and layout.world > gpus:
        return f"{layout} is {layout.world} GPUs and there are {gpus}; {_smaller_layout(layout, gpus, node)}"
    return _schedule_error(run, software)


def _schedule_error(run: Run, software: Software) -> str | None:
    v, pp = run.interleave, run.layout.pp
    abilities = {
        "sequence parallelism": (run.sequence_parallel, software.slices_sequence),
        "an interleaved schedule": (v > 1, software.interleaves),
        "a zero-bubble schedule": (run.splits_backward, software.splits_backward),
    }
    if lacking := next((name for name, (needed, there) in abilities.items() if needed and not there), None):
        return f"{software.name} has not got {lacking}; use --software {ENGINES[0]}"
    if software.balanced_stages:
        return schedule_error(run.layout, run.model, run.schedule, v)
    if software.interleaves and run.model.layers % pp:
        fitting = [n for n in range(1, run.model.layers + 1) if run.model.layers % n == 0]
        nearest = sorted(sorted(fitting, key=lambda n: abs(n - pp))[:2])
        return (
            f"{software.name} needs as many layers on every stage, and pp {pp} does not divide the {run.model.layers}; "
            f"use pp {' or '.join(map(str, nearest))}"
        )
    return _interleave_error(run) if v > 1 else None


def _interleave_error(run: Run) -> str | None:
    """Why Megatron-LM cannot interleave this run; None if it can."""
    v, pp = run.interleave, run.layout.pp
    if pp == 1:
        return f"interleave {v} needs pp of 2 or more; use --interleave 1"
    if run.model.layers % (pp * v):
        fitting = [n for n in range(1, run.model.layers // pp + 1) if run.model.layers % (pp * n) == 0]
        instead = f"use --interleave {' or '.join(map(str, fitting[:4]))}" if fitting else "use --interleave 1"
        return f"pp {pp} x interleave {v} does not divide the {run.model.layers} layers; {instead}"
    if run.micro_batches % pp:
        return f"interleaving needs a multiple of pp {pp} micro-batches, not {run.micro_batches}; use --interleave 1"
    return None


def _smaller_layout(layout: Layout, gpus: int, node: int) -> str:
    """Advice where a layout needs more GPUs than there are: fewer replicas, or more nodes."""
    needed = -(-layout.world // node)
    if layout.tp * layout.pp <= gpus:
        return f"use dp={gpus // (layout.tp * layout.pp)}, or --nodes {needed}"
    return f"use --nodes {needed}"


def padded_vocabulary(tokens: int, tp: int) -> int:
    """Vocabulary size as Megatron pads it: a multiple of 128 tp."""
    multiple = 128 * tp
    return -(-tokens // multiple) * multiple
