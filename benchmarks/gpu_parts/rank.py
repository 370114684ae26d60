"""The work of one of MT-NLG's 2,240 GPUs: three of 105 layers, an eighth of each weight, without communication.

Hidden 20480, 16 of 128 heads, sequence 2048, micro-batch 1, bf16, forward and backward (paper.md sections 1 and 3):

    selective    selective recomputation, norms and dropout on an eighth of the sequence (Korthikanti et al. 2022)
    full         every layer recomputed, as the paper's run

Weight gradients are added up in fp32, as in training: inside the product (`products.add_product`), or after it from
gradients in bf16. The decoder's own layers run with our kernels, in plain PyTorch, under torch.compile, and with
products of 8-bit factors (`eight_bit`); each of the others in the same rounds as our kernels. Three counts of FLOPs:
the model's, 72 B s l h² (1 + s / 6h) / 8; the hardware's, with 96 instead of 72 (Narayanan et al. 2021, equation 3,
layers alone), or 72 plus 4 s² h a layer where only attention is recomputed; and those of the matrix products that
PyTorch ran. The last, over the time, is a share of the matmul rate, the best of several products measured in the same
run. Goals: 0.75 of it, and 1.15 x torch.compile.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mtnlg_model.config import ModelConfig
from mtnlg_model.families import PRESETS
from mtnlg_model.functional import EAGER, Ops
from mtnlg_parallel.model import products
from mtnlg_parallel.model.eight_bit import EightBit
from mtnlg_parallel.model.head import ParallelOps
from mtnlg_parallel.model.products import SlicedWeight

from .clock import DEVICE, DTYPE, GPU, Clock, Sampler, compile_fresh, kernels, release
from .operations import SingleRank
from .rank_layers import TP, Rank, make_layers, make_rank, replace_products

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_parallel.model.eight_bit import Factor

    from .rank_layers import Product
    from .results import Results

LAYERS = 3
TINY = ModelConfig(layers=1, hidden=32, heads=8, sequence=8, vocabulary=64)


class Case(NamedTuple):
    """A way to train: what is recomputed, and the rows of the sequence between the matrix products."""

    name: str
    recompute: str
    rows: int


class Side(NamedTuple):
    """An implementation, and where it adds weight gradients up: inside the product of these factors, or after it."""

    ops: Ops
    added: Literal["within", "within, 8 bits", "after"] = "after"
    compiled: bool = False


class Total:
    """A weight's gradients, added up in fp32 inside the product."""

    def __init__(self, weight: Tensor) -> None:
        self.total_OI = torch.zeros_like(weight, dtype=torch.float32)

    def product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        """Add dy xᵀ."""
        products.add_product(self.total_OI, dy_ON, x_IN, first=False)

    def beside(self) -> None:
        """Do nothing: no product waits for a collective."""


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
    split = case.recompute == "selective"
    rounding = ops.eight_bit if isinstance(ops, ParallelOps) and side.added == "within, 8 bits" else None
    slicing: Any = SingleRank(eight_bit=rounding and EightBit(rounding))  # which rounds weights once, as in a step
    within = [weight for weight in rank.parameters if weight.ndim == 2 and side.added != "after"]
    sliced: dict[Tensor, SlicedWeight] = {weight: SlicedWeight(weight, slicing) for weight in within}
    for weight in within:
        sliced[weight].sink = Total(weight)
    multiply: Product = F.linear if side.added == "after" else lambda x, weight: products.row(x, sliced[weight])
    layers: list[Any] = [replace_products(layer, rank, multiply, split) for layer in make_layers(rank, ops)]
    if side.compiled:
        layers = [compile_fresh(layer) for layer in layers]
    x_SBH = rank.x_SBH.detach()[: case.rows].requires_grad_()
    upstream_SBH = rank.upstream_SBH[: case.rows]
    after = [weight for weight in rank.parameters if weight not in sliced]
    totals = [torch.zeros_like(weight, dtype=torch.float32) for weight in after]

    def step() -> None:
        x_SBH.grad = None
        for weight in rank.parameters:
            weight.grad = None
        y_SBH: Tensor = x_SBH
        for layer in layers:
            y_SBH = recompute(layer, y_SBH) if case.recompute == "full" else layer(y_SBH)
        y_SBH.backward(upstream_SBH)  # type: ignore[no-untyped-call]
        torch._foreach_add_(totals, [weight.grad for weight in after if weight.grad is not None])

    return step


def recompute(function: Any, *inputs: Any) -> Any:  # noqa: ANN401  (any function of tensors)
    """Recompute ``function`` backward, as mtnlg_parallel.model.tensor_parallel does."""
    return checkpoint(function, *inputs, use_reentrant=False)


