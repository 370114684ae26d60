"""ZeRO-1 that reduces gradients while backward runs, with AdamW on this rank's share of every bucket.

A bucket holds some parameters of one part of the decoder, contiguous in flat buffers: weights in the model's dtype,
gradients in the dtype of ``train.gradients``. Both are split evenly over the data-parallel ranks, at any element; with
context parallelism, whose ranks hold the same weights too, over dp x cp ranks.

    add, product      each micro-batch adds to the bucket's gradients; the first overwrites them
    reduce            after the last micro-batch's gradients: reduce-scatter to the ranks that own the shares
    norm              sum of squares of the shares, each parameter once; the caller sums it over all ranks
    update            AdamW on this rank's share of the fp32 master weights
    gather            all-gather of the updated weights, first layer first; each layer waits for its own weights

Two kinds of gradients are first summed over other ranks, so their buckets are reduced after the last backward: those of
parameters that each tensor-parallel rank applies to its part of the sequence, and those of a tied token table of which
first and last stage hold a copy each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed

from mtnlg_parallel.model import products
from mtnlg_parallel.waiting import wait_for

from .contract import MOMENTS, Fragment

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


class Bucket:
    """Parameters of one kind, in flat buffers whose share [begin, end) this rank updates."""

    def __init__(
        self,
        kind: BucketKind,
        parameters: Sequence[LocalParameter],
        dp_group: ProcessGroup,
        dtype: torch.dtype,
        put_off: PutOff,
    ) -> None:
        self.kind, self.parameters, self._group = kind, parameters, dp_group
        first = parameters[0].parameter
        elements = sum(local.parameter.numel() for local in parameters)
        ranks, rank = dp_group.size(), dp_group.rank()
        width = -(-elements // ranks)
        self.begin, self.end = rank * width, (rank + 1) * width
        self.weights = torch.zeros(ranks * width, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(ranks * width, dtype=dtype, device=first.device)
        share = self.weights[self.begin : self.end]
        self.master = torch.nn.Parameter(share.float() if first.dtype != torch.float32 else share)
        self._reduced = self.gradients[self.begin : self.end]
        self.starts: list[int] = []
        self.sums: list[ParameterGradient] = []
        self._arrivals_left = 0
        self._work: list[Work] = []
        start = 0
        for local in parameters:
            self.starts.append(start)
            start = self._take(local, start, put_off)

    def _take(self, local: LocalParameter, start: int, put_off: PutOff) -> int:
        """Move a parameter into the buffers at ``start``, and route its gradients there; returns where it ends."""
        parameter = local.parameter
        stop = start + parameter.numel()
        parameter.data = self.weights[start:stop].view_as(parameter)
        gradient = ParameterGradient(self.gradients[start:stop].view_as(parameter), self._arrived, put_off)
        self.sums.append(gradient)
        if local.layer:
            local.layer.sink = gradient
        parameter.register_post_accumulate_grad_hook(gradient.take)  # type: ignore[no-untyped-call]
        return stop

    def begin_step(self, micro_batches: int) -> None:
        """Expect ``micro_batches`` gradients of every parameter."""
        self._arrivals_left, self.master.grad = micro_batches * len(self.parameters), None
        for gradient in self.sums:
            gradient.is_empty = True

    def _arrived(self) -> None:
        self._arrivals_left -= 1
        if self._arrivals_left == 0 and self.kind.summed_over is None:
            self._start_reduce()

    def _start_reduce(self) -> None:
        if self._group.size() > 1:
            work = distributed.reduce_scatter_tensor(self._reduced, self.gradients, group=self._group, async_op=True)
            self._work.append(work)

    def reduce(self) -> None:
        """All-reduce over the ranks of ``summed_over``, if any, then start the reduce-scatter to the shares' owners."""
        if self.kind.summed_over is not None:
            wait_for(distributed.all_reduce(self.gradients, group=self.kind.summed_over, async_op=True))
            self._start_reduce()

    def finish_reduce(self) -> Tensor:
        """The rank's share of the summed gradients, in fp32; if they are in bf16 a copy, which the update frees."""
        self.finish()
        self.master.grad = share = self._reduced.float()
        return share

    def start_gather(self) -> None:
        """Start the all-gather of the updated shares."""
        share = self.weights[self.begin : self.end]
        if share.dtype != self.master.dtype:
            share.copy_(self.master.detach())
        if self._group.size() > 1:
            self._work.append(distributed.all_gather_into_tensor(self.weights, share, group=self._group, async_op=True))

    def finish(self) -> None:
        """Wait for the collectives in flight."""
        while self._work:
            wait_for(self._work.pop())

    def owned(self) -> Iterator[tuple[LocalParameter, int, int, int]]:
        """Yield (parameter, start, stop, offset): elements [start, stop) lie at ``offset`` in this rank's share."""
        for local, first in zip(self.parameters, self.starts, strict=True):
            begin, end = max(first, self.begin), min(first + local.parameter.numel(), self.end)
            if begin < end:
                yield local, begin - first, end - first, begin - self.begin


