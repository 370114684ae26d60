"""The run to plan: decoder, batch, layout, recomputation and pipeline schedule."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mtnlg_model.config import WINDOW_BLOCK, ModelConfig
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.layout import Layout, Recompute, eight_bit_error, layout_error, ring_window
from mtnlg_parallel.schedules import DEFAULT, load_schedule, schedule_error, schedule_of

from .cluster import Cluster, load_cluster
from .programs import ENGINES, Software, load_software

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mtnlg_data.stream import Sample
    from mtnlg_parallel.recipe import Recipe, Train
    from mtnlg_parallel.schedules import Order, Schedule

Precision = Literal["bf16", "fp16", "fp32", "fp8", "nvfp4"]

PRODUCT_BYTES: Final = {"fp8": 1.0, "nvfp4": 0.5}
"""Bytes per factor element of products that are narrower than the weights."""

Recomputed = Recompute | Literal["operators", "alternate"]
"""What is recomputed: as in `train`; all operations but attention and every other product; or every other layer."""

STAGES: Final = {"state": 1, "gradients": 2, "parameters": 3}
"""ZeRO stage of each value of ``train.shard``."""

SHARED_GRADIENTS: Final = 2
"""Highest ZeRO stage at which ranks keep whole weights: it shards gradients and optimizer state."""

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")

MOST_PASSES: Final = 1 << 20
"""Most passes (micro-batches x chunks) that are simulated; more take minutes and gigabytes."""


class Run(NamedTuple):
    """Everything a prediction depends on.

    ``interleave`` is the number of model chunks on each stage, which ``schedule`` orders. ``zero`` 1 shards the
    optimizer's state over data-parallel ranks, 2 also gradients, 3 also weights, gathered one layer at a time (FSDP);
    over ``shards`` ranks if not over all (HSDP). In a pipeline weights are gathered once per step, since nothing is
    freed or reduced before a stage's last backward pass. Under bf16 gradients are accumulated in fp32, under fp16 in
    fp16. If documents are isolated, ``document`` is the mean length of the one that a token is in, within its sample:
    the mean square length over the mean.
    """

    model: ModelConfig
    layout: Layout
    batch: int
    micro_batch: int = 1
    recompute: Recomputed = "full"
    schedule: str = DEFAULT
    interleave: int = 1
    sequence_parallel: bool = False
    zero: int = 1
    precision: Precision = "bf16"
    offload_activations: bool = False
    shards: int | None = None
    document: float | None = None
    software: Software = load_software(ENGINES["pipeline"])
    cluster: Cluster = load_cluster("dgx-a100")

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.layout.world

    @property
    def state_shards(self) -> int:
        """Number of ranks over which the optimizer's state of the same weights is sharded."""
        return (self.shards or self.layout.copies) if self.zero else 1

    @property
    def gathered_over(self) -> int:
        """Number of ranks that together hold a layer's weights under FSDP, and gather them in each pass; else 1."""
        return self.state_shards if self.zero > 1 and self.layout.pp == 1 else 1

    @property
    def gathers_again(self) -> bool:
        """Whether a layer's weights are gathered again for backward."""
        return self.zero > SHARED_GRADIENTS and self.layout.pp == 1 and (self.layout.copies > 1 or not self.is_ours)

    @property
    def is_ours(self) -> bool:
        """Whether its program is one of this package (`Software.is_ours`)."""
        return self.software.is_ours

    @property
    def splits_backward(self) -> bool:
        """Whether its schedule has separate weight gradients."""
        return self.pipeline_schedule.splits_backward

    @property
    def pipeline_schedule(self) -> Schedule:
        """The `Schedule` that ``schedule`` names."""
        return load_schedule(self.schedule)

    def orders(self) -> tuple[Order, ...]:
        """Every stage's actions; not cached, as a search creates those of thousands of layouts."""
        return self.pipeline_schedule.orders(self.layout.pp, self.interleave, self.micro_batches)

    def with_chunks(self, chunks: int) -> Run:
        """The run with ``chunks`` chunks, and another schedule if its own cannot order that many."""
        fits = self.pipeline_schedule.takes(chunks)
        return self._replace(interleave=chunks, schedule=self.schedule if fits else schedule_of(chunks))

    def on(self, gpus: int) -> Run | None:
        """The run with as many replicas as fit; None if none fits, or if they do not divide the batch."""
        dp = gpus // (self.gpus // self.layout.dp)
        if not dp or self.batch % (dp * self.micro_batch):
            return None
        return self._replace(layout=self.layout.model_copy(update={"dp": dp}))

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step and pipeline."""
        return self.batch // (self.micro_batch * self.layout.dp)

    @property
    def width(self) -> int:
        """Bytes per weight or activation element."""
        return 4 if self.precision == "fp32" else 2

    @property
    def product_width(self) -> float:
        """Bytes per factor element of the layers' products."""
        return PRODUCT_BYTES.get(self.precision, float(self.width))

    @property
    def casts_once(self) -> bool:
        """Whether factors are narrow, a cast writes a factor and its transpose, and weights are cast once per step."""
        return self.is_ours and self.product_width <= 1

    @property
    def gradient_bytes(self) -> int:
        """Bytes per gradient element in accumulation."""
        return 2 if self.precision == "fp16" else 4

    @property
    def reduced_bytes(self) -> int:
        """Bytes per gradient element when reduced over ranks."""
        return 2 if self.software.reduces_half else self.gradient_bytes

    @property
    def added_bytes(self) -> int:
        """Bytes of traffic per parameter to accumulate a gradient: read the new one, read and write the sum."""
        return self.width + 2 * self.gradient_bytes

    @property
    def row(self) -> float:
        """Tokens that a token attends to or is attended by: its sample's, or its document's."""
        return min(self.document or inf, self.model.sequence)

    @property
    def scores_written(self) -> tuple[float, float]:
        """(Scores per query that are written to memory, blocks of queries), means over the layers; 0 scores with flash.

        This package has no flash attention with a soft cap; it computes windows by blocks, and documents one by one.
        """
        model = self.model
        if not self.software.flash_attention:
            return float(model.sequence), 1.0
        if not self.is_ours or model.attention_softcap is None or self.layout.cp > 1:
            return 0.0, 0.0
        keys, blocks = self._means(lambda window: _blocks(self.row, window))
        return keys, blocks * model.sequence / self.row

    @property
    def ring_parts(self) -> tuple[float, float]:
        """What the busiest rank of this package's ring computes (`_ring_parts`), means over the layers."""
        model, cp = self.model, self.layout.cp
        every = self.document is not None or model.attention_softcap is not None or model.positions.startswith("alibi")
        return self._means(lambda window: _ring_parts(window, every, cp, model.sequence))

    def _means(self, figures: Callable[[int | None], tuple[float, float]]) -> tuple[float, float]:
        """Means over the layers of two figures of a layer's window."""

        def mean(n: int) -> float:
            return self.model.mean_of_layers(lambda layer: figures(layer.window)[n])

        return mean(0), mean(1)

    @property
    def model_flops(self) -> float:
        """Operations of a step without recomputation: MFU counts these."""
        return self._per_step(ModelConfig.model_flops)

    @property
    def hardware_flops(self) -> float:
        """Operations of a step with recomputation: HFU counts these."""
        model, again = self.model, RECOMPUTED_SHARE[self.recompute]
        if self.recompute == "selective":
            keys = model.mean_of_layers(lambda layer: min(layer.window or self.row, self.row))
            core = 4.0 * self.batch * model.layers * model.sequence * keys * model.heads * model.head_size
            return self.model_flops + core
        return self.model_flops + again * (self._per_step(ModelConfig.hardware_flops) - self.model_flops)

    def _per_step(self, flops: Callable[[ModelConfig, int], float]) -> float:
        if self.document is None:
            return flops(self.model, self.batch)
        row = max(round(self.row), 1)  # as many tokens, in sequences as long as a document
        return flops(self.model.model_copy(update={"sequence": row}), self.batch) * self.model.sequence / row

    @property
    def shape(self) -> Run:
        """The run with one value for what a layer's cost does not depend on, so that many runs share its cost."""
        layout = self.layout.model_copy(update={"pp": min(self.layout.pp, 2)} | ({} if self.zero > 1 else {"dp": 1}))
        return self._replace(layout=layout, interleave=1, schedule=self.schedule if self.splits_backward else DEFAULT)

    @property
    def tokens(self) -> int:
        """Tokens per micro-batch on a rank."""
        return self.micro_batch * self.model.sequence // self.layout.cp

    @property
    def elements(self) -> int:
        """Elements of a micro-batch's activation, n h."""
        return self.tokens * self.model.hidden

    @property
    def repeated(self) -> float:
        """Elements per rank of an activation that tensor parallelism replicates and sequence parallelism slices."""
        return self.elements / (self.layout.tp if self.sequence_parallel else 1)

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(columns, depth) of a rank's four weight matrices: qkv, attention output, MLP up, MLP down."""
        model, t = self.model, self.layout.tp
        h, attention = model.hidden, model.heads * model.head_size
        up = model.ffn * (2 if model.gated else 1)
        qkv = attention + 2 * model.kv_heads * model.head_size
        return (qkv // t, h), (h, attention // t), (up // t, h), (h, model.ffn // t)

    @property
    def layer_parameters(self) -> int:
        """Elements of these four matrices."""
        return sum(columns * depth for columns, depth in self.linears)

    @property
    def table(self) -> float:
        """Elements of a rank's part of the token table."""
        return self.model.vocabulary * self.model.embedding_size / self.layout.tp

    @property
    def attended(self) -> float:
        """Share of a causal row's work that remains with windows, averaged over the layers."""
        return self.model.mean_of_layers(lambda layer: _attended(self.row, layer.window))

    def __str__(self) -> str:
        """Layout, micro-batch, recomputation and schedule in words."""
        words = [str(self.layout), f"micro-batch {self.micro_batch}", f"recompute {self.recompute}"]
        words += [self.precision] if self.precision != "bf16" else []
        words += [f"zero {self.zero}" + (f" over {self.shards} ranks" if self.shards else "")] if self.zero > 1 else []
        words += [] if self.pipeline_schedule.widespread else [self.schedule]
        words += [f"interleave {self.interleave}"] if self.interleave > 1 else []
        words += ["sequence parallel"] if self.sequence_parallel else []
        words += ["activations offloaded"] if self.offload_activations else []
        words += [f"documents of {self.document:,.0f} tokens"] if self.document else []
        return ", ".join(words)


RECOMPUTED_SHARE: Final = {"none": 0.0, "selective": 0.0, "operators": 0.5, "alternate": 0.5, "full": 1.0}
"""Share of the layers' forward operations that is recomputed, not counting the attention core alone."""


def train_run(recipe: Recipe, document: float | None = None) -> Run:
    """The run that ``train`` makes of a recipe; ``document`` is the `document_length` of isolated documents.

    Without it they are taken to fill their samples. Raises ``UsageFailure`` if the schedule is unknown or does not fit.
    """
    train = recipe.train
    if reason := schedule_error(recipe.layout, recipe.model, train.schedule, train.chunks):
        raise UsageFailure(reason)
    return Run(
        model=recipe.model,
        layout=recipe.layout,
        batch=train.batch,
        micro_batch=train.micro_batch,
        recompute=train.recompute,
        schedule=train.schedule,
        interleave=train.chunks,
        sequence_parallel=train.sequence_parallel and recipe.layout.tp > 1,
        precision=train.precision,
        offload_activations=train.offload_activations,
        zero=STAGES[train.shard],
        document=(document or float(recipe.model.sequence)) if recipe.data.isolated else None,
        software=_train_software(train),
    )


SAMPLES: Final = 512
"""Samples whose documents are measured, evenly spread over a stream's."""


@cache
def folder_document_length(data: Path, sequence: int) -> float:
    """`document_length` over the samples of a data folder, which a process reads once."""
    from mtnlg_data.stream import open_stream  # noqa: PLC0415  (numpy, which --help does not need)

    stream = open_stream(data / "tokens", sequence)
    return document_length(stream.sample, len(stream), sequence)


def document_length(sample: Callable[[int], Sample], samples: int, sequence: int) -> float:
    """Mean length of the document that a token is in, within its sample, over ``samples`` samples."""
    lengths = Counter[int]()
    for number in range(0, samples, -(-samples // SAMPLES)):
        begins = sample(number).begins
        starts = [0] if begins is None else [0, *(at for at in begins[:-1].nonzero()[0].tolist() if at)]
        lengths.update(end - start for start, end in pairwise([*starts, sequence]))
    return sum(n * length**2 for length, n in lengths.items()) / sum(n * length for length, n in lengths.items())


def _train_software(train: Train) -> Software:
    """The program that ``train`` runs. A user's engine is planned as the default engine."""
    engine = load_software(ENGINES.get(train.engine, ENGINES["pipeline"]))
    changes = {} if train.kernels else {"fused_kernels": False}
    return engine.model_copy(update=changes | {"reduces_half": train.gradients == "bf16"})


def run_error(run: Run, gpus: int | None = None) -> str | None:
    """Why this run is impossible, with the nearest possible run; None if possible. `memory` checks memory."""
    layout = run.layout
    if reason := _decoder_error(run):
        return reason
    if run.batch % (layout.dp * run.micro_batch):
        multiple = layout.dp * run.micro_batch
        near = max(round(run.batch / multiple), 1) * multiple
        fitting = [dp for dp in range(1, 2 * layout.dp) if run.batch % (dp * run.micro_batch) == 0]
        closest = f"dp {min(fitting, key=lambda dp: abs(dp - layout.dp))} or " if fitting else ""
        product = f"dp {layout.dp} x micro-batch {run.micro_batch}"
        return f"{product} does not divide the batch {run.batch}; use {closest}batch {near}"
    if gpus is not None and run.gpus > gpus:
        replicas = gpus // (run.gpus // layout.dp)
        fewer = f"use dp={replicas}, or" if replicas else "use"
        needed = -(-run.gpus // run.cluster.node.gpus)
        return f"{layout} is {run.gpus} GPUs and there are {gpus}; {fewer} --nodes {needed}"
    chunks = layout.pp * run.interleave
    if run.micro_batches * chunks > MOST_PASSES:
        passes = f"{run.micro_batches:,} micro-batches through {chunks} chunks"
        return f"{passes} are more than the planner simulates; use a larger micro-batch or dp, or a smaller batch"
    return _precision_error(run) or _schedule_error(run)


def _precision_error(run: Run) -> str | None:
    """Why this program or GPU cannot multiply in this precision; None if both can."""
    gpu, ours = run.cluster.gpu, run.is_ours
    half = "bf16" if gpu.bf16 else "fp32, or fp16 with another --software" if ours else "fp16"
    if run.precision == "fp16" and ours:
        return f"{run.software.name} does not support fp16; use --precision {half}"
    if run.precision in PRODUCT_BYTES and not gpu.narrow_flops(run.product_width):
        return f"{gpu.name} has no {8 * run.product_width:.0f}-bit products; use --precision {half}"
    if run.precision == "bf16" and not gpu.bf16:
        return f"{gpu.name} has no bfloat16 products; use --precision {half}"
    if ours and run.precision in PRODUCT_BYTES:
        return eight_bit_error(run.layout, run.model, run.micro_batch)
    return None


def nearest(number: int, choices: Iterable[int], count: int = 2, between: str = " or ") -> str:
    """The ``count`` choices nearest to a number, in ascending order, as text."""
    return between.join(map(str, sorted(sorted(choices, key=lambda choice: abs(choice - number))[:count])))


def _decoder_error(run: Run) -> str | None:
    """Why this decoder cannot be cut by this layout and sharding; None if it can."""
    layout, model = run.layout, run.model
    if reason := layout_error(layout, model, run.sequence_parallel and layout.tp > 1):
        return reason
    if run.shards and run.zero < SHARED_GRADIENTS:
        return f"shards {run.shards} needs zero 2 or 3"
    if run.shards and layout.copies % run.shards:
        return f"shards {run.shards} does not divide dp x cp = {layout.copies} ranks"
    return None


def _schedule_error(run: Run) -> str | None:
    v, pp, software = run.interleave, run.layout.pp, run.software
    abilities = {
        "slices_sequence": ("sequence parallelism", run.sequence_parallel),
        "interleaves": ("an interleaved schedule", v > 1),
        "any_schedule": (f"the schedule {run.schedule}", not run.pipeline_schedule.widespread),
        "slices_context": ("context parallelism", run.layout.cp > 1),
        "shards_weights": ("FSDP", run.zero > 1),
        "multiplies_fp8": ("8-bit products", run.precision in PRODUCT_BYTES),
    }
    needed = [name for name, (_, asked) in abilities.items() if asked]
    if lacking := next((name for name in needed if not getattr(software, name)), None):
        programs = map(load_software, (*ENGINES.values(), "megatron-core"))
        able = (each for each in programs if all(getattr(each, name) for name in needed))
        fit = next((each.name for each in able if not run_error(run._replace(software=each))), "")
        advice = f"; use --software {fit}" if fit else ", and no other program supports all of this run"
        return f"{software.name} does not support {abilities[lacking][0]}{advice}"
    if run.offload_activations and software.name == ENGINES["deepspeed"]:
        return f"{software.name} keeps activations on the device; use --software {ENGINES['pipeline']}"
    if software.is_ours and run.recompute not in RECOMPUTE:
        return f"{software.name} does not support recompute {run.recompute}; use --recompute {' or '.join(RECOMPUTE)}"
    if software.is_ours:
        sharded = f"{software.name} has zero {run.zero} at pp 1 and over all dp x cp ranks; use --zero 1"
        unfit = run.zero > 1 and (pp > 1 or run.shards)
        return sharded if unfit else schedule_error(run.layout, run.model, run.schedule, v)
    if run.model.layers % pp and not software.uneven_stages:
        near = nearest(pp, (n for n in range(1, run.model.layers + 1) if run.model.layers % n == 0))
        needs = f"{software.name} needs equally many layers per stage"
        return f"{needs}, and pp {pp} does not divide the {run.model.layers}; use pp {near}"
    return _interleave_error(run) if v > 1 else None


def _interleave_error(run: Run) -> str | None:
    """Why Megatron-LM cannot interleave this run; None if it can."""
    v, pp, uneven = run.interleave, run.layout.pp, run.software.uneven_stages
    if pp == 1:
        return f"interleave {v} needs pp of 2 or more; use --interleave 1"
    if pp * v > run.model.layers or (run.model.layers % (pp * v) and not uneven):
        fitting = [n for n in range(1, run.model.layers // pp + 1) if run.model.layers % (pp * n) == 0]
        instead = f"use --interleave {' or '.join(map(str, fitting[:4]))}" if fitting else "use --interleave 1"
        return f"pp {pp} x interleave {v} does not divide the {run.model.layers} layers; {instead}"
    if not uneven and run.micro_batches % pp:
        return f"interleaving needs a multiple of pp {pp} micro-batches, not {run.micro_batches}; use --interleave 1"
    return None


def _attended(row: float, window: int | None) -> float:
    """Share of the (query, key) pairs of a causal row that are within a window."""
    width = min(window or row, row)
    return width * (2 * row - width + 1) / (row * (row + 1))


def _blocks(row: float, window: int | None) -> tuple[float, float]:
    """(Keys per query of a row, blocks of queries) where attention is computed block by block for windows."""
    if (window or row) >= row:
        return row, 1.0
    return min(_attended(row, window) * (row + 1) / 2 + WINDOW_BLOCK, row), row / WINDOW_BLOCK


@cache
def _ring_parts(window: int | None, every: bool, cp: int, sequence: int) -> tuple[float, float]:
    """Squares of sequence / cp queries and keys that the busiest of a ring's ranks computes: (by products, by flash).

    Products in fp32 take no part outside the window, and parts with pairs outside it, or ``every`` part; those of a
    rank's own keys whole, where flash attention takes what the causal mask leaves. Of others' keys it is half a square.
    """

    def parts(rank: int) -> tuple[float, float]:
        windows = [ring_window(window, rank, other, cp, sequence) for other in range(cp)]
        products = [every or each is not None for each in windows if each != 0]
        return (sum(products) + (every or windows[rank] is not None)) / 2, (len(products) - sum(products)) / 2

    return max(map(parts, range(cp)))
