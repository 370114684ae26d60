"""The operations with kernels, each with all its implementations (sides), for `checks` and `kernels`.

A side takes the operation's floating-point tensors and returns its outputs; each side draws its own dropout masks.
Shapes, all of one rank: S sequence, B micro-batch, H hidden, F feed-forward, N heads, D head size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor

from mtnlg_model import functional
from mtnlg_parallel.model import head

from .clock import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_parallel.model.eight_bit import EightBit
    from mtnlg_parallel.model.head import ParallelOps

    Side = Callable[..., tuple[Tensor, ...]]
    Sizes = tuple[tuple[int, ...], ...]

EPS = 1e-5


class Shape(NamedTuple):
    """One rank's part of a decoder."""

    name: str
    sequence: int
    batch: int
    hidden: int
    ffn: int
    heads: int
    head_size: int
    vocabulary: int

    @property
    def x(self) -> tuple[int, int, int]:
        """Shape of x_SBH."""
        return self.sequence, self.batch, self.hidden

    @property
    def up(self) -> tuple[int, int, int]:
        """Shape between the feed-forward layer's products, [S, B, F]."""
        return self.sequence, self.batch, self.ffn


MANY_ROWS = Shape("530B, one rank of tp 8", 2048, 1, 20480, 81920 // 8, 16, 160, 51200 // 8)
FEW_ROWS = MANY_ROWS._replace(name="530B, sequence parallel over 8", sequence=256)
TINY = Shape("tiny", 2, 1, 24, 40, 1, 8, 56)


class SingleRank(NamedTuple):
    """A tensor-parallel group of one: the loss over this rank's slice of the vocabulary, without communication."""

    group: None = None
    rank: int = 0
    degree: int = 1
    sequence_parallel: bool = False
    eight_bit: EightBit | None = None


class Operation(NamedTuple):
    """One operation: sizes of its inputs, its sides, and the tensors that it must move.

    ``moved`` is the least number of tensors of the first input's size that are read or written forward, and backward,
    whatever a side keeps in between. Weights, biases and per-row figures are below a hundredth of them.
    """

    name: str
    inputs: Callable[[Shape], Sizes]
    sides: Callable[[ParallelOps, Shape], dict[str, Side]]
    moved: tuple[int, int] = (0, 0)  # not timed
    drops: bool = False


def _layer_norm(ops: ParallelOps, _: Shape) -> dict[str, Side]:
    def side(norm: Callable[..., Tensor]) -> Side:
        return lambda x, weight, shift: (norm(x, weight, shift, EPS),)

    return {"kernel": side(ops.layer_norm), "eager": side(functional.layer_norm)}


def _add_norm(rate: float) -> Callable[[ParallelOps, Shape], dict[str, Side]]:
    def side(ops: functional.Ops) -> Side:
        return lambda x, bias, residual, weight, shift: ops.bias_dropout_add_norm(
            x, bias, residual, rate, weight, shift, EPS
        )

    return lambda ops, _: {"kernel": side(ops), "eager": side(functional.EAGER)}


def _add(rate: float) -> Callable[[ParallelOps, Shape], dict[str, Side]]:
    def side(ops: functional.Ops) -> Side:
        return lambda x, bias, residual: (ops.bias_dropout_add(x, bias, residual, rate),)

    return lambda ops, _: {"kernel": side(ops), "eager": side(functional.EAGER)}


def _gelu(ops: ParallelOps, _: Shape) -> dict[str, Side]:
    def side(ops: functional.Ops) -> Side:
        return lambda x, bias: (ops.bias_gelu(x, bias),)

    return {"kernel": side(ops), "eager": side(functional.EAGER)}


def _swiglu(ops: ParallelOps, _: Shape) -> dict[str, Side]:
    def side(swiglu: Callable[..., Tensor]) -> Side:
        return lambda gate, x: (swiglu(gate, x),)

    return {"kernel": side(ops.swiglu), "eager": side(functional.swiglu)}


def _rotate(share: int) -> Callable[[ParallelOps, Shape], dict[str, Side]]:
    """Turn a ``share``-th of every head of q and k."""

    def sides(ops: ParallelOps, shape: Shape) -> dict[str, Side]:
        half = shape.head_size // share // 2
        frequencies = 10_000.0 ** (-torch.arange(half, device=DEVICE) / half)
        angles = torch.arange(shape.sequence, device=DEVICE)[:, None, None, None, None] * frequencies
        # Of 8 bits, which every dtype has, so that all turn by the same.
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        whole = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

        def side(rotate: Callable[..., Tensor]) -> Side:
            return lambda q, k: tuple(rotate(x, *(each.to(x.dtype) for each in whole)) for x in (q, k))

        return {"kernel": side(ops.rotate), "eager": side(functional.rotate)}

    return sides


def _head(ops: ParallelOps, shape: Shape) -> dict[str, Side]:
    """Projection and loss; eager has all logits, in fp32 or better for the loss, as a plain loop has."""
    generator = torch.Generator().manual_seed(1)
    targets_BS = torch.randint(shape.vocabulary, (shape.batch, shape.sequence), generator=generator).to(DEVICE)
    targets_N = targets_BS.t().flatten()

    def kernel(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (head.mean_loss(x, weight, targets_BS, SingleRank(), ops),)  # type: ignore[arg-type] # has what it reads

    def eager(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        logits_NV = F.linear(x, weight).flatten(0, 1)
        return (F.cross_entropy(logits_NV.to(torch.promote_types(x.dtype, torch.float32)), targets_N),)

    return {"kernel": kernel, "eager": eager}


def _norm_inputs(shape: Shape) -> Sizes:
    return shape.x, (shape.hidden,), (shape.hidden,)


def _add_inputs(shape: Shape) -> Sizes:
    return shape.x, (shape.hidden,), shape.x


def _add_norm_inputs(shape: Shape) -> Sizes:
    return *_add_inputs(shape), (shape.hidden,), (shape.hidden,)


def _rotate_inputs(shape: Shape) -> Sizes:
    return ((shape.sequence, shape.batch, shape.heads, 1, shape.head_size),) * 2


OPERATIONS = (
    # x → y; x, dy → dx
    Operation("layer_norm", _norm_inputs, _layer_norm, (2, 3)),
    # x, r → sum, y; sum, dsum, dy → dx, dr, which are one tensor without dropout
    Operation("bias_dropout_add_norm 0.1", _add_norm_inputs, _add_norm(0.1), (4, 5), drops=True),
    Operation("bias_dropout_add_norm 0", _add_norm_inputs, _add_norm(0.0), (4, 4)),
    # x → y; x, dy → dx
    Operation("bias_gelu", lambda shape: (shape.up, (shape.ffn,)), _gelu, (2, 3)),
    # g, x → y; g, x, dy → dg, dx
    Operation("swiglu", lambda shape: (shape.up, shape.up), _swiglu, (3, 5)),
    # q, k → both; their gradients → those before
    Operation("rotary", _rotate_inputs, _rotate(1), (4, 4)),
    Operation("rotary 1/4", _rotate_inputs, _rotate(4), (4, 4)),
    # x, r → y; dy → dx, where dr is dy, and without dropout dx too
    Operation("bias_dropout_add 0.1", _add_inputs, _add(0.1), (3, 2), drops=True),
    Operation("bias_dropout_add 0", _add_inputs, _add(0.0), (3, 1)),
    Operation("head and loss", lambda shape: (shape.x, (shape.vocabulary, shape.hidden)), _head),
)
"""The comments list what `moved` counts: read → written forward; backward."""


def random_input(size: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
    """Return an input of normal numbers; those of a matrix [V, H] are scaled like weights."""
    spread = size[-1] ** -0.5 if len(size) == 2 else 1.0
    numbers = torch.randn(size, generator=generator, device=DEVICE, dtype=torch.float32)
    return (numbers * spread).to(dtype).requires_grad_()
