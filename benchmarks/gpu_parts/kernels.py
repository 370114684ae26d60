"""Every fused kernel against eager, torch.compile and Liger-Kernel, and as a share of a copy's bandwidth.

In bf16, at the shapes of one rank of MT-NLG 530B at tensor parallelism 8, with and without sequence parallelism, and of
a 1.3B decoder. Each operation is timed forward alone and with backward, all sides in every round. An operation's least
bytes, those of Apex's kernels that read each tensor once, over its time are a share of the bandwidth of a copy in the
same run. Goals: 0.85 of it where memory bounds the time, and at least the speed of the best other side. AdamW with
gradient norm and clipping is PyTorch's own, in its variants.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mtnlg_parallel.model import eight_bit, head

from .clock import DEVICE, DTYPE, Clock, begin, compile_fresh, copy_bandwidth, kernels, release
from .operations import OPERATIONS, SHAPES, TINY, random_input

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mtnlg_parallel.model.head import ParallelOps

    from .operations import Operation, Shape, Side
    from .results import Results

ADAMW_BYTES = 32
"""Least bytes per parameter: reads weight, gradient and two moments in fp32, writes all but the gradient; and reads the
gradient once before, for the norm."""

ROUNDED_BYTES = 6
"""An element: bf16 is read for the largest, and again; 8 bits are written twice."""


class Measurement:
    """Times operations, and writes a row for each."""

    def __init__(self, results: Results, clock: Clock, bandwidth: float) -> None:
        self.results, self.clock, self.bandwidth = results, clock, bandwidth

    def compare(self, key: str, sides: Mapping[str, Callable[[], object]], size: int | None) -> None:
        """Time the sides of a row, of which the first is ours and moves ``size`` bytes."""
        try:
            times = self.clock.compare(sides, key)
        except Exception as error:  # noqa: BLE001  (one kernel that fails must not cost the others' figures)
            self.results.add(key, f"FAILED: {error!r:.200}", {"error": repr(error)})
            release()
            return
        ours, *others = times
        seconds = times[ours].median
        ratios = {f"{side} / {ours}": times[side].median / seconds for side in others}
        share = size / seconds / self.bandwidth if size else None
        words = [f"{value:.2f} {name}" for name, value in ratios.items()]
        words += [] if share is None else [f"{share:.2f} of a copy"]
        figures: dict[str, Any] = {"ratios": ratios, "share_of_copy": share, "bytes": size}
        left_out, self.clock.left_out = self.clock.left_out, []
        figures |= {"left_out": left_out, "seconds": {side: each._asdict() for side, each in times.items()}}
        self.results.add(key, ", ".join([f"{seconds * 1e6:,.0f} us", *words]), figures)
        release()

    def operation(self, operation: Operation, ops: ParallelOps, shape: Shape) -> None:
        """Time one operation at one shape, forward, and forward and backward."""
        keys = {name: f"{operation.name}, {shape.name}, {name}" for name in ("forward", "forward + backward")}
        if not operation.apart:
            del keys["forward"]
        if not all(map(self.results.has, keys.values())):
            with self.results.attempt(keys["forward + backward"]):
                self._operation(operation, ops, shape, keys)

    def _operation(self, operation: Operation, ops: ParallelOps, shape: Shape, keys: dict[str, str]) -> None:
        generator = torch.Generator(DEVICE).manual_seed(5)
        inputs = [random_input(size, DTYPE, generator) for size in operation.inputs(shape)]
        sides = operation.sides(ops, shape)
        outputs, sides["torch.compile"] = sides["kernel"](*inputs), compile_fresh(sides["eager"])
        upstream = [torch.randn(out.shape, generator=generator, device=DEVICE).to(out.dtype) for out in outputs]
        del outputs

        def both(side: Side) -> Callable[[], object]:
            return lambda: torch.autograd.grad(side(*inputs), inputs, upstream)

        def forward(side: Side) -> Callable[[], object]:
            return lambda: side(*inputs)

        for name, key in keys.items():
            way, passes = (forward, 1) if name == "forward" else (both, 2)
            tensors = sum(operation.moved[:passes]) if operation.moved else None
            size = tensors * prod(operation.inputs(shape)[0]) * DTYPE.itemsize if tensors else None
            if not self.results.has(key):
                self.compare(key, {side: way(call) for side, call in sides.items()}, size)

    def head(self, ops: ParallelOps, shape: Shape) -> None:
        """Time the head's two kernels over the logits of at most 2,048 tokens."""
        generator, width = torch.Generator(DEVICE).manual_seed(6), shape.vocabulary
        tokens = min(shape.sequence * shape.batch, 2048)
        logits = torch.randn(tokens, width, generator=generator, device=DEVICE).to(DTYPE)
        targets = torch.randint(width, (tokens,), generator=generator, device=DEVICE)
        logsumexp = torch.full((tokens,), 10.0, device=DEVICE)
        for name, passes, ours, eager in (
            ("head's statistics", 1, ops.statistics, head.statistics),
            ("head's gradient", 2, ops.gradient, head.gradient),
        ):
            if self.results.has(key := f"{name}, {shape.name}"):
                continue
            extra = () if passes == 1 else (logsumexp, 1.0)
            sides = {"kernel": ours, "eager": eager, "torch.compile": compile_fresh(eager)}
            calls = {side: partial(call, logits, targets, 0, *extra) for side, call in sides.items()}
            self.compare(key, calls, passes * logits.nbytes)

    def rounding(self, ops: ParallelOps, shape: Shape) -> None:
        """Time rounding to 8 bits with both results, the largest element found, and a transpose alone."""
        x_RK = torch.randn(shape.sequence * shape.batch, shape.hidden, device=DEVICE).to(DTYPE)
        if not self.results.has(key := f"rounded to 8 bits, {shape.name}"):
            sides = {"kernel": ops.eight_bit.rounded, "eager": eight_bit.rounded}
            sides["torch.compile"] = compile_fresh(eight_bit.rounded)
            calls = {side: partial(call, x_RK, eight_bit.FORWARD, True) for side, call in sides.items()}
            self.compare(key, calls, ROUNDED_BYTES * x_RK.numel())
        if not self.results.has(key := f"8 bits transposed, {shape.name}"):
            (values_RK, _), _ = eight_bit.rounded(x_RK, eight_bit.FORWARD, False)
            turned = {"kernel": ops.eight_bit.transpose, "eager": eight_bit.transpose}
            turned["torch.compile"] = compile_fresh(eight_bit.transpose)
            self.compare(key, {side: partial(call, values_RK) for side, call in turned.items()}, 2 * values_RK.numel())

    def adamw(self, name: str, sizes: list[int]) -> None:
        """Time gradient norm, clipping to 1 and AdamW over fp32 tensors of these sizes; training has the fused form."""
        if self.results.has(key := f"norm, clip, AdamW, {name}"):
            return
        weights = [torch.zeros(size, device=DEVICE).requires_grad_() for size in sizes]
        for weight in weights:
            weight.grad = torch.randn(weight.shape, device=DEVICE)
        sides = {"fused": _clip_and_update(weights, fused=True), "eager": _clip_and_update(weights, foreach=True)}
        sides["torch.compile"] = compile_fresh(_clip_and_update(weights, foreach=True))
        sides["fused, clip within"] = _clip_within(weights)
        self.compare(key, sides, ADAMW_BYTES * sum(sizes))


