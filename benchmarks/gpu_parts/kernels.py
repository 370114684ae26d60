"""Fused kernels against eager and torch.compile, and as a share of a copy's bandwidth.

In bf16, at the shapes of one rank of MT-NLG 530B at tensor parallelism 8: the norms at 256 rows, its part of the
sequence, against eager code; then six operations at 2,048 rows. Each is timed forward alone and with backward, all
sides in every round. An operation's least bytes, those of Apex's kernels that read each tensor once, over its time are
a share of the bandwidth of a copy in the same run. Goals: 0.85 of it where memory bounds the time, and 1.15 x
torch.compile.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from mtnlg_parallel.model import eight_bit

from .clock import DEVICE, DTYPE, Clock, compile_fresh, copy_bandwidth, generator, kernels, release
from .operations import FEW_ROWS, MANY_ROWS, OPERATIONS, TINY, random_input

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mtnlg_parallel.model.head import ParallelOps

    from .operations import Operation, Shape, Side
    from .results import Results

AT_FEW_ROWS = ("bias_dropout_add_norm 0.1", "layer_norm")
AT_MANY_ROWS = ("bias_dropout_add_norm 0.1", "bias_gelu", "swiglu", "rotary", "bias_dropout_add 0.1")
"""The sixth is rounding to 8 bits."""

ROUNDED_BYTES = 6
"""An element: bf16 is read for the largest, and again; 8 bits are written twice."""


class Measurement:
    """Times operations, and writes a row for each."""

    def __init__(self, results: Results, clock: Clock, bandwidth: float) -> None:
        self.results, self.clock, self.bandwidth = results, clock, bandwidth

    def compare(self, key: str, sides: Mapping[str, Callable[[], object]], size: int) -> None:
        """Time the sides of a row, of which the first is ours and moves ``size`` bytes."""
        with self.results.attempt(key):
            times = self.clock.compare(sides, key)
            ours, *others = times
            seconds = times[ours].median
            ratios = {f"{side} / {ours}": times[side].median / seconds for side in others}
            share = size / seconds / self.bandwidth
            words = [*(f"{value:.2f} {name}" for name, value in ratios.items()), f"{share:.2f} of a copy"]
            left_out, self.clock.left_out = self.clock.left_out, []
            figures: dict[str, Any] = {"ratios": ratios, "share_of_copy": share, "bytes": size, "left_out": left_out}
            figures |= {"seconds": {side: each._asdict() for side, each in times.items()}}
            self.results.add(key, ", ".join([f"{seconds * 1e6:,.0f} us", *words]), figures)
        release()

    def operation(self, operation: Operation, ops: ParallelOps, shape: Shape, compiled: bool) -> None:
        """Time one operation at one shape, forward, and forward and backward."""
        keys = {name: f"{operation.name}, {shape.name}, {name}" for name in ("forward", "forward + backward")}
        if all(map(self.results.has, keys.values())):
            return
        numbers = generator(5)
        inputs = [random_input(size, DTYPE, numbers) for size in operation.inputs(shape)]
        sides = operation.sides(ops, shape)
        upstream = [torch.randn(out.shape, generator=numbers, device=DEVICE).to(out) for out in sides["eager"](*inputs)]
        if compiled:
            sides["torch.compile"] = compile_fresh(sides["eager"])

        def both(side: Side) -> Callable[[], object]:
            return lambda: torch.autograd.grad(side(*inputs), inputs, upstream)

        def forward(side: Side) -> Callable[[], object]:
            return lambda: side(*inputs)

        for (name, key), way, moved in zip(keys.items(), (forward, both), operation.moved, strict=True):
            tensors = moved if name == "forward" else sum(operation.moved)
            size = tensors * prod(operation.inputs(shape)[0]) * DTYPE.itemsize
            if not self.results.has(key):
                self.compare(key, {side: way(call) for side, call in sides.items()}, size)

    def rounding(self, ops: ParallelOps, shape: Shape) -> None:
        """Time rounding to 8 bits with both results, the largest element found."""
        x_RK = torch.randn(shape.sequence * shape.batch, shape.hidden, device=DEVICE).to(DTYPE)
        if not self.results.has(key := f"rounded to 8 bits, {shape.name}"):
            sides = {"kernel": ops.eight_bit.rounded, "eager": eight_bit.rounded}
            sides["torch.compile"] = compile_fresh(eight_bit.rounded)
            calls = {side: partial(call, x_RK, eight_bit.FORWARD, True) for side, call in sides.items()}
            self.compare(key, calls, ROUNDED_BYTES * x_RK.numel())


def main(tiny: bool, results: Results) -> None:
    """Measure."""
    ops, clock = kernels(), Clock(tiny, rounds=5, repeats=20)
    measurement = Measurement(results, clock, copy_bandwidth(clock))
    named = {operation.name: operation for operation in OPERATIONS}
    few, many = (TINY._replace(name=shape.name) if tiny else shape for shape in (FEW_ROWS, MANY_ROWS))
    for shape, names in ((few, AT_FEW_ROWS), (many, AT_MANY_ROWS)):
        for name in names:
            measurement.operation(named[name], ops, shape, compiled=shape is many)
    measurement.rounding(ops, many)