def count_products(step: Callable[[], None]) -> float:
    """Return the FLOPs of a step's matrix products, attention's included, counted by PyTorch.

    Its own count of addmm (until 2.13 at least) has no place for the dtype of the sum.
    """
    own: dict[Any, Callable[..., int]] = {torch.ops.aten.addmm: _added_product_flops}
    if products.HAS_ONEDNN:  # which counts none
        own[torch.ops.mkldnn._linear_pointwise] = _linear_flops  # noqa: SLF001
    with FlopCounterMode(display=False, custom_mapping=own) as counter:
        step()
    return float(counter.get_total_flops())


def _added_product_flops(_total: torch.Size, a_MK: torch.Size, b_KN: torch.Size, *_: object, **__: object) -> int:
    return 2 * a_MK.numel() * b_KN[-1]


def _linear_flops(x: torch.Size, weight_NK: torch.Size, *_: object, **__: object) -> int:
    return 2 * x.numel() * weight_NK[0]


def sides_of(ops: Ops) -> dict[str, Side]:
    """Return the sides, ours first and then in order of worth."""
    return {
        "kernels": Side(ops, "within"),
        "eager": Side(EAGER),
        "torch.compile": Side(EAGER, compiled=True),
        "kernels, 8 bits": Side(ops, "within, 8 bits"),
    }


def setting(tiny: bool) -> tuple[ModelConfig, int, tuple[Case, ...]]:
    """Return the model, how many of its layers run, and the cases."""
    config, layers = (TINY, 1) if tiny else (PRESETS["mt-nlg-530b"], LAYERS)
    selective = Case("selective", "selective", config.sequence // TP)
    return config, layers, (selective, Case("full", "full", config.sequence))


def measure(  # noqa: PLR0917  (called in one place)
    rank: Rank, case: Case, side: str, ops: Ops, clock: Clock, rate: float
) -> tuple[str, dict[str, Any]]:
    """Time a side of a case beside our kernels, with power and clock meanwhile; returns a line and its figures."""
    sides = sides_of(ops)
    steps = {name: make_step(rank, case, sides[name]) for name in dict.fromkeys(("kernels", side))}
    count = None if sides[side].compiled else count_products(steps[side])
    with Sampler() as sampler:
        times = clock.compare(steps, f"{case.name}, {side}")
    if side not in times:
        raise RuntimeError(clock.left_out.pop())
    seconds = times[side].median
    flops = count_flops(rank.config, len(rank.weights), case) | ({} if count is None else {"products run": count})
    share = {kind: each / seconds / rate for kind, each in flops.items()}
    figures = {
        "seconds": times[side]._asdict(),
        "ratio": seconds / times["kernels"].median,
        "flops": flops,
        "tflops": {kind: each / seconds / 1e12 for kind, each in flops.items()},
        "share of matmul rate": share,
        "peak_bytes": peak_bytes(steps[side]),
        "layers": len(rank.weights),
        "during": sampler.figures,
    }
    shares = ", ".join(f"{kind} {each:.2f}" for kind, each in share.items())
    return f"{seconds * 1e3:.1f} ms, {figures['ratio']:.2f} x our kernels; of the matmul rate: {shares}", figures


def peak_bytes(step: Callable[[], None]) -> int | None:
    """Return the peak GPU memory of a step, weights and both sides' totals included; None on a CPU."""
    if not GPU:
        return None
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def own_rate(config: ModelConfig, clock: Clock) -> float:
    """Return the best FLOP/s of a product of a layer's own shapes or of a large square, forward."""
    s, h = config.sequence, config.hidden
    best = 0.0
    for m, n, k in ((8192 if GPU else 32,) * 3, (s, 3 * h // TP, h), (s, 4 * h // TP, h), (s, h, 4 * h // TP)):
        x, weight = (torch.randn(size, device=DEVICE).to(DTYPE) for size in ((m, k), (n, k)))
        seconds = clock.compare({"product": partial(torch.mm, x, weight.t())})["product"].median
        best = max(best, 2 * m * n * k / seconds)
    return best


def main(tiny: bool, results: Results) -> None:
    """Measure; each side of a case is a row as soon as it has been timed."""
    ops, clock = kernels(), Clock(tiny, rounds=5, repeats=5, flush=False)
    config, layers, cases = setting(tiny)
    rank, rate = make_rank(config, layers), own_rate(config, clock)
    results.add("matmul rate", f"{rate / 1e12:.0f} TFLOP/s", {"tflops": rate / 1e12})
    for case in cases:
        for side in sides_of(ops):
            if results.has(key := f"{case.name}, {side}"):
                continue
            with results.attempt(key):
                results.add(key, *measure(rank, case, side, ops, clock, rate))
            release()
