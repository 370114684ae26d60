"""Every fused kernel on one GPU, checked and then timed against eager, torch.compile and Liger-Kernel.

    python benchmarks/gpu_kernels.py [--rounds 5] [--repeats 20] [--out FILE]
    TRITON_INTERPRET=1 python benchmarks/gpu_kernels.py --tiny

In bf16, at the shapes of one rank of MT-NLG 530B at tensor parallelism 8 and of a 1.3B decoder. First every kernel is
checked (gpu_checks.py); then each operation is timed, forward alone and with backward, all sides in every round
(gpu_clock.py). An operation's least bytes over its time are reported as a share of the bandwidth of a copy in the same
run. Goals: 0.85 of it where memory bounds the time, and at least the speed of torch.compile. AdamW with gradient norm
and clipping is PyTorch's own, in its variants. Results are written only on a GPU; needs less than eight minutes and
40 GB.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel[kernels]", "torch>=2.6", "liger-kernel==0.8.5"]
# ///

from __future__ import annotations

import sys
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from gpu_checks import run_checks
from gpu_clock import (
    DEVICE,
    DTYPE,
    compile_fresh,
    copy_bandwidth,
    make_clock,
    parse_options,
    print_table,
    release,
    require_kernels,
    write_gpu_result,
)
from gpu_operations import OPERATIONS, SHAPES, TINY, random_input
from mtnlg_parallel.model import head
from record import conditions, gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_checks import Check
    from gpu_clock import Clock, Times
    from gpu_operations import Operation, Shape, Side
    from mtnlg_parallel.model.head import ParallelOps

SHARE, SPEED = 0.85, 1.0
"""Goals: share of the copy's bandwidth, and multiple of torch.compile's speed."""

ADAMW_BYTES = 32
"""Least bytes per parameter: reads weight, gradient and two moments in fp32, writes all but the gradient; and reads the
gradient once before, for the norm."""

Row = dict[str, Any]


def measure(operation: Operation, ops: ParallelOps, shape: Shape, clock: Clock, bandwidth: float) -> list[Row]:
    """Time one operation at one shape, forward, and forward and backward."""
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

    rows = []
    ways = (("forward", forward, 1), ("forward + backward", both, 2))
    for name, way, passes in ways if operation.apart else ways[1:]:
        times = clock.compare({side: way(call) for side, call in sides.items()}, f"{operation.name}, {shape.name}")
        tensors = sum(operation.moved[:passes]) if operation.moved else None
        size = tensors * prod(operation.inputs(shape)[0]) * DTYPE.itemsize if tensors else None
        rows.append(make_row(operation.name, shape.name, name, times, "kernel", size, bandwidth))
    release()
    return rows


def measure_head(ops: ParallelOps, shape: Shape, clock: Clock, bandwidth: float) -> list[Row]:
    """Time the head's two kernels over the logits of at most 2,048 tokens."""
    generator, width = torch.Generator(DEVICE).manual_seed(6), shape.vocabulary
    tokens = min(shape.sequence * shape.batch, 2048)
    logits = torch.randn(tokens, width, generator=generator, device=DEVICE).to(DTYPE)
    targets = torch.randint(width, (tokens,), generator=generator, device=DEVICE)
    logsumexp = torch.full((tokens,), 10.0, device=DEVICE)
    rows = []
    for name, passes, ours, eager in (
        ("head's statistics", 1, ops.statistics, head.statistics),
        ("head's gradient", 2, ops.gradient, head.gradient),
    ):
        extra = () if passes == 1 else (logsumexp, 1.0)
        sides = {"kernel": ours, "eager": eager, "torch.compile": compile_fresh(eager)}
        times = clock.compare({side: partial(call, logits, targets, 0, *extra) for side, call in sides.items()}, name)
        rows.append(make_row(name, shape.name, "", times, "kernel", passes * logits.nbytes, bandwidth))
    release()
    return rows


def measure_adamw(name: str, sizes: list[int], clock: Clock, bandwidth: float) -> Row:
    """Time gradient norm, clipping to 1 and AdamW over fp32 tensors of these sizes; training uses the fused form."""
    weights = [torch.zeros(size, device=DEVICE).requires_grad_() for size in sizes]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, device=DEVICE)

    def separate(**form: bool) -> Callable[[], object]:
        optimizer = torch.optim.AdamW(weights, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, **form)

        def step() -> None:
            torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
            optimizer.step()

        return step

    def clip_within() -> Callable[[], object]:
        """The fused step divides by a scale anyway, so clipping needs no pass of its own."""
        optimizer = torch.optim.AdamW(weights, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        scaled: Any = optimizer
        scaled.found_inf = torch.zeros((), device=DEVICE)

        def step() -> None:
            norm = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None], foreach=True)
            scaled.grad_scale = norm.clamp(min=1.0)
            optimizer.step()

        return step

    sides = {"fused": separate(fused=True), "eager": separate(foreach=True)}
    sides["torch.compile"] = compile_fresh(separate(foreach=True))
    sides["fused, clip within"] = clip_within()
    times = clock.compare(sides, "AdamW")
    size = ADAMW_BYTES * sum(sizes)
    row = make_row("norm, clip, AdamW", name, "", times, "fused", size, bandwidth)
    release()
    return row


