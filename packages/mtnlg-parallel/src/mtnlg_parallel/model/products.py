"""The sliced products of a layer, and where their weight gradients go.

    column    y = x Wᵀ      every rank has all of x and its own columns of y        x is gathered, dx summed
    row       y = Σ x Wᵀ    every rank has its own columns of x, and y is summed    dy is gathered

Sums and gathers are over the tensor-parallel ranks: all-reduces, or under sequence parallelism reduce-scatters and
all-gathers of the first axis (Korthikanti et al. 2022, section 4.2.2). In backward each is in flight beside a product:
gathers beside the one for dx, sums of dx beside the one for dW.

dW goes to the weight's `GradientSink` where an engine has set one, and else to autograd. A sink can add it in fp32
inside the product (`add_product`), and do so later: all that it needs is dy and x. Backward has the weight itself, not
a saved tensor: recomputation and hooks of saved tensors return another object, without sink or factors of 8 bits.

Where the slicing says ``eight_bit`` all three products are of 8-bit factors (`eight_bit`); what crosses ranks is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from . import eight_bit
from .eight_bit import BACKWARD, FORWARD, Factor, rounded, weight_factor

if TYPE_CHECKING:
    from torch.distributed import Work

    from .slicing import Slicing


ADDS_IN_FP32 = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)
"""Whether addmm adds a product of bf16 factors to an fp32 sum on a GPU; `benchmarks/gpu.py` may meet an older one."""


class GradientSink(Protocol):
    """Takes a weight's gradient in place of autograd; the attribute ``gradient_sink`` of a parameter."""

    def product(self, dy_NO: Tensor | Factor, x_NI: Tensor | Factor) -> None:
        """Add dyᵀ x, now or later; both factors are of one kind."""


def column(x: Tensor, weight_OI: Tensor, slicing: Slicing) -> Tensor:
    """[S, …, I] → [S, …, O], this rank's columns; under sequence parallelism from this rank's part, [S/tp, …, I]."""
    y: Tensor = _Column.apply(x, weight_OI, slicing)  # type: ignore[no-untyped-call]
    return y


def row(x: Tensor, weight_OI: Tensor, slicing: Slicing) -> Tensor:
    """[S, …, I], this rank's columns → [S, …, O]; under sequence parallelism this rank's part, [S/tp, …, O]."""
    kept: list[Any] = []
    x = _Keep.apply(x, weight_OI, kept)  # type: ignore[no-untyped-call]
    y: Tensor = _Row.apply(x, weight_OI, slicing, kept)  # type: ignore[no-untyped-call]
    return y


@torch.no_grad()
def add_product(total_OI: Tensor, dy_NO: Tensor | Factor, x_NI: Tensor | Factor, *, first: bool) -> None:
    """Add dyᵀ x to the fp32 ``total``, or with ``first`` overwrite it. Nothing is rounded to the factors' dtype."""
    if not (isinstance(dy_NO, Tensor) and isinstance(x_NI, Tensor)):
        dw_OI = _weight_product(dy_NO, x_NI, total_OI.dtype)
        total_OI.copy_(dw_OI) if first else total_OI.add_(dw_OI)
        return
    factors, beta = (dy_NO.t(), x_NI), int(not first)
    if x_NI.dtype == total_OI.dtype:
        torch.addmm(total_OI, *factors, beta=beta, out=total_OI)
    elif total_OI.is_cuda and not ADDS_IN_FP32:
        dw_OI = torch.mm(*factors, out_dtype=total_OI.dtype)
        total_OI.copy_(dw_OI) if first else total_OI.add_(dw_OI)
    elif total_OI.is_cuda:
        torch.addmm(total_OI, *factors, beta=beta, out_dtype=total_OI.dtype, out=total_OI)
    else:
        torch.addmm(total_OI, *(factor.to(total_OI.dtype) for factor in factors), beta=beta, out=total_OI)


class _Column(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slicing: Slicing) -> Tensor:  # noqa: ANN401  (autograd's context)
        ctx.save_for_backward(x)
        ctx.weight, ctx.slicing = weight, slicing
        return _forward(_wait(*_gather(x, slicing)), weight, slicing)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # noqa: ANN401  (as above)
        (x,), weight = ctx.saved_tensors, ctx.weight
        gathered = _gather(x, ctx.slicing)
        dy_NO = _factor(dy, BACKWARD, ctx.slicing)
        dx = _sum(_backward(dy, dy_NO, weight), ctx.slicing)
        dw = _weight_gradient(weight, dy_NO, _wait(*gathered), ctx.slicing) if ctx.needs_input_grad[1] else None
        return _wait(*dx), dw, None


