"""Every fused kernel on one GPU, right first and then fast: against eager, torch.compile and Liger-Kernel.

    python benchmarks/gpu_kernels.py [--rounds 5] [--repeats 20] [--out FILE]
    TRITON_INTERPRET=1 python benchmarks/gpu_kernels.py --tiny

In bf16, at the shapes of one rank of MT-NLG 530B at tensor parallelism 8 and at those of a 1.3B decoder. First every
kernel is checked (gpu_checks.py); then each operation is timed forward, and forward and backward, all sides in every
round (gpu_clock.py). The bytes that an operation must move, over its time, are given as a share of the bandwidth of a
copy measured in the same run. Goals: 0.85 of it where memory sets the time, and at least the speed of torch.compile.
AdamW with gradient norm and clipping is PyTorch's own, in its forms. A result is kept of a GPU alone; made for less
than eight minutes and 40 GB.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel[kernels]", "torch>=2.6", "liger-kernel==0.8.5"]
# ///

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from gpu_checks import checks
from gpu_clock import DEVICE, DTYPE, clock_of, compiled, copy_bandwidth, kept, kernels, parsed, release, table
from gpu_operations import OPERATIONS, SHAPES, TINY, drawn
from mtnlg_parallel.model import head
from record import conditions, gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_checks import Check
    from gpu_clock import Clock, Times
    from gpu_operations import Operation, Shape, Side
    from mtnlg_parallel.model.head import ParallelOps

SHARE, SPEED = 0.85, 1.0
"""Goals: of the copy's bandwidth, and times torch.compile."""

ADAMW_BYTES = 32
"""A parameter, at the least: weight, gradient and two moments in fp32 read, all but the gradient written; and the
gradient read once before, for the norm."""

Row = dict[str, Any]


def measure(operation: Operation, ops: ParallelOps, shape: Shape, clock: Clock, bandwidth: float) -> list[Row]:
    """One operation at one shape, forward, and forward and backward."""
    generator = torch.Generator(DEVICE).manual_seed(5)
    inputs = [drawn(size, DTYPE, generator) for size in operation.inputs(shape)]
    sides = operation.sides(ops, shape)
    outputs, sides["torch.compile"] = sides["kernel"](*inputs), compiled(sides["eager"])
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
        rows.append(row_of(operation.name, shape.name, name, times, "kernel", size, bandwidth))
    release()
    return rows


def measure_head(ops: ParallelOps, shape: Shape, clock: Clock, bandwidth: float) -> list[Row]:
    """The head's two kernels by themselves, over the logits of at most 2,048 tokens."""
    generator, width = torch.Generator(DEVICE).manual_seed(6), shape.vocabulary
    tokens = min(shape.sequence * shape.batch, 2048)
    logits = torch.randn(tokens, width, generator=generator, device=DEVICE).to(DTYPE)
    targets = torch.randint(width, (tokens,), generator=generator, device=DEVICE)
    logsumexp = torch.full((tokens,), 10.0, device=DEVICE)
    rows = []
    for name, passes, mine, eager in (
        ("head's statistics", 1, ops.statistics, head.statistics),
        ("head's gradient", 2, ops.gradient, head.gradient),
    ):
        more = () if passes == 1 else (logsumexp, 1.0)
        sides = {"kernel": mine, "eager": eager, "torch.compile": compiled(eager)}
        times = clock.compare({side: _bound(call, logits, targets, 0, *more) for side, call in sides.items()}, name)
        rows.append(row_of(name, shape.name, "", times, "kernel", passes * logits.nbytes, bandwidth))
    release()
    return rows


def _bound(call: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: call(*arguments)


def measure_adamw(name: str, sizes: list[int], clock: Clock, bandwidth: float) -> Row:
    """Gradient norm, clipping to 1 and AdamW over fp32 tensors of these sizes; training's is the fused form."""
    weights = [torch.zeros(size, device=DEVICE).requires_grad_() for size in sizes]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, device=DEVICE)

    def apart(**form: bool) -> Callable[[], object]:
        optimizer = torch.optim.AdamW(weights, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, **form)

        def go() -> None:
            torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
            optimizer.step()

        return go

    def within() -> Callable[[], object]:
        """The fused step divides by a scale anyway: that of clipping takes no pass of its own."""
        optimizer = torch.optim.AdamW(weights, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        scaled: Any = optimizer
        scaled.found_inf = torch.zeros((), device=DEVICE)

        def go() -> None:
            norm = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None], foreach=True)
            scaled.grad_scale = norm.clamp(min=1.0)
            optimizer.step()

        return go

    sides = {"fused": apart(fused=True), "eager": apart(foreach=True), "torch.compile": compiled(apart(foreach=True))}
    sides["fused, clip within"] = within()
    times = clock.compare(sides, "AdamW")
    size = ADAMW_BYTES * sum(sizes)
    row = row_of("norm, clip, AdamW", name, "", times, "fused", size, bandwidth)
    release()
    return row


