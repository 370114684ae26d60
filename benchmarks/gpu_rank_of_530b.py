"""The work of one of MT-NLG's 2,240 GPUs: three of 105 layers, an eighth of each weight, without communication.

    python benchmarks/gpu_rank_of_530b.py [--rounds 5] [--repeats 5] [--out FILE]
    TRITON_INTERPRET=1 python benchmarks/gpu_rank_of_530b.py --tiny

Hidden 20480, 16 of 128 heads, sequence 2048, micro-batch 1, bf16, forward and backward (paper.md sections 1 and 3):

    full            every layer recomputed, as the paper's run
    sequence        selective recomputation, norms and dropout on an eighth of the sequence (Korthikanti et al. 2022)

The decoder's own layers run with our kernels, in plain PyTorch, and that under torch.compile, on the same weights in
the same rounds. Three counts of FLOPs: the model's, 72 B s l h² (1 + s / 6h) / 8; the hardware's, with 96 instead of 72
(Narayanan et al. 2021, equation 3, layers alone), or 72 plus 4 s² h a layer where only attention is recomputed; and
those of the matrix products that PyTorch ran. The last, over the time, is reported as a share of the matmul rate, the
best of several products measured in the same run. Goal: 0.75. Then the profiler shows where the rest goes. Results are
written only on a GPU; needs less than eight minutes and 40 GB.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel[kernels]", "torch>=2.6"]
# ///

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from gpu_clock import (
    DEVICE,
    DTYPE,
    GPU,
    compile_fresh,
    make_clock,
    parse_options,
    print_table,
    release,
    require_kernels,
    write_gpu_result,
)
from gpu_profile import time_by_kind
from gpu_rank_parts import TP, Rank, add_sequence_parallelism, make_layers, make_rank
from mtnlg_model.config import PRESETS, ModelConfig
from mtnlg_model.functional import EAGER, Ops
from record import conditions, gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_clock import Clock

LAYERS, GOAL = 3, 0.75
TINY = ModelConfig(layers=1, hidden=32, heads=8, sequence=8, vocabulary=64)
SQUARES = (4096, 8192, 16384)


class Case(NamedTuple):
    """A way to train: what is recomputed, and the rows of the sequence between the matrix products."""

    name: str
    recompute: str
    rows: int


class Side(NamedTuple):
    """An implementation; ``added`` accumulates weight gradients in bf16 over steps, as autograd does."""

    ops: Ops
    compiled: bool = False
    added: bool = False


def count_flops(config: ModelConfig, layers: int, case: Case) -> dict[str, float]:
    """Return FLOPs of a rank's micro-batch, the model's and the hardware's; causal attention counts as full."""
    s, h = config.sequence, config.hidden
    model, forward = (n * s * h**2 * (1 + s / (6 * h)) for n in (72, 24))
    recomputed = forward if case.recompute == "full" else 4 * s**2 * h
    return {"model": layers * model / TP, "hardware": layers * (model + recomputed) / TP}


def make_step(rank: Rank, case: Case, side: Side) -> Callable[[], None]:
    """Return a function that runs a micro-batch forward and backward through the layers."""
    ops = side.ops
    if case.recompute == "selective" and not side.compiled:
        # As in training. A compiler decides itself which activations to keep.
        ops = replace(ops, attention=partial(recompute, ops.attention))
    layers: list[Any] = make_layers(rank, ops)
    if case.recompute == "selective":
        layers = [add_sequence_parallelism(layer, rank) for layer in layers]
    if side.compiled:
        layers = [compile_fresh(layer) for layer in layers]
    x_SBH = rank.x_SBH.detach()[: case.rows].requires_grad_()
    upstream_SBH = rank.upstream_SBH[: case.rows]

    def step() -> None:
        x_SBH.grad = None
        if not side.added:
            for parameter in rank.parameters:
                parameter.grad = None
        y_SBH: Tensor = x_SBH
        for layer in layers:
            y_SBH = recompute(layer, y_SBH) if case.recompute == "full" else layer(y_SBH)
        y_SBH.backward(upstream_SBH)  # type: ignore[no-untyped-call]

    return step


def recompute(function: Any, *inputs: Any) -> Any:  # noqa: ANN401  (any function of tensors)
    """Recompute ``function`` backward, as mtnlg_parallel.model.tensor_parallel does, which needs megatron-core."""
    return checkpoint(function, *inputs, use_reentrant=False)


