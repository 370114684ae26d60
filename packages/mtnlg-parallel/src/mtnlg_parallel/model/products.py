"""A layer's tensor-parallel products, and where their weight gradients go.

    column    y = x Wᵀ      every rank has all of x and its own columns of y        x is gathered, dx summed
    row       y = Σ x Wᵀ    every rank has its own columns of x, and y is summed    dy is gathered

Sums and gathers are over the tensor-parallel ranks: all-reduces, or under sequence parallelism reduce-scatters and
all-gathers of the first axis (Korthikanti et al. 2022, section 4.2.2). In backward each overlaps with a product:
gathers of x with the product for dx; gathers of dy and sums of dx with a product for dW, deferred from the previous
layer of backward if a sink allows it. In forward a sequence is split into `pieces`: a piece's gather overlaps with the
product of the previous piece, its sum with the product of the next. Products of one x, such as SwiGLU's, share its
gathers, its rounding and the sum of dx over the ranks.

A layer's weight is a `SlicedWeight`. Its dW goes to the `GradientSink` that an engine has set, or else to autograd. A
sink can add dW in fp32 inside the product (`add_product`), and can defer it, since it needs only dy and x. Backward
refers to the layer itself, not to a saved tensor of its weight, which recomputation and hooks replace.

With the slicing's ``eight_bit`` all three products have 8-bit factors (`eight_bit`), and x is kept for dW in 8 bits:
transposed, or under sequence parallelism this rank's rows, which backward gathers. Ranks exchange nothing else in 8
bits.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mtnlg_parallel import layout
from mtnlg_parallel.waiting import wait_for

from . import eight_bit
from .eight_bit import BACKWARD, FORWARD, Factor
from .sequence_parallel import start_all_gather, start_reduce_scatter, wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Work

    from .slicing import Slicing


@cache
def adds_in_fp32(device: torch.device) -> bool:
    """Whether addmm adds a product of bf16 factors to an fp32 sum on this GPU; tries it, as torch releases differ."""
    factor, total = (torch.ones(16, 16, dtype=dtype, device=device) for dtype in (torch.bfloat16, torch.float32))
    try:
        torch.addmm(total, factor, factor, out_dtype=total.dtype, out=total)
    except (RuntimeError, TypeError):
        return False
    return True


HAS_ONEDNN: Final = torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)


def matmul(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """[..., K] x [K, N], outside autograd, into ``out`` if given; in fp32 on a CPU by oneDNN, which ignores ``out``.

    torch would use MKL, which uses half the width of AMD's vectors: 95 GFLOP/s per core against 230 on an EPYC 9005.
    """
    if not _is_onednns(left):
        return torch.matmul(left, right, out=out)
    # The call that Inductor generates.
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")  # noqa: SLF001
    return product


def add_matmul(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """Add the product to ``total``, or overwrite it if ``first``."""
    if _is_onednns(left):
        product = matmul(left, right)
        total.copy_(product) if first else total.add_(product)
    else:
        torch.addmm(total, left, right, beta=int(not first), out=total)


def _is_onednns(factor: Tensor) -> bool:
    """Whether oneDNN multiplies: not in evaluation, whose scores must not depend on the batch (docs/decisions/0085)."""
    suits = factor.is_cpu and factor.dtype == torch.float32 and factor.numel() > 0
    return HAS_ONEDNN and suits and not torch.is_inference_mode_enabled()


class GradientSink(Protocol):
    """Takes a weight's gradient in place of autograd."""

    def product(self, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> None:
        """Add dy xᵀ, a sum over tokens, now or later. Both arguments are tensors, or both are factors."""

    def beside(self) -> None:
        """Run a deferred product, if any, while a collective is in flight."""


class SlicedWeight(nn.Module):
    """A rank's slice of a weight, [O, I], its slicing, and the sink of its gradient."""

    def __init__(self, weight_OI: nn.Parameter, slicing: Slicing) -> None:
        super().__init__()
        self.weight, self.slicing = weight_OI, slicing
        self.sink: GradientSink | None = None


def column(x: Tensor, layer: SlicedWeight) -> Tensor:
    """[S, …, I] → this rank's columns [S, …, O]; under sequence parallelism x is this rank's part, [S/tp, …, I]."""
    return columns(x, layer)[0]


def columns(x: Tensor, *layers: SlicedWeight) -> tuple[Tensor, ...]:
    """`column` for each layer, with one gather and one rounding of x, and one sum of dx."""
    ys: tuple[Tensor, ...] = _Columns.apply(x, layers, *(layer.weight for layer in layers))  # type: ignore[no-untyped-call]
    return ys


def row(x: Tensor, layer: SlicedWeight) -> Tensor:
    """[S, …, I], this rank's columns → [S, …, O]; under sequence parallelism this rank's part, [S/tp, …, O]."""
    kept: list[Any] = []
    x = _Keep.apply(x, layer.weight, layer.slicing, kept)  # type: ignore[no-untyped-call]
    y: Tensor = _Row.apply(x, layer.weight, layer, kept)  # type: ignore[no-untyped-call]
    return y


@torch.no_grad()
def add_product(total_OI: Tensor, dy_ON: Tensor | Factor, x_IN: Tensor | Factor, *, first: bool) -> None:
    """Add dy xᵀ to the fp32 ``total``, or overwrite it if ``first``. Nothing is rounded to the factors' dtype."""
    dtype = total_OI.dtype
    if isinstance(dy_ON, Tensor) and isinstance(x_IN, Tensor):
        if not total_OI.is_cuda or x_IN.dtype == dtype:
            add_matmul(total_OI, dy_ON.to(dtype), x_IN.t().to(dtype), first)
            return
        if adds_in_fp32(total_OI.device):
            torch.addmm(total_OI, dy_ON, x_IN.t(), beta=int(not first), out_dtype=dtype, out=total_OI)
            return
        dw_OI = torch.mm(dy_ON, x_IN.t(), out_dtype=dtype)
    else:
        dw_OI = _weight_product(dy_ON, x_IN, dtype)
    total_OI.copy_(dw_OI) if first else total_OI.add_(dw_OI)


class _Columns(Function):
    @staticmethod
    def forward(  # (autograd's context)
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        layers: Sequence[SlicedWeight],
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.layers, slicing = layers, layers[0].slicing
        if (number := pieces(slicing, x.shape[0], x.numel() // x.shape[-1])) > 1:
            ctx.save_for_backward(x)
            return _gathered_products(x, weights, slicing, number)
        whole, x_NI = wait(*_gather(x, slicing)), None
        if slicing.eight_bit is None:
            ctx.save_for_backward(x)
        else:
            x_NI, x_IN = slicing.eight_bit.rounded(_matrix(whole), FORWARD, not slicing.sequence_parallel)
            local = (
                x_NI.values.chunk(slicing.degree)[slicing.rank].clone() if slicing.sequence_parallel else x_IN.values
            )
            ctx.save_for_backward(local, x_NI.scale)
        return tuple(_forward(x_NI, whole, weight, slicing) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        (x, *scale), layers = ctx.saved_tensors, ctx.layers
        slicing = layers[0].slicing
        gathered = _gather(x.view(torch.uint8) if scale else x, slicing)  # which every backend can gather
        dx, dy_ON = _backward(dys[0], layers[0].weight, slicing)
        factors = [dy_ON]
        for dy, layer in zip(dys[1:], layers[1:], strict=True):
            more, dy_ON = _backward(dy, layer.weight, slicing)
            dx += more
            factors.append(dy_ON)
        summed = start_sum(dx, slicing)
        _run_beside(summed[1], layers[0])
        x = wait(*gathered)
        if not any(ctx.needs_input_grad[2:]):
            return wait(*summed), None, *(None for _ in layers)
        if slicing.eight_bit and slicing.sequence_parallel:
            x = slicing.eight_bit.transpose(x.view(FORWARD))
        x_IN = Factor(x.view(FORWARD), *scale) if scale else _matrix(x).t()
        dws = [_weight_gradient(layer, dy_ON, x_IN) for layer, dy_ON in zip(layers, factors, strict=True)]
        return wait(*summed), None, *dws


class _Keep(Function):
    """Saves a row product's inputs for backward before the product runs.

    Autograd saves a function's tensors when it has run, and recomputation stops once all saved tensors exist. So it
    skips a layer's last product, and its sum over the ranks, if nothing after it needs the result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slicing: Slicing, kept: list[Any]) -> Tensor:  # noqa: ANN401  (as above)
        del weight
        factor = None
        if slicing.eight_bit is None:
            ctx.save_for_backward(x)
        else:
            factor, x_IN = slicing.eight_bit.rounded(_matrix(x), FORWARD, True)
            ctx.save_for_backward(*x_IN)
        kept += [ctx, factor]
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401  (as above)
        del ctx
        return dx, None, None, None


class _Row(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: SlicedWeight, kept: list[Any]) -> Tensor:  # noqa: ANN401  (as above)
        x_NI = kept.pop()
        ctx.layer, ctx.kept = layer, kept
        ranks = layer.slicing.degree
        if (number := pieces(layer.slicing, x.shape[0] // ranks, x.numel() // x.shape[-1] // ranks)) > 1:
            return _summed_product(x, weight, layer.slicing, number)
        return wait(*start_sum(_forward(x_NI, x, weight, layer.slicing), layer.slicing))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # noqa: ANN401  (as above)
        (x, *scale), layer = ctx.kept[0].saved_tensors, ctx.layer
        gathered = _gather(dy, layer.slicing)
        _run_beside(gathered[1], layer)
        dx, dy_ON = _backward(wait(*gathered), layer.weight, layer.slicing)
        x_IN = Factor(x, *scale) if scale else _matrix(x).t()
        return dx, _weight_gradient(layer, dy_ON, x_IN) if ctx.needs_input_grad[1] else None, None, None


def pieces(slicing: Slicing, positions: int, tokens: int) -> int:
    """Number of pieces of a forward product, given each rank's positions and tokens; 1 if it is not split."""
    if slicing.eight_bit or not slicing.sequence_parallel:
        return 1
    number = layout.forward_pieces(slicing.degree, tokens * slicing.degree)
    return 1 if positions % number else number


def _gathered_products(x: Tensor, weights: Sequence[Tensor], slicing: Slicing, number: int) -> tuple[Tensor, ...]:
    """Each product of the whole x, [S/tp, …, I] → [S, …, O]; the next piece is gathered beside a piece's products."""
    ys = [x.new_empty(len(x) * slicing.degree, *x.shape[1:-1], len(weight)) for weight in weights]
    gathered = _gather(x.chunk(number)[0], slicing)
    for place, following in enumerate((*x.chunk(number)[1:], None)):
        piece, gathered = gathered, (x, None) if following is None else _gather(following, slicing)
        x_RNI = wait(*piece).view(slicing.degree, -1, x.shape[-1])
        for y, weight in zip(ys, weights, strict=True):
            _multiply(x_RNI, weight, _by_rank(y, slicing, number)[place])
    return tuple(ys)


def _summed_product(x: Tensor, weight: Tensor, slicing: Slicing, number: int) -> Tensor:
    """The summed product, [S, …, I] → [S/tp, …, O]; one piece is summed beside the product of the next."""
    y = x.new_empty(len(x) // slicing.degree, *x.shape[1:-1], len(weight))
    sums = []
    for x_RNI, part in zip(_by_rank(x, slicing, number), y.chunk(number), strict=True):
        partial = x.new_empty(*x_RNI.shape[:-1], len(weight))
        _multiply(x_RNI, weight, partial)
        summed = partial.view(-1, *y.shape[1:])
        sums.append((distributed.reduce_scatter_tensor(part, summed, group=slicing.group, async_op=True), partial))
    for work, _ in sums:
        wait_for(work)
    return y


def _by_rank(x: Tensor, slicing: Slicing, number: int) -> tuple[Tensor, ...]:
    """Split [S, …, I] into pieces [R, N, I], each with the rows of every rank's positions."""
    return x.reshape(slicing.degree, number, -1, x.shape[-1]).unbind(1)


def _multiply(x_RNI: Tensor, weight_OI: Tensor, out_RNO: Tensor) -> None:
    """Write x Wᵀ into a tensor that may be strided along R."""
    if x_RNI.is_cuda:
        torch.bmm(x_RNI, weight_OI.t().expand(len(x_RNI), -1, -1), out=out_RNO)
    else:
        out_RNO.copy_(matmul(x_RNI.contiguous(), weight_OI.t()))


def _run_beside(work: Work | None, layer: SlicedWeight) -> None:
    """Run a deferred product while ``work`` is in flight."""
    if work and layer.sink:
        layer.sink.beside()


def _matrix(x: Tensor) -> Tensor:
    """[..., K] → [N, K]."""
    return x.reshape(-1, x.shape[-1])


def _forward(x_NI: Factor | None, x: Tensor, weight: Tensor, slicing: Slicing) -> Tensor:
    """The product x Wᵀ, with 8-bit factors if ``x_NI`` is one."""
    if x_NI is None or slicing.eight_bit is None:
        return matmul(x, weight.t())
    w_OI, _ = slicing.eight_bit.weight(weight)
    return eight_bit.product(x_NI, w_OI, x.dtype).view(*x.shape[:-1], -1)


def _backward(dy: Tensor, weight: Tensor, slicing: Slicing) -> tuple[Tensor, Tensor | Factor]:
    """The product dy W, and dy as the factor [O, N] of dW."""
    if slicing.eight_bit is None:
        return matmul(dy, weight), _matrix(dy).t()
    dy_NO, dy_ON = slicing.eight_bit.rounded(_matrix(dy), BACKWARD, True)
    _, w_IO = slicing.eight_bit.weight(weight)
    return eight_bit.product(dy_NO, w_IO, dy.dtype).view(*dy.shape[:-1], -1), dy_ON


def _weight_gradient(layer: SlicedWeight, dy_ON: Tensor | Factor, x_IN: Tensor | Factor) -> Tensor | None:
    if layer.sink is None:
        return _weight_product(dy_ON, x_IN, layer.weight.dtype)
    layer.sink.product(dy_ON, x_IN)
    return None


def _weight_product(dy_ON: Tensor | Factor, x_IN: Tensor | Factor, dtype: torch.dtype) -> Tensor:
    """The product dy xᵀ; of 8-bit factors in ``dtype``."""
    if isinstance(dy_ON, Tensor) and isinstance(x_IN, Tensor):
        return matmul(dy_ON, x_IN.t())
    return eight_bit.product(dy_ON, x_IN, dtype)  # type: ignore[arg-type]  # both are of one kind


def _gather(local: Tensor, slicing: Slicing) -> tuple[Tensor, Work | None]:
    """Under sequence parallelism the whole sequence, valid once the work is done; else ``local`` itself."""
    return start_all_gather(local, slicing.group) if slicing.sequence_parallel else (local, None)


def start_sum(partial: Tensor, slicing: Slicing) -> tuple[Tensor, Work | None]:
    """The sum over the ranks, valid once the work is done; under sequence parallelism only this rank's part of it."""
    if slicing.sequence_parallel:
        return start_reduce_scatter(partial, slicing.group)
    return partial, None if slicing.degree == 1 else distributed.all_reduce(partial, group=slicing.group, async_op=True)
