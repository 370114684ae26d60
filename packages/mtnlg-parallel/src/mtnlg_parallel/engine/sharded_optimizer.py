"""ZeRO that reduces gradients while backward runs, with AdamW on this rank's share of every bucket.

A bucket holds some parameters of one part of the decoder, contiguous in flat buffers: weights in the model's dtype,
gradients in the dtype of ``train.gradients``. Both are split evenly over the data-parallel ranks, at any element; with
context parallelism, whose ranks hold the same weights too, over dp x cp ranks.

    add, product      each micro-batch adds to the bucket's gradients; the first overwrites them
    reduce            after the last micro-batch's gradients: reduce-scatter to the ranks that own the shares
    norm              sum of squares of the shares, each parameter once; the caller sums it over all ranks
    update            AdamW on this rank's share of the fp32 master weights, without frozen parameters
    gather            all-gather of the updated weights, first layer first; each layer waits for its own weights

``train.shard`` says what else than the optimizer's state a rank keeps only its share of, of matrices that are not
summed over other ranks, but for the token embedding's projections. Then a bucket holds those of one module (embedding,
a layer, or the head):

    "gradients"    the gradients' buffer exists from a micro-batch's first gradient until it is reduced; the shares of
                   the micro-batches are added. One bucket is reduced while the next is filled; a deferred product
                   may keep another
    "parameters"   also the weights' buffer exists only while the module runs, and is gathered beside the module before
                   it: once for forward, once for backward with its recomputation

Two kinds of gradients are first summed over other ranks, so their buckets are reduced after the last backward: those of
parameters that each tensor-parallel rank applies to its part of the sequence, and those of a tied token table of which
first and last stage hold a copy each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torch.optim.adamw import adamw

from mtnlg_parallel.model import products
from mtnlg_parallel.waiting import wait_for

from .contract import MOMENTS, Fragment, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.distributed import ProcessGroup, Work
    from torch.nn import Module

    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_parallel.model.eight_bit import Factor
    from mtnlg_parallel.model.stage_modules import LocalParameter
    from mtnlg_parallel.recipe import Train

    from .contract import StepSettings

BUCKET_ELEMENTS = 1 << 25
"""Most elements per bucket, unless one parameter has more: 128 MiB of fp32 gradients, enough for full bandwidth."""


ROW = 1024
"""Number of squares that are summed in fp32; the sums of rows are added in fp64."""


class BucketKind(NamedTuple):
    """Properties that all parameters of a bucket share."""

    chunk: int
    decays: bool  # matrices, whose weights decay
    counts: bool  # in the gradient norm; copies on other ranks do not
    summed_over: ProcessGroup | None  # besides the data-parallel ranks
    module: Module | None = None  # embedding, layer or head; None unless gradients are sharded


class Bucket:
    """Parameters of one kind, in flat buffers whose share [begin, end) this rank updates."""

    def __init__(
        self,
        kind: BucketKind,
        parameters: Sequence[LocalParameter],
        dp_group: ProcessGroup,
        train: Train,
        optimizer: ShardedOptimizer,
    ) -> None:
        self.kind, self.parameters, self._group, self._optimizer = kind, parameters, dp_group, optimizer
        self.shards_weights = kind.module is not None and train.shard == "parameters"
        first, dtype = parameters[0].parameter, torch.bfloat16 if train.gradients == "bf16" else torch.float32
        self._elements = sum(local.parameter.numel() for local in parameters)
        ranks, rank = dp_group.size(), dp_group.rank()
        width = -(-self._elements // ranks)
        self.begin, self.end = rank * width, (rank + 1) * width
        self.weights = torch.zeros(ranks * width, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(ranks * width, dtype=dtype, device=first.device)
        self._share = self.weights[self.begin : self.end]
        self._total = self._reduced = self.gradients[self.begin : self.end]
        self.starts: list[int] = []
        self.sums: list[ParameterGradient] = []
        self._arrivals_left = 0
        self._reduction: Work | None = None
        self._gathering: Work | None = None
        start = 0
        for local in parameters:
            self.starts.append(start)
            start = self._take(local, start)
        if kind.module:
            self._total = self._reduced.clone()
            without_memory(self.gradients)
        if self.shards_weights:
            self._share = self._share.clone()
            without_memory(self.weights)
        self.master = self._share.float() if first.dtype != torch.float32 else self._share
        self.moments: dict[SlotName, Tensor] = {slot: torch.zeros_like(self.master) for slot in MOMENTS}
        self._trained: list[slice] = []

    def _take(self, local: LocalParameter, start: int) -> int:
        """Move a parameter into the buffers at ``start``, and route its gradients there; returns where it ends."""
        parameter = local.parameter
        stop = start + parameter.numel()
        parameter.data = self.weights[start:stop].view_as(parameter)
        gradient = ParameterGradient(self.gradients[start:stop].view_as(parameter), self, self._optimizer.put_off)
        self.sums.append(gradient)
        if local.layer:
            local.layer.sink = gradient
        parameter.register_post_accumulate_grad_hook(gradient.take)  # type: ignore[no-untyped-call]
        return stop

    def begin_step(self, micro_batches: int) -> None:
        """Expect ``micro_batches`` gradients of every parameter."""
        self.master.grad = None
        if self.kind.module:
            self._total.zero_()
        self._expect(1 if self.kind.module else micro_batches)

    def _expect(self, micro_batches: int) -> None:
        self._arrivals_left = micro_batches * len(self.parameters)
        for gradient in self.sums:
            gradient.is_empty = True

    def make_room(self) -> None:
        """Allocate the gradients' buffer unless it holds some of this micro-batch."""
        self.add_share()
        if not self.gradients.untyped_storage().nbytes():
            _allocate(self.gradients)
            self.gradients[self._elements :] = 0

    def arrived(self) -> None:
        """Count a gradient; after the last start to reduce them."""
        self._arrivals_left -= 1
        if self._arrivals_left == 0 and self.kind.summed_over is None:
            self._start_reduce()
            if self.kind.module:
                self._expect(1)
                before, self._optimizer.reducing = self._optimizer.reducing, self
                if before:
                    before.add_share()

    def _start_reduce(self) -> None:
        if self._group.size() > 1:
            self._reduction = distributed.reduce_scatter_tensor(
                self._reduced, self.gradients, group=self._group, async_op=True
            )

    def reduce(self) -> None:
        """All-reduce over the ranks of ``summed_over``, if any, then start the reduce-scatter to the shares' owners."""
        if self.kind.summed_over is not None:
            wait_for(distributed.all_reduce(self.gradients, group=self.kind.summed_over, async_op=True))
            self._start_reduce()

    def add_share(self) -> None:
        """Wait for a reduction in flight, if any; add a micro-batch's share to the total, and free the buffer."""
        reduction, self._reduction = self._reduction, None
        wait_for(reduction)
        if self.kind.module and reduction:
            self._total += self._reduced
            without_memory(self.gradients)

    def finish_reduce(self, frozen: Sequence[str]) -> None:
        """Wait for the share's summed gradients, in fp32; if they are in bf16 a copy, which the update frees."""
        self.add_share()
        self.master.grad = self._total.float()
        edges = [self.begin]
        for local, first in zip(self.parameters, self.starts, strict=True):
            if matches(local.name, frozen):
                edges += first, first + local.parameter.numel()
        places = [min(max(edge, self.begin), self.end) - self.begin for edge in (*edges, self.end)]
        self._trained = [slice(*ends) for ends in zip(places[::2], places[1::2], strict=True) if ends[0] < ends[1]]

    def trained(self) -> Iterator[list[Tensor]]:
        """Master weights, gradients and moments of every range of the share that is not frozen in this step."""
        state = self.master, cast("Tensor", self.master.grad), *self.moments.values()
        return ([tensor[part] for tensor in state] for part in self._trained)

    def publish(self) -> None:
        """Round the updated master weights, and start to gather the weights if they are kept whole."""
        if self._share.dtype != self.master.dtype:
            self._share.copy_(self.master)
        if not self.shards_weights:
            self._start_gather()

    def gather(self) -> None:
        """Start to gather sharded weights, unless they are here or on their way."""
        if not self.weights.untyped_storage().nbytes():
            _allocate(self.weights)
            self._start_gather()

    def _start_gather(self) -> None:
        if self._group.size() > 1:
            self._gathering = distributed.all_gather_into_tensor(
                self.weights, self._share, group=self._group, async_op=True
            )

    def finish_gather(self) -> None:
        """Wait for the weights."""
        gathering, self._gathering = self._gathering, None
        wait_for(gathering)

    def fragments(self) -> Iterator[Fragment]:
        """The rank's share of every parameter."""
        for local, first in zip(self.parameters, self.starts, strict=True):
            begin, end = max(first, self.begin), min(first + local.parameter.numel(), self.end)
            if begin < end:
                share = slice(begin - self.begin, end - self.begin)
                yield Fragment(
                    local,
                    begin - first,
                    end - first,
                    self._share[share],
                    self.master[share],
                    {slot: moment[share] for slot, moment in self.moments.items()},
                )


