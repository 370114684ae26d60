"""One tensor-parallel rank's slices in the decoder's own layers, without communication.

A sum over ranks stays this rank's own term. Under sequence parallelism (Korthikanti et al. 2022, section 4.2.2) the
other ranks' data is replaced by a fixed tensor of ordinary numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from mtnlg_model.decoder import DecoderLayer, Linear
from mtnlg_parallel.layout import SLICED_AXES

from .clock import DEVICE, DTYPE, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.functional import Ops

    Product = Callable[[Tensor, Tensor], Tensor]

TP = 8


class Rank(NamedTuple):
    """A rank's slices of its layers' weights, the input of a micro-batch, and the gradient of its output."""

    config: ModelConfig
    weights: list[dict[str, nn.Parameter]]
    x_SBH: Tensor  # noqa: N815  (its shape)
    upstream_SBH: Tensor  # noqa: N815  (its shape)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All layers' weights."""
        return [parameter for layer in self.weights for parameter in layer.values()]


def make_rank(config: ModelConfig, layers: int) -> Rank:
    """Return a rank with slices as initialized for training, and normal numbers for activations and gradients."""
    numbers = generator(1)
    with torch.device("meta"):
        full = DecoderLayer(config, 0)
    weights = [
        {name: _slice(name, parameter, config.std, numbers) for name, parameter in full.named_parameters()}
        for _ in range(layers)
    ]
    size = (config.sequence, 1, config.hidden)
    x_SBH, upstream_SBH = (torch.randn(size, generator=numbers, device=DEVICE).to(DTYPE) for _ in range(2))
    return Rank(config, weights, x_SBH.requires_grad_(), upstream_SBH / config.hidden)


def _slice(name: str, full: Tensor, std: float, numbers: torch.Generator | None) -> nn.Parameter:
    size = [length // TP if axis == SLICED_AXES.get(name) else length for axis, length in enumerate(full.shape)]
    if name.endswith("norm.weight"):
        return nn.Parameter(torch.ones(size, device=DEVICE, dtype=DTYPE))
    return nn.Parameter((std * torch.randn(size, generator=numbers, device=DEVICE)).to(DTYPE))


def make_layers(rank: Rank, ops: Ops) -> list[DecoderLayer]:
    """Return the decoder's layers with the rank's slices; they read heads and widths off the tensors."""
    layers = []
    for number, weights in enumerate(rank.weights):
        with torch.device("meta"):
            layer = DecoderLayer(rank.config, number, ops)
        for name, parameter in weights.items():
            module, _, leaf = name.rpartition(".")
            setattr(layer.get_submodule(module), leaf, parameter)
        layers.append(layer)
    return layers


class _Gather(Function):
    """Part of the sequence → the whole, replaced by a fixed tensor; backward: this rank's part of the gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, whole: Tensor) -> Tensor:  # noqa: ANN401  (autograd's context)
        ctx.rows = part.shape[0]
        return whole.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        return gradients[0][: ctx.rows], None


class _Scatter(Function):
    """Partial sums over the whole sequence → this rank's part; backward: the whole gradient, a fixed tensor."""

    @staticmethod
    def forward(ctx: Any, partial_sums: Tensor, whole: Tensor) -> Tensor:  # noqa: ANN401  (as above)
        ctx.save_for_backward(whole)
        return partial_sums[: partial_sums.shape[0] // TP].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        del gradients
        return ctx.saved_tensors[0].detach(), None


class Whole(nn.Module):
    """A `Linear` over the whole sequence."""

    def __init__(self, linear: Linear, product: Product) -> None:
        super().__init__()
        self.weight, self.bias, self.product = linear.weight, linear.bias, product

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] → [..., outputs]."""
        return self.product(x, self.weight)


class Column(nn.Module):
    """A `Linear` from a part of the sequence to all of its rows."""

    def __init__(self, linear: Linear, product: Product, whole_SBH: Tensor) -> None:
        super().__init__()
        self.weight, self.bias, self.product, self.whole_SBH = linear.weight, linear.bias, product, whole_SBH

    def forward(self, x_SBH: Tensor) -> Tensor:
        """[S / tp, B, inputs] → [S, B, outputs / tp]."""
        gathered: Tensor = _Gather.apply(x_SBH, self.whole_SBH)  # type: ignore[no-untyped-call]
        return self.product(gathered, self.weight)


class Row(nn.Module):
    """A `Linear` from all rows to a part of the sequence."""

    def __init__(self, linear: Linear, product: Product, gradient_SBH: Tensor) -> None:
        super().__init__()
        self.weight, self.bias, self.product, self.gradient_SBH = linear.weight, linear.bias, product, gradient_SBH

    def forward(self, x_SBF: Tensor) -> Tensor:
        """[S, B, inputs / tp] → [S / tp, B, outputs]."""
        part: Tensor = _Scatter.apply(self.product(x_SBF, self.weight), self.gradient_SBH)  # type: ignore[no-untyped-call]
        return part


def replace_products(layer: DecoderLayer, rank: Rank, product: Product, sequence_parallel: bool) -> DecoderLayer:
    """Return the layer with ``product`` for x Wᵀ; between products it has the sequence, or a part of it."""
    for name, linear in list(layer.named_modules()):
        if isinstance(linear, Linear):
            module: nn.Module = Whole(linear, product)
            if sequence_parallel and SLICED_AXES[f"{name}.weight"] == 0:
                module = Column(linear, product, rank.x_SBH.detach())
            elif sequence_parallel:
                module = Row(linear, product, rank.upstream_SBH)
            layer.set_submodule(name, module)
    return layer