def row_of(  # noqa: PLR0917  (a row's figures)
    name: str, shape: str, part: str, times: dict[str, Times], ours: str, size: int | None, bandwidth: float
) -> Row:
    """Ratios of times, ours over the others', and what they come from."""
    mine = times[ours].median
    return {
        "operation": name,
        "shape": shape,
        "pass": part,
        "ratios": {f"{side} / {ours}": found.median / mine for side, found in times.items() if side != ours},
        "share of copy bandwidth": size / mine / bandwidth if size else None,
        "bytes": size,
        "seconds": {side: found._asdict() for side, found in times.items()},
    }


def show_checks(found: list[Check]) -> None:
    """Print them."""
    lines = [(c.what, f"{c.error:.2e}", f"{c.allowed:.2e}", "" if c.passed else "WRONG") for c in found]
    table("numbers", ("against eager fp64, worst tensor", "error", "allowed", ""), lines)


def show_times(shape: str, rows: list[Row]) -> None:
    """Print the rows of a shape, ratios first."""
    rows = [row for row in rows if row["shape"] == shape]
    others = tuple(dict.fromkeys(key.partition(" / ")[0] for row in rows for key in row["ratios"]))
    lines = []
    for row in rows:
        ratios = {key.partition(" / ")[0]: value for key, value in row["ratios"].items()}
        sides = [f"{ratios[side]:.2f}" if side in ratios else "" for side in others]
        share = row["share of copy bandwidth"]
        took = next(iter(row["seconds"].values()))
        spread = f"{took['median'] * 1e6:,.0f} ({took['least'] * 1e6:,.0f} to {took['greatest'] * 1e6:,.0f})"
        what = f"{row['operation']}, {row['pass']}" if row["pass"] else row["operation"]
        lines.append((what, *sides, "" if share is None else f"{share:.2f}", spread))
    table(shape, ("times the speed of", *others, "of a copy", "µs (rounds)"), lines)


def main() -> None:
    """Check, measure, print, and keep the result of a GPU."""
    options = parsed(__doc__, "gpu-kernels", repeats=20)
    ops, about = kernels(options.tiny), conditions()
    clock = clock_of(options, flush=True)
    found = checks(ops, options.tiny)
    show_checks(found)
    bandwidth = copy_bandwidth(clock)
    shapes, rows = TINY if options.tiny else SHAPES, []
    for shape in shapes:
        for operation in OPERATIONS:
            rows += measure(operation, ops, shape, clock, bandwidth)
        rows += measure_head(ops, shape, clock, bandwidth)
    # Of 530B a ZeRO-1 rank of dp 8 has an eighth of its three layers, flat; of 1.3B here a third, tensor by tensor.
    layer = [3 * 2048 * 2048, 2048 * 2048, 4 * 2048 * 2048, 4 * 2048 * 2048, *[2048] * 9]
    adamw = {"a shard of 530B, flat": [3 * 12 * 20480**2 // 64], "8 layers of 1.3B": layer * 8}
    for name, sizes in {"tiny": [300, 50]}.items() if options.tiny else adamw.items():
        rows.append(measure_adamw(name, sizes, clock, bandwidth))
    for name in dict.fromkeys(row["shape"] for row in rows):
        show_times(name, rows)
    goals = goals_of(rows)
    table("goals", ("", "reached", "of"), [(name, *map(str, figures)) for name, figures in goals.items()])
    wrong = [check.what for check in found if not check.passed]
    numbers = [check._asdict() for check in found]
    about |= gpu() | {"copy bytes/s": bandwidth, "left out": clock.left_out}
    kept({"goals": goals, **about, "rows": rows, "checks": numbers}, options)
    if wrong:
        sys.exit(f"wrong numbers: {'; '.join(wrong)}")


def goals_of(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """How many reach each goal, of how many that have it."""
    shares = [row["share of copy bandwidth"] for row in rows if row["share of copy bandwidth"]]
    speeds = [ratio for row in rows for key, ratio in row["ratios"].items() if key.startswith("torch.compile")]
    return {
        f"{SHARE} of a copy": (sum(share >= SHARE for share in shares), len(shares)),
        f"{SPEED} x torch.compile": (sum(ratio >= SPEED for ratio in speeds), len(speeds)),
    }


if __name__ == "__main__":
    main()