def _allocate(buffer: Tensor) -> None:
    """Give a buffer, and all views of it, memory again, uninitialised."""
    buffer.untyped_storage().resize_(buffer.nbytes)


def without_memory(buffer: Tensor) -> Tensor:
    """The buffer, its memory freed; it and its views stay valid tensors."""
    buffer.untyped_storage().resize_(0)
    return buffer


class PutOff:
    """Deferred products of weight gradients: at most ``most`` wait; with None, all wait until they are taken."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.products = deque[Callable[[], None]]()

    def append(self, product: Callable[[], None]) -> None:
        """Defer a product; run the oldest while more than ``most`` are deferred."""
        self.products.append(product)
        self.run(self._most or 0)

    def run(self, remaining: int) -> None:
        """Run the oldest until ``left`` remain; none with ``most`` None."""
        while self._most is not None and len(self.products) > max(remaining, 0):
            self.products.popleft()()


class ParameterGradient:
    """One parameter's gradient in its bucket (`products.GradientSink`): the first micro-batch overwrites it."""

    def __init__(self, total: Tensor, bucket: Bucket, put_off: PutOff) -> None:
        self._total, self._bucket, self._put_off = total, bucket, put_off
        self.is_empty = True

    def product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        """Add dy xᵀ, now or deferred."""
        self._put_off.append(lambda: self._add_product(dy_ON, x_IN))

    def beside(self) -> None:
        """Run the oldest deferred product, unless all wait to be taken."""
        self._put_off.run(len(self._put_off.products) - 1)

    def _add_product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        self._bucket.make_room()
        products.add_product(self._total, dy_ON, x_IN, first=self.is_empty)
        self._has_arrived()

    def take(self, parameter: Tensor) -> None:
        """Add autograd's ``grad`` and free it. Autograd also calls this after a product, when ``grad`` is None."""
        if parameter.grad is None:
            return
        self._bucket.make_room()
        if self.is_empty:
            self._total.copy_(parameter.grad)
        else:
            self._total.add_(parameter.grad)
        parameter.grad = None
        self._has_arrived()

    def _has_arrived(self) -> None:
        self.is_empty = False
        self._bucket.arrived()