def count_products(step: Callable[[], None]) -> float:
    """Return the FLOPs of a step's matrix products, attention's included, counted by PyTorch."""
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def matmul_rates(config: ModelConfig, clock: Clock, squares: tuple[int, ...]) -> dict[str, float]:
    """Return FLOP/s of x Wᵀ, dy W and dyᵀ x: of large squares, and of a layer's own shapes."""
    s, h = config.sequence, config.hidden
    own = ((s, 3 * h // TP, h), (s, h, h // TP), (s, 4 * h // TP, h), (s, h, 4 * h // TP))
    rates = {}
    for m, n, k in [*((size,) * 3 for size in squares), *own]:
        x, weight, dy = (torch.randn(size, device=DEVICE).to(DTYPE) for size in ((m, k), (n, k), (m, n)))
        sides = {"x Wᵀ": (x, weight.t()), "dy W": (dy, weight), "dyᵀ x": (dy.t(), x)}
        times = clock.compare({side: partial(torch.mm, *pair) for side, pair in sides.items()})
        for side, seconds in times.items():
            rates[f"{side}, x {m} x {k}, y {m} x {n}"] = 2 * m * n * k / seconds.median
        del x, weight, dy, sides
    return rates


def measure(rank: Rank, case: Case, ops: Ops, clock: Clock) -> dict[str, Any]:
    """Time all sides of a case; in the paper's, also adding gradients to those of earlier micro-batches."""
    sides = {"kernels": Side(ops), "eager": Side(EAGER), "torch.compile": Side(EAGER, compiled=True)}
    if case.recompute == "full":
        sides["kernels, gradients added"] = Side(ops, added=True)
    steps = {name: make_step(rank, case, side) for name, side in sides.items()}
    times = clock.compare(steps, case.name)
    result: dict[str, Any] = {"formula": count_flops(rank.config, len(rank.weights), case), "sides": {}}
    for name, seconds in times.items():
        step, side = steps[name], sides[name]
        result["sides"][name] = {
            "seconds": seconds._asdict(),
            "products run": None if side.compiled else count_products(step),
            "peak_bytes": peak_bytes(step),
            "where": {} if side.added else time_by_kind(step),
        }
    release()
    return result


def peak_bytes(step: Callable[[], None]) -> int | None:
    """Return the peak GPU memory of a step, weights included; None on a CPU."""
    if not GPU:
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def add_shares(case: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return a case with ratios and shares of the matmul ``rate``, which come first."""
    ratios, sides = {}, case["sides"]
    our_seconds = sides["kernels"]["seconds"]["median"]
    for name, side in sides.items():
        seconds = side["seconds"]["median"]
        if name != "kernels":
            ratios[f"{name} / kernels"] = seconds / our_seconds
        rates = {kind: count / seconds for kind, count in case["formula"].items()}
        rates["products run"] = side["products run"] / seconds if side["products run"] else None
        side["tflops"] = {kind: each / 1e12 if each else None for kind, each in rates.items()}
        side["share of matmul rate"] = {kind: each / rate if each else None for kind, each in rates.items()}
    return {"ratios": ratios, "share": sides["kernels"]["share of matmul rate"]["products run"], **case}


def print_case(name: str, case: dict[str, Any]) -> None:
    """Print a case: ratios and rates, then where the time goes."""
    kinds = ("products run", "hardware", "model")
    lines = [_line(side, figures, kinds, case) for side, figures in case["sides"].items()]
    rates = ("of the matmul rate: run", "hardware", "model", "TFLOP/s: run", "hardware", "model")
    print_table(name, ("", "time / kernels", *rates, "run / hardware", "ms (rounds)", "GB"), lines)
    for side, figures in case["sides"].items():
        lines = [(what, f"{share:.1%}", f"{seconds * 1e3:.2f}") for what, (share, seconds) in figures["where"].items()]
        if lines:
            print_table(f"{name}, {side}: where a step goes", ("", "share", "ms"), lines)


def _line(side: str, figures: dict[str, Any], kinds: tuple[str, ...], case: dict[str, Any]) -> tuple[str, ...]:
    seconds, shares, run = figures["seconds"], figures["share of matmul rate"], figures["products run"]
    return (
        side,
        f"{case['ratios'].get(f'{side} / kernels', 1.0):.2f}",
        *(f"{shares[kind]:.3f}" if shares[kind] else "" for kind in kinds),
        *(f"{figures['tflops'][kind]:.0f}" if shares[kind] else "" for kind in kinds),
        f"{run / case['formula']['hardware']:.3f}" if run else "",
        f"{seconds['median'] * 1e3:.1f} ({seconds['least'] * 1e3:.1f} to {seconds['greatest'] * 1e3:.1f})",
        f"{figures['peak_bytes'] / 1e9:.1f}" if figures["peak_bytes"] else "",
    )


def main() -> None:
    """Measure; print the result, and write it if measured on a GPU."""
    options = parse_options(__doc__, "gpu-rank-of-530b", repeats=5)
    ops, about = require_kernels(options.tiny), conditions()
    config, layers, squares = (TINY, 1, (32,)) if options.tiny else (PRESETS["mt-nlg-530b"], LAYERS, SQUARES)
    clock = make_clock(options, flush=False)
    before = matmul_rates(config, clock, squares)
    rank = make_rank(config, layers)
    cases = (
        Case("full recomputation", "full", config.sequence),
        Case("selective, sequence parallel", "selective", config.sequence // TP),
    )
    measured = {case.name: measure(rank, case, ops, clock) for case in cases}
    after = matmul_rates(config, clock, squares)
    rate = max([*before.values(), *after.values()])
    results = {name: add_shares(case, rate) for name, case in measured.items()}
    for name, result in results.items():
        print_case(name, result)
    lines = [(name, f"{before[name] / 1e12:.4g}", f"{after[name] / 1e12:.4g}") for name in before]
    print_table("products", ("y = x Wᵀ", "TFLOP/s before", "after"), lines)
    about |= gpu() | {"left out": clock.left_out}
    write_gpu_result(
        {
            "goal": GOAL,
            "shares": {name: result["share"] for name, result in results.items()},
            **about,
            "cases": results,
            "matmul": {"before": before, "after": after},
            "layers": layers,
            "tp": TP,
            "model": config.model_dump(mode="json"),
        },
        options,
    )


if __name__ == "__main__":
    main()