def make_row(  # noqa: PLR0917  (the figures of a row)
    name: str, shape: str, part: str, times: dict[str, Times], ours: str, size: int | None, bandwidth: float
) -> Row:
    """Return a row of the result: ratios of the others' times to ours, bandwidth share, and the times."""
    our_seconds = times[ours].median
    return {
        "operation": name,
        "shape": shape,
        "pass": part,
        "ratios": {f"{side} / {ours}": each.median / our_seconds for side, each in times.items() if side != ours},
        "share of copy bandwidth": size / our_seconds / bandwidth if size else None,
        "bytes": size,
        "seconds": {side: each._asdict() for side, each in times.items()},
    }


def print_checks(checks: list[Check]) -> None:
    """Print the checks as a table."""
    lines = [(c.what, f"{c.error:.2e}", f"{c.allowed:.2e}", "" if c.passed else "WRONG") for c in checks]
    print_table("numbers", ("against eager fp64, worst tensor", "error", "allowed", ""), lines)


def print_times(shape: str, rows: list[Row]) -> None:
    """Print the rows of a shape as a table, ratios first."""
    rows = [row for row in rows if row["shape"] == shape]
    others = tuple(dict.fromkeys(key.partition(" / ")[0] for row in rows for key in row["ratios"]))
    lines = []
    for row in rows:
        ratios = {key.partition(" / ")[0]: value for key, value in row["ratios"].items()}
        sides = [f"{ratios[side]:.2f}" if side in ratios else "" for side in others]
        share = row["share of copy bandwidth"]
        ours = next(iter(row["seconds"].values()))
        spread = f"{ours['median'] * 1e6:,.0f} ({ours['least'] * 1e6:,.0f} to {ours['greatest'] * 1e6:,.0f})"
        what = f"{row['operation']}, {row['pass']}" if row["pass"] else row["operation"]
        lines.append((what, *sides, "" if share is None else f"{share:.2f}", spread))
    print_table(shape, ("times the speed of", *others, "of a copy", "µs (rounds)"), lines)


def main() -> None:
    """Check and measure; print the result, and write it if measured on a GPU."""
    options = parse_options(__doc__, "gpu-kernels", repeats=20)
    ops, about = require_kernels(options.tiny), conditions()
    clock = make_clock(options, flush=True)
    checks = run_checks(ops, options.tiny)
    print_checks(checks)
    bandwidth = copy_bandwidth(clock)
    shapes, rows = TINY if options.tiny else SHAPES, []
    for shape in shapes:
        for operation in OPERATIONS:
            rows += measure(operation, ops, shape, clock, bandwidth)
        rows += measure_head(ops, shape, clock, bandwidth)
    # A ZeRO-1 rank at dp 8 has a flat eighth of 530B's three layers on it; of 1.3B, 8 of 24 layers, tensor by tensor.
    layer = [3 * 2048 * 2048, 2048 * 2048, 4 * 2048 * 2048, 4 * 2048 * 2048, *[2048] * 9]
    adamw = {"a shard of 530B, flat": [3 * 12 * 20480**2 // 64], "8 layers of 1.3B": layer * 8}
    for name, sizes in {"tiny": [300, 50]}.items() if options.tiny else adamw.items():
        rows.append(measure_adamw(name, sizes, clock, bandwidth))
    for name in dict.fromkeys(row["shape"] for row in rows):
        print_times(name, rows)
    goals = count_goals(rows)
    print_table("goals", ("", "reached", "of"), [(name, *map(str, figures)) for name, figures in goals.items()])
    wrong = [check.what for check in checks if not check.passed]
    about |= gpu() | {"copy bytes/s": bandwidth, "left out": clock.left_out}
    numbers = [check._asdict() for check in checks]
    write_gpu_result({"goals": goals, **about, "rows": rows, "checks": numbers}, options)
    if wrong:
        sys.exit(f"wrong numbers: {'; '.join(wrong)}")


def count_goals(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """Return for each goal how many rows reach it, of how many that have it."""
    shares = [row["share of copy bandwidth"] for row in rows if row["share of copy bandwidth"]]
    speeds = [ratio for row in rows for key, ratio in row["ratios"].items() if key.startswith("torch.compile")]
    return {
        f"{SHARE} of a copy": (sum(share >= SHARE for share in shares), len(shares)),
        f"{SPEED} x torch.compile": (sum(ratio >= SPEED for ratio in speeds), len(speeds)),
    }


if __name__ == "__main__":
    main()