class _Keep(Function):
    """Keeps for backward what a row product needs, before that runs.

    A function's tensors are kept when it has run. Recomputation ends when all are there that backward asks for: so it
    leaves out a layer's last product, and its sum over the ranks, where nothing behind it needs the result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kept: list[Any]) -> Tensor:  # noqa: ANN401  (as above)
        del weight
        ctx.save_for_backward(x)
        kept.append(ctx)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401  (as above)
        del ctx
        return dx, None, None


class _Row(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slicing: Slicing, kept: list[Any]) -> Tensor:  # noqa: ANN401  (as above)
        ctx.weight, ctx.slicing, ctx.kept = weight, slicing, kept
        return _wait(*_sum(_forward(x, weight, slicing), slicing))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # noqa: ANN401  (as above)
        (kept,) = ctx.kept
        (x,), weight = kept.saved_tensors, ctx.weight
        dy = _wait(*_gather(dy, ctx.slicing))
        dy_NO = _factor(dy, BACKWARD, ctx.slicing)
        dx = _backward(dy, dy_NO, weight)
        return dx, _weight_gradient(weight, dy_NO, x, ctx.slicing) if ctx.needs_input_grad[1] else None, None, None


def _factor(x: Tensor, dtype: torch.dtype, slicing: Slicing) -> Tensor | Factor:
    """[..., K] as a matrix, in 8 bits where the slicing says so."""
    x_NK = x.reshape(-1, x.shape[-1])
    return rounded(x_NK, dtype) if slicing.eight_bit else x_NK


def _forward(x: Tensor, weight: Tensor, slicing: Slicing) -> Tensor:
    """X Wᵀ."""
    x_NI = _factor(x, FORWARD, slicing)
    if not isinstance(x_NI, Factor):
        return x @ weight.t()
    return eight_bit.product(x_NI, weight_factor(weight, transposed=False), x.dtype).view(*x.shape[:-1], -1)


def _backward(dy: Tensor, dy_NO: Tensor | Factor, weight: Tensor) -> Tensor:
    """Dy W."""
    if not isinstance(dy_NO, Factor):
        return dy @ weight
    return eight_bit.product(dy_NO, weight_factor(weight, transposed=True), dy.dtype).view(*dy.shape[:-1], -1)


def _weight_gradient(weight: Tensor, dy_NO: Tensor | Factor, x: Tensor, slicing: Slicing) -> Tensor | None:
    x_NI = _factor(x, FORWARD, slicing)
    sink: GradientSink | None = vars(weight).get("gradient_sink")
    if sink is None:
        return _weight_product(dy_NO, x_NI, weight.dtype)
    sink.product(dy_NO, x_NI)
    return None


def _weight_product(dy_NO: Tensor | Factor, x_NI: Tensor | Factor, dtype: torch.dtype) -> Tensor:
    """Dyᵀ x."""
    if isinstance(dy_NO, Tensor) and isinstance(x_NI, Tensor):
        return dy_NO.t() @ x_NI
    return eight_bit.product(dy_NO.t(), x_NI.t(), dtype)  # type: ignore[arg-type]  # both are of one kind


def _gather(local: Tensor, slicing: Slicing) -> tuple[Tensor, Work | None]:
    """Under sequence parallelism the whole sequence, once the work is done; else ``local`` itself."""
    if not slicing.sequence_parallel:
        return local, None
    full = local.new_empty(local.shape[0] * slicing.degree, *local.shape[1:])
    return full, distributed.all_gather_into_tensor(full, local.contiguous(), group=slicing.group, async_op=True)


def _sum(partial: Tensor, slicing: Slicing) -> tuple[Tensor, Work | None]:
    """The sum over the ranks, once the work is done; under sequence parallelism of this rank's part."""
    if slicing.degree == 1:
        return partial, None
    if not slicing.sequence_parallel:
        return partial, distributed.all_reduce(partial, group=slicing.group, async_op=True)
    local = partial.new_empty(partial.shape[0] // slicing.degree, *partial.shape[1:])
    return local, distributed.reduce_scatter_tensor(local, partial, group=slicing.group, async_op=True)


def _wait(result: Tensor, work: Work | None) -> Tensor:
    if work:
        work.wait()
    return result
