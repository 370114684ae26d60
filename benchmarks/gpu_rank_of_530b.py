"""What one GPU of MT-NLG's 2,240 computes: three layers of 105, an eighth of each weight, without communication.

    python benchmarks/gpu_rank_of_530b.py [--rounds 5] [--repeats 5] [--out FILE]
    TRITON_INTERPRET=1 python benchmarks/gpu_rank_of_530b.py --tiny

Hidden 20480, 16 of 128 heads, sequence 2048, micro-batch 1, bf16, forward and backward (paper.md sections 1 and 3):

    full            every layer recomputed, as the paper's run
    sequence        selective recomputation, norms and dropout on an eighth of the sequence (Korthikanti et al. 2022)

The decoder's own layers, with our kernels, in plain PyTorch, and that under torch.compile, on the same weights in the
same rounds. Three counts of operations: the model's, 72 B s l h² (1 + s / 6h) / 8; the hardware's, 96 likewise
(Narayanan et al. 2021, equation 3, layers alone), or 72 and 4 s² h a layer where attention alone is recomputed; and
those of the products that were in fact run. The last, over the time, is what a share of the matmul rate is given of,
which is the best of several products measured in the same run. Goal: 0.75. Then where the rest goes, by the profiler.
A result is kept of a GPU alone; made for less than eight minutes and 40 GB.
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

from gpu_clock import DEVICE, DTYPE, GPU, clock_of, compiled, kept, kernels, parsed, release, table
from gpu_profile import where
from gpu_rank_parts import TP, Rank, cut_along_sequence, layers_of, rank_of
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
    """A way to train: what is recomputed, and how much of the sequence lies between the products."""

    name: str
    recompute: str
    rows: int


class Side(NamedTuple):
    """Who does it; ``added`` keeps weight gradients, in bf16, and adds the next ones to them, as autograd does."""

    ops: Ops
    compiled: bool = False
    added: bool = False


def formula(config: ModelConfig, layers: int, case: Case) -> dict[str, float]:
    """Operations of a rank's micro-batch, the model's and the hardware's; attention's triangle counts as a square."""
    s, h = config.sequence, config.hidden
    model, forward = (n * s * h**2 * (1 + s / (6 * h)) for n in (72, 24))
    again = forward if case.recompute == "full" else 4 * s**2 * h
    return {"model": layers * model / TP, "hardware": layers * (model + again) / TP}


def step_of(rank: Rank, case: Case, side: Side) -> Callable[[], None]:
    """A micro-batch forward and backward through the layers."""
    ops = side.ops
    if case.recompute == "selective" and not side.compiled:
        # As training has it. A compiler decides for itself what it keeps of a layer.
        ops = replace(ops, attention=partial(recomputed, ops.attention))
    layers: list[Any] = layers_of(rank, ops)
    if case.recompute == "selective":
        layers = [cut_along_sequence(layer, rank) for layer in layers]
    if side.compiled:
        layers = [compiled(layer) for layer in layers]
    x_SBH = rank.x_SBH.detach()[: case.rows].requires_grad_()
    upstream_SBH = rank.upstream_SBH[: case.rows]

    def step() -> None:
        x_SBH.grad = None
        if not side.added:
            for parameter in rank.parameters:
                parameter.grad = None
        y_SBH: Tensor = x_SBH
        for layer in layers:
            y_SBH = recomputed(layer, y_SBH) if case.recompute == "full" else layer(y_SBH)
        y_SBH.backward(upstream_SBH)  # type: ignore[no-untyped-call]

    return step


def recomputed(function: Any, *inputs: Any) -> Any:  # noqa: ANN401  (any function of tensors)
    """As mtnlg_parallel.model.tensor_parallel has it, which needs megatron-core."""
    return checkpoint(function, *inputs, use_reentrant=False)


def products_run(step: Callable[[], None]) -> float:
    """Operations of the matrix products of a step, attention's among them, as PyTorch was asked for them."""
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def matmul_rates(config: ModelConfig, clock: Clock, squares: tuple[int, ...]) -> dict[str, float]:
    """Operations a second of x Wᵀ, dy W and dyᵀ x: of large squares, and of a layer's own shapes."""
    s, h = config.sequence, config.hidden
    own = ((s, 3 * h // TP, h), (s, h, h // TP), (s, 4 * h // TP, h), (s, h, 4 * h // TP))
    rates = {}
    for m, n, k in [*((size,) * 3 for size in squares), *own]:
        x, weight, dy = (torch.randn(size, device=DEVICE).to(DTYPE) for size in ((m, k), (n, k), (m, n)))
        sides = {"x Wᵀ": (x, weight.t()), "dy W": (dy, weight), "dyᵀ x": (dy.t(), x)}
        times = clock.compare({side: partial(torch.mm, *pair) for side, pair in sides.items()})
        for side, found in times.items():
            rates[f"{side}, x {m} x {k}, y {m} x {n}"] = 2 * m * n * k / found.median
        del x, weight, dy, sides
    return rates


def measure(rank: Rank, case: Case, ops: Ops, clock: Clock) -> dict[str, Any]:
    """All sides of a case; of the paper's also what it takes to add gradients to those of earlier micro-batches."""
    sides = {"kernels": Side(ops), "eager": Side(EAGER), "torch.compile": Side(EAGER, compiled=True)}
    if case.recompute == "full":
        sides["kernels, gradients added"] = Side(ops, added=True)
    steps = {name: step_of(rank, case, side) for name, side in sides.items()}
    times = clock.compare(steps, case.name)
    found: dict[str, Any] = {"formula": formula(rank.config, len(rank.weights), case), "sides": {}}
    for name, taken in times.items():
        step, side = steps[name], sides[name]
        found["sides"][name] = {
            "seconds": taken._asdict(),
            "products run": None if side.compiled else products_run(step),
            "peak_bytes": peak_of(step),
            "where": {} if side.added else where(step),
        }
    release()
    return found


def peak_of(step: Callable[[], None]) -> int | None:
    """Bytes that a step has at most, weights among them."""
    if not GPU:
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def rated(found: dict[str, Any], rate: float) -> dict[str, Any]:
    """A case with ratios and shares, which come first."""
    ratios, sides = {}, found["sides"]
    mine = sides["kernels"]["seconds"]["median"]
    for name, side in sides.items():
        seconds = side["seconds"]["median"]
        if name != "kernels":
            ratios[f"{name} / kernels"] = seconds / mine
        rates = {kind: count / seconds for kind, count in found["formula"].items()}
        rates["products run"] = side["products run"] / seconds if side["products run"] else None
        side["tflops"] = {kind: each / 1e12 if each else None for kind, each in rates.items()}
        side["share of matmul rate"] = {kind: each / rate if each else None for kind, each in rates.items()}
    return {"ratios": ratios, "share": sides["kernels"]["share of matmul rate"]["products run"], **found}


def show(name: str, case: dict[str, Any]) -> None:
    """Print a case: ratios and rates, then where the time goes."""
    kinds = ("products run", "hardware", "model")
    lines = [_line(side, found, kinds, case) for side, found in case["sides"].items()]
    rates = ("of the matmul rate: run", "hardware", "model", "TFLOP/s: run", "hardware", "model")
    table(name, ("", "time / kernels", *rates, "run / hardware", "ms (rounds)", "GB"), lines)
    for side, found in case["sides"].items():
        lines = [(what, f"{share:.1%}", f"{seconds * 1e3:.2f}") for what, (share, seconds) in found["where"].items()]
        if lines:
            table(f"{name}, {side}: where a step goes", ("", "share", "ms"), lines)


def _line(side: str, found: dict[str, Any], kinds: tuple[str, ...], case: dict[str, Any]) -> tuple[str, ...]:
    seconds, shares, run = found["seconds"], found["share of matmul rate"], found["products run"]
    return (
        side,
        f"{case['ratios'].get(f'{side} / kernels', 1.0):.2f}",
        *(f"{shares[kind]:.3f}" if shares[kind] else "" for kind in kinds),
        *(f"{found['tflops'][kind]:.0f}" if shares[kind] else "" for kind in kinds),
        f"{run / case['formula']['hardware']:.3f}" if run else "",
        f"{seconds['median'] * 1e3:.1f} ({seconds['least'] * 1e3:.1f} to {seconds['greatest'] * 1e3:.1f})",
        f"{found['peak_bytes'] / 1e9:.1f}" if found["peak_bytes"] else "",
    )


def main() -> None:
    """Measure, print, and keep the result of a GPU."""
    options = parsed(__doc__, "gpu-rank-of-530b", repeats=5)
    ops, about = kernels(options.tiny), conditions()
    config, layers, squares = (TINY, 1, (32,)) if options.tiny else (PRESETS["mt-nlg-530b"], LAYERS, SQUARES)
    clock = clock_of(options, flush=False)
    before = matmul_rates(config, clock, squares)
    rank = rank_of(config, layers)
    ways = (
        Case("full recomputation", "full", config.sequence),
        Case("selective, sequence parallel", "selective", config.sequence // TP),
    )
    found = {case.name: measure(rank, case, ops, clock) for case in ways}
    after = matmul_rates(config, clock, squares)
    rate = max([*before.values(), *after.values()])
    cases = {name: rated(case, rate) for name, case in found.items()}
    for name, case in cases.items():
        show(name, case)
    lines = [(name, f"{before[name] / 1e12:.4g}", f"{after[name] / 1e12:.4g}") for name in before]
    table("products", ("y = x Wᵀ", "TFLOP/s before", "after"), lines)
    shares = {name: case["share"] for name, case in cases.items()}
    about |= gpu() | {"left out": clock.left_out}
    result = {"goal": GOAL, "shares": shares, **about, "cases": cases, "matmul": {"before": before, "after": after}}
    kept(result | {"layers": layers, "tp": TP, "model": config.model_dump(mode="json")}, options)


if __name__ == "__main__":
    main()
