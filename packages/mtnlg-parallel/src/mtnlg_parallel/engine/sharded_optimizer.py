"""ZeRO-1 whose gradients are summed while backward runs: AdamW over this rank's share of every bucket.

A bucket is some parameters of one part of the decoder, side by side in flat buffers: weights in the model's dtype,
gradients in fp32 or as ``train.gradients`` says, both cut evenly over the data-parallel ranks, at any element.

    add, product      each micro-batch adds to the bucket's gradients, the first overwrites them
    reduce            once the last micro-batch has added all of them: reduce-scatter to the rank that owns the share
    norm              of all shares, each parameter once; the sum of squares is the caller's to sum over all ranks
    update            AdamW on fp32 master weights, this rank's share
    gather            all-gather of the shares' weights, the first layer's first; each layer waits for its own

Parameters of which each tensor-parallel rank has seen a part of the sequence, and the tied token table where first and
last stage hold a copy each, are summed over those ranks before: their buckets are reduced after the last backward.
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
"""Most elements of a bucket, unless one parameter has more: 128 MiB of gradients, long enough for full bandwidth."""


ROW = 1024
"""Squares that are summed in fp32."""


class BucketKind(NamedTuple):
    """What the parameters of a bucket have in common."""

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
        """Lay a parameter's storage into the buffers, and have its gradients added there."""
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
        """Expect the gradients of so many micro-batches of every parameter."""
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
        """Sum over ranks that hold copies or other parts of the sequence, then to the owners of the shares."""
        if self.kind.summed_over is not None:
            wait_for(distributed.all_reduce(self.gradients, group=self.kind.summed_over, async_op=True))
            self._start_reduce()

    def finish_reduce(self) -> Tensor:
        """The rank's share of the summed gradients, in fp32: where they are in bf16 a copy until the next step."""
        self.finish()
        self.master.grad = share = self._reduced.float()
        return share

    def start_gather(self) -> None:
        """Begin to spread the updated shares of all ranks."""
        share = self.weights[self.begin : self.end]
        if share.dtype != self.master.dtype:
            share.copy_(self.master.detach())
        if self._group.size() > 1:
            self._work.append(distributed.all_gather_into_tensor(self.weights, share, group=self._group, async_op=True))

    def finish(self) -> None:
        """Wait for what was begun."""
        while self._work:
            wait_for(self._work.pop())

    def owned(self) -> Iterator[tuple[LocalParameter, int, int, int]]:
        """Parameters of which a part is in this rank's share: elements [start, stop) and their place in the share."""
        for local, first in zip(self.parameters, self.starts, strict=True):
            begin, end = max(first, self.begin), min(first + local.parameter.numel(), self.end)
            if begin < end:
                yield local, begin - first, end - first, begin - self.begin


class PutOff:
    """Products of weight gradients that wait: all, to be taken, with ``most`` None; else so many at most."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self.products = deque[Callable[[], None]]()

    def append(self, product: Callable[[], None]) -> None:
        """Let a product wait; those before it run while more than ``most`` do."""
        self.products.append(product)
        self.run(self._most or 0)

    def run(self, left: int) -> None:
        """Run the oldest until so many are left."""
        while self._most is not None and len(self.products) > max(left, 0):
            self.products.popleft()()


class ParameterGradient:
    """One parameter's gradient in its bucket (`products.GradientSink`): the first micro-batch overwrites it."""

    def __init__(self, total: Tensor, arrived: Callable[[], None], put_off: PutOff) -> None:
        self._total, self._arrived, self._put_off = total, arrived, put_off
        self.is_empty = True

    def product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        """Add dy xᵀ, or put it off."""
        self._put_off.append(lambda: self._add_product(dy_ON, x_IN))

    def beside(self) -> None:
        """Add the product that has waited longest, unless all wait to be taken."""
        self._put_off.run(len(self._put_off.products) - 1)

    def _add_product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        products.add_product(self._total, dy_ON, x_IN, first=self.is_empty)
        self._has_arrived()

    def take(self, parameter: Tensor) -> None:
        """Add what autograd has left in ``grad``, and free that. It calls this after a product too, and has nothing."""
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

    So many products of weight gradients may wait ``at_most``, for a collective beside which to run, and all with None;
    `take_put_off` takes what waits.
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
        """The products that have been put off since the last call."""
        taken = [*self.put_off.products]
        self.put_off.products.clear()
        return taken

    def begin_step(self, micro_batches: int) -> None:
        """Expect the gradients of so many micro-batches."""
        for bucket in self.buckets:
            bucket.begin_step(micro_batches)

    def finish_gradients(self) -> Tensor:
        """Wait until every share of the gradients is summed; returns the fp64 sum of squares of those that count."""
        for bucket in self.buckets:
            bucket.reduce()
        shares = [(bucket.kind, bucket.finish_reduce()) for bucket in self.buckets]
        squares = [_sum_of_squares(share) for kind, share in shares if kind.counts]
        device = self.buckets[0].gradients.device
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=device)

    def update(self, grad_norm: float, settings: StepSettings) -> None:
        """Clip by the norm over all ranks, update this rank's shares, and begin to spread them."""
        scale = settings.clip / (grad_norm + 1e-6)
        for group in self._adamw.param_groups:
            group |= {"lr": settings.lr, "weight_decay": settings.weight_decay if group["decays"] else 0.0}
        if scale < 1:
            for bucket in self.buckets:
                if bucket.master.grad is not None:
                    bucket.master.grad.mul_(scale)
        self._adamw.step()
        self._steps += 1
        for bucket in self._in_order_of_use:
            bucket.start_gather()

    def wait_before(self, module: Module) -> None:
        """Have a module's forward wait until this rank has its weights."""
        own = {*module.parameters()}
        buckets = [bucket for bucket in self.buckets if any(local.parameter in own for local in bucket.parameters)]

        def wait(*_: object) -> None:
            for bucket in buckets:
                bucket.finish()

        module.register_forward_pre_hook(wait)

    def wait_for_weights(self, chunk: int) -> None:
        """Wait until this rank has all weights of a part."""
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
    """In fp64, to 1e-7: fp32 sums of short rows alone, and no copy of the gradients."""
    whole = gradients.numel() // ROW * ROW
    rows = gradients[:whole].view(-1, ROW), gradients[whole:].view(1, -1)
    return torch.cat([torch.linalg.vector_norm(part, dim=1) for part in rows]).double().square().sum()


def _parts(parameters: Sequence[LocalParameter]) -> Iterator[list[LocalParameter]]:
    """Neighbours of `BUCKET_ELEMENTS` together at most."""
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