class PutOff:
    """Deferred products of weight gradients: at most ``most`` wait; with None, all wait until they are taken."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.products = deque[Callable[[], None]]()

    def append(self, product: Callable[[], None]) -> None:
        """Defer a product; run the oldest while more than ``most`` are deferred."""
        self.products.append(product)
        self.run(self._most or 0)

    def run(self, left: int) -> None:
        """Run the oldest until ``left`` remain; none with ``most`` None."""
        while self._most is not None and len(self.products) > max(left, 0):
            self.products.popleft()()


class ParameterGradient:
    """One parameter's gradient in its bucket (`products.GradientSink`): the first micro-batch overwrites it."""

    def __init__(self, total: Tensor, arrived: Callable[[], None], put_off: PutOff) -> None:
        self._total, self._arrived, self._put_off = total, arrived, put_off
        self.is_empty = True

    def product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        """Add dy xᵀ, now or deferred."""
        self._put_off.append(lambda: self._add_product(dy_ON, x_IN))

    def beside(self) -> None:
        """Run the oldest deferred product, unless all wait to be taken."""
        self._put_off.run(len(self._put_off.products) - 1)

    def _add_product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        products.add_product(self._total, dy_ON, x_IN, first=self.is_empty)
        self._has_arrived()

    def take(self, parameter: Tensor) -> None:
        """Add autograd's ``grad`` and free it. Autograd also calls this after a product, when ``grad`` is None."""
        if parameter.grad is None:
            return
        if self.is_empty:
            self._total.copy_(parameter.grad)
        else:
            self._total.add_(parameter.grad)
        parameter.grad = None
        self._has_arrived()

    def _has_arrived(self) -> None:
        self.is_empty = False
        self._arrived()


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
        for kind, local in parameters:
            by_kind.setdefault(kind, []).append(local)
            places[local.parameter] = len(places)
        dtype = torch.bfloat16 if train.gradients == "bf16" else torch.float32
        self.buckets = [
            Bucket(kind, part, dp_group, dtype, self.put_off)
            for kind, locals_ in by_kind.items()
            for part in _parts(locals_[::-1])
        ]
        self._in_order_of_use = sorted(self.buckets, key=lambda bucket: places[bucket.parameters[-1].parameter])
        groups: list[dict[str, Any]] = [
            {"params": [bucket.master for bucket in self.buckets if bucket.kind.decays == decays], "decays": decays}
            for decays in (True, False)
        ]
        groups = [group for group in groups if group["params"]]
        self._adamw = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)
        self._steps = 0  # counted here too: the host would wait for a GPU's count
        for bucket in self.buckets:
            zeros = {slot: torch.zeros_like(bucket.master) for slot in MOMENTS}
            step = torch.tensor(0.0, device=bucket.master.device)
            self._adamw.state[bucket.master] = {"step": step, **zeros}

    @property
    def steps(self) -> int:
        """Number of updates; skipped steps do not count."""
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps
        for state in self._adamw.state.values():
            state["step"].fill_(steps)

    def take_put_off(self) -> list[Callable[[], None]]:
        """Remove and return the deferred products."""
        taken = [*self.put_off.products]
        self.put_off.products.clear()
        return taken

    def begin_step(self, micro_batches: int) -> None:
        """Expect the gradients of ``micro_batches`` micro-batches."""
        for bucket in self.buckets:
            bucket.begin_step(micro_batches)

    def finish_gradients(self) -> Tensor:
        """Wait until all gradients are reduced; returns the fp64 sum of squares of this rank's terms of the norm."""
        for bucket in self.buckets:
            bucket.reduce()
        shares = [(bucket.kind, bucket.finish_reduce()) for bucket in self.buckets]
        squares = [_sum_of_squares(share) for kind, share in shares if kind.counts]
        device = self.buckets[0].gradients.device
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=device)

    def update(self, grad_norm: float, settings: StepSettings) -> None:
        """Clip by the norm over all ranks, update this rank's shares, and start to all-gather them."""
        scale = settings.clip / (grad_norm + 1e-6)
        for group in self._adamw.param_groups:
            group |= {"lr": settings.lr, "weight_decay": settings.weight_decay if group["decays"] else 0.0}
        if scale < 1:
            for bucket in self.buckets:
                if bucket.master.grad is not None:
                    bucket.master.grad.mul_(scale)
        self._adamw.step()
        self._adamw.zero_grad()  # which frees the fp32 copies of bf16 sums
        self._steps += 1
        for bucket in self._in_order_of_use:
            bucket.start_gather()

    def wait_before(self, module: Module) -> None:
        """Make a module's forward wait until its weights are gathered."""
        own = {*module.parameters()}
        buckets = [bucket for bucket in self.buckets if any(local.parameter in own for local in bucket.parameters)]

        def wait(*_: object) -> None:
            for bucket in buckets:
                bucket.finish()

        module.register_forward_pre_hook(wait)

    def wait_for_weights(self, chunk: int) -> None:
        """Wait until all weights of part ``chunk`` are gathered."""
        for bucket in self.buckets:
            if bucket.kind.chunk == chunk:
                bucket.finish()

    def fragments(self) -> Iterator[Fragment]:
        """The rank's share of every parameter."""
        for bucket in self.buckets:
            state = self._adamw.state[bucket.master]
            for local, start, stop, at in bucket.owned():
                moments: dict[SlotName, Tensor] = {slot: state[slot].narrow(0, at, stop - start) for slot in MOMENTS}
                yield Fragment(local, start, stop, bucket.master.detach().narrow(0, at, stop - start), moments)


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
