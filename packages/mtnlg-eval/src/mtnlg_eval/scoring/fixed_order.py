"""Forward passes on a GPU whose scores do not depend on the batch.

A GPU library chooses a kernel, and with it the order of summation, by the shapes of a call; a batch's shapes depend on
its contents. So that a text has the same sums in every batch, no call here has a shape that depends on the batch:

    products         x Wᵀ runs over `TILE` rows at a time. M, N and K are the layer's, so the library's choice is too,
                     and NVIDIA documents that cuBLAS gives the same bits for the same call.
    attention        flash attention of variable lengths: a row's sum goes through the blocks of its own path's keys
                     in one order (packed_attention.py). What it does not take goes to PyTorch's memory-efficient
                     kernel, which does not split keys among thread blocks either, always with a mask.
    sums of logits   run over `TILE` positions, because a reduction is laid out by the number of its results, and over
                     rows that begin at multiples of 16 bytes, because it loads vectors: a row that begins between two
                     is summed in another order.

Everything else (norms, GeLU, sums of two tensors, look-ups) computes each row, or each number, by itself. packing.py
makes whole tiles: batches have a multiple of `TILE` tokens and of `TILE` scored positions.

It is not documented that a row has the same bits at any position in its tile. This holds unless a kernel divides
the tiles of one product unevenly along K (stream-K); tests/test_fixed_order.py compares scores bit by bit if there is a
GPU. The guarantee does not cover soft caps, nor keys and values that several heads share (GQA) in fp32 or with slopes:
they have neither kernel. On a CPU packing alone is enough (docs/decisions/0085).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

TILE = 512
"""Rows per matrix product, and positions whose logits are summed at a time."""

ALIGNED = 8
"""Rows of products begin at multiples of this many numbers."""

ATEN = torch.ops.aten
PRODUCTS = {ATEN.mm.default, ATEN.mm.dtype, ATEN.matmul.default, ATEN.linear.default}


@contextmanager
def fixed_order(device: torch.device) -> Iterator[None]:
    """Make forward passes on a GPU compute a text with the same sums in any batch; no effect on a CPU."""
    if device.type != "cuda":
        yield
        return
    kernels = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True)
    with kernels, TiledProducts():  # type: ignore[no-untyped-call]  # torch's
        yield


class TiledProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Runs each product of rows with a matrix on `TILE` rows at a time; the last tile is padded with zeros."""

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  (what the operation gives)
        """Tile the products; run other operations unchanged."""
        del types
        if func not in PRODUCTS or args[0].ndim < 2 or args[1].ndim != 2:  # such as attention's own products
            return func(*args, **(kwargs or {}))
        x, weight, *rest = args
        if func is ATEN.linear.default:
            if rest and rest[0] is not None:
                raise NotImplementedError("a product with a bias: add it apart")
            weight, rest = weight.t(), []
        dtypes = rest or list((kwargs or {}).values())
        y_MN = tiled_product(x.flatten(0, -2), weight, dtypes[0] if dtypes else x.dtype)
        return y_MN.view(*x.shape[:-1], -1)


def tiled_product(x_MK: Tensor, weight_KN: Tensor, dtype: torch.dtype) -> Tensor:
    """[M, K] x [K, N] → [M, N] in ``dtype``, `TILE` rows at a time."""
    rows = len(x_MK)
    if rest := -rows % TILE:
        x_MK = torch.cat((x_MK, x_MK.new_zeros(rest, x_MK.shape[1])))
    width = weight_KN.shape[1]
    y_MN = x_MK.new_empty(len(x_MK), width + -width % ALIGNED, dtype=dtype)[:, :width]
    for x_TK, y_TN in zip(torch.split(x_MK, TILE), torch.split(y_MN, TILE), strict=True):
        if dtype == x_MK.dtype:
            torch.mm(x_TK, weight_KN, out=y_TN)
        else:
            torch.mm(x_TK, weight_KN, out_dtype=dtype, out=y_TN)
    return y_MN[:rows]