def _clip_and_update(weights: list[Tensor], **form: bool) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(weights, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, **form)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        optimizer.step()

    return step


def _clip_within(weights: list[Tensor]) -> Callable[[], object]:
    """The fused step divides by a scale anyway, so clipping needs no pass of its own."""
    optimizer = torch.optim.AdamW(weights, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    scaled: Any = optimizer
    scaled.found_inf = torch.zeros((), device=DEVICE)

    def step() -> None:
        norm = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None], foreach=True)
        scaled.grad_scale = norm.clamp(min=1.0)
        optimizer.step()

    return step


def main() -> None:
    """Measure."""
    tiny, results = begin(__doc__, "kernels")
    ops, clock = kernels(), Clock(tiny, rounds=5, repeats=20)
    bandwidth = copy_bandwidth(clock)
    if not results.has("copy"):
        results.add("copy", f"{bandwidth / 1e12:.3f} TB/s read and written", {"bytes_per_second": bandwidth})
    measurement = Measurement(results, clock, bandwidth)
    for shape in TINY if tiny else SHAPES:
        for operation in OPERATIONS:
            # A part of the sequence is all that norms and additions have; products, attention and head have it whole.
            if shape.sequence != 256 or (operation.apart and operation.inputs(shape)[0] == shape.x):
                measurement.operation(operation, ops, shape)
        if shape.sequence != 256:
            measurement.head(ops, shape)
            measurement.rounding(ops, shape)
    # A ZeRO-1 rank at dp 8 has a flat eighth of 530B's three layers on it; of 1.3B, 8 of 24 layers, tensor by tensor.
    layer = [3 * 2048 * 2048, 2048 * 2048, 4 * 2048 * 2048, 4 * 2048 * 2048, *[2048] * 9]
    adamw = {"a shard of 530B, flat": [3 * 12 * 20480**2 // 64], "8 layers of 1.3B": layer * 8}
    for name, sizes in {"tiny": [300, 50]}.items() if tiny else adamw.items():
        measurement.adamw(name, sizes)


if __name__ == "__main__":
    main()