class ShardedOptimizer:
    """AdamW with weight decay on matrices only (paper.md section 2), over this rank's shares.

    ``at_most`` products of weight gradients may be deferred, to overlap with a collective; with None all are deferred
    until `take_put_off` takes them.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[BucketKind, LocalParameter]],
        dp_group: ProcessGroup,
        train: Train,
        at_most: int | None = 0,
    ) -> None:
        self.put_off = PutOff(at_most)
        by_kind: dict[BucketKind, list[LocalParameter]] = {}
        places: dict[Tensor, int] = {}
        shards = train.shard != "state" and dp_group.size() > 1
        for kind, local in parameters:
            is_sharded = shards and kind.decays and kind.counts and kind.summed_over is None
            by_kind.setdefault(kind if is_sharded else kind._replace(module=None), []).append(local)
            places[local.parameter] = len(places)
        self.reducing: Bucket | None = None
        """The sharded bucket that was filled last."""
        self.buckets = [
            Bucket(kind, part, dp_group, train, self)
            for kind, locals_ in by_kind.items()
            for part in ([locals_[::-1]] if kind.module else _parts(locals_[::-1]))
        ]
        self._bucket_of: dict[Tensor, Bucket] = {
            local.parameter: bucket for bucket in self.buckets for local in bucket.parameters
        }
        self._gathered_for = {bucket.kind.module: bucket for bucket in self.buckets if bucket.shards_weights}
        self._turns = deque[Bucket]()
        self._gathered: Bucket | None = None
        self.on_release: Callable[[], None] = lambda: None
        """Called when weights are freed, and after a step's passes."""
        self._in_order_of_use = sorted(self.buckets, key=lambda bucket: places[bucket.parameters[-1].parameter])
        beta1, beta2 = train.betas
        self._adamw = partial(adamw, beta1=beta1, beta2=beta2, eps=train.eps, fused=True, amsgrad=False, maximize=False)
        self.steps = 0
        """Number of updates; skipped steps do not count."""

    def take_put_off(self) -> list[Callable[[], None]]:
        """Remove and return the deferred products."""
        taken = [*self.put_off.products]
        self.put_off.products.clear()
        return taken

    def begin_step(self, micro_batches: int) -> None:
        """Expect the gradients of ``micro_batches`` micro-batches."""
        for bucket in self.buckets:
            bucket.begin_step(micro_batches)

    def finish_gradients(self, frozen: Sequence[str] = ()) -> Tensor:
        """Wait until all gradients are reduced; returns the fp64 sum of squares of this rank's terms of the norm.

        Parameters whose names match a pattern of ``frozen`` have no term, and the update leaves them as they are.
        """
        for bucket in self.buckets:
            bucket.reduce()
        for bucket in self.buckets:
            bucket.finish_reduce(frozen)
        counted = (bucket for bucket in self.buckets if bucket.kind.counts)
        squares = [_sum_of_squares(gradients) for bucket in counted for _, gradients, *_ in bucket.trained()]
        device = self.buckets[0].gradients.device
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=device)

    def update(self, grad_norm: float, settings: StepSettings) -> None:
        """Clip by the norm over all ranks, update this rank's shares, and start to all-gather them."""
        scale = settings.clip / (grad_norm + 1e-6)
        for decays in (True, False):
            trained = [part for bucket in self.buckets if bucket.kind.decays == decays for part in bucket.trained()]
            if not trained:
                continue
            masters, gradients, exp_avgs, exp_avg_sqs = map(list, zip(*trained, strict=True))
            for gradient in gradients if scale < 1 else ():
                gradient.mul_(scale)
            # The host knows the number of steps: it would wait for a GPU's count.
            steps = [*torch.full((len(masters),), float(self.steps), device=masters[0].device)]
            decay = settings.weight_decay if decays else 0.0
            state = masters, gradients, exp_avgs, exp_avg_sqs
            self._adamw(*state, [], steps, lr=settings.lr, weight_decay=decay)
        self.steps += 1
        for bucket in self.buckets:
            bucket.master.grad = None  # which frees the fp32 copies of bf16 sums
        for bucket in self._in_order_of_use:
            bucket.publish()

    def wait_before(self, module: Module, backward: bool) -> None:
        """Make a module's forward wait until its weights are gathered; and its ``backward``, if they are sharded."""
        parameters = [*module.parameters()]

        def wait(*_: object) -> None:
            self.wait_for(*parameters)

        def watch(_module: Module, _inputs: object, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(wait)  # type: ignore[no-untyped-call]

        module.register_forward_pre_hook(wait)
        if backward and module in self._gathered_for:
            module.register_forward_hook(watch)

    def wait_for(self, *parameters: Tensor | None) -> None:
        """Wait until these weights are gathered. Frees those of another module; gathers those of the next."""
        for bucket in dict.fromkeys(self._bucket_of[weight] for weight in parameters if weight is not None):
            if bucket.shards_weights and bucket is not self._gathered:
                self.release()
                self._gathered = bucket
                bucket.gather()
                if self._turns and self._turns.popleft() is bucket and self._turns:
                    self._turns[0].gather()
            bucket.finish_gather()

    def take_turns(self, modules: Iterable[Module | None]) -> None:
        """Expect that sharded weights are needed in this order."""
        self.release()
        self._turns = deque(self._gathered_for[module] for module in modules if module in self._gathered_for)

    def release(self) -> None:
        """Free the gathered weights, if they are sharded."""
        self.on_release()
        if self._gathered:
            without_memory(self._gathered.weights)
            self._gathered = None

    def fragments(self) -> Iterator[Fragment]:
        """The rank's share of every parameter."""
        for bucket in self.buckets:
            yield from bucket.fragments()


def _sum_of_squares(gradients: Tensor) -> Tensor:
    """Sum of squares in fp64, accurate to 1e-7: sums short rows in fp32 first, so it needs no copy of the gradients."""
    whole = gradients.numel() // ROW * ROW
    rows = gradients[:whole].view(-1, ROW), gradients[whole:].view(1, -1)
    return torch.cat([torch.linalg.vector_norm(part, dim=1) for part in rows]).double().square().sum()


def _parts(parameters: Sequence[LocalParameter]) -> Iterator[list[LocalParameter]]:
    """Split into runs of neighbours with at most `BUCKET_ELEMENTS` elements each, unless one parameter has more."""
    part: list[LocalParameter] = []
    elements = 0
    for local in parameters:
        size = local.parameter.numel()
        if part and elements + size > BUCKET_ELEMENTS:
            yield part
            part, elements = [], 0
        part.append(local)
        elements += size
    if part:
        yield part
