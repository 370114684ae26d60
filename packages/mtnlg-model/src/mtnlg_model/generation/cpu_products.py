"""Products of few rows on a CPU, where a step of generation takes as long as its BLAS needs to read the weights.

How fast that is depends on which side a matrix is read from (benchmarks/generate.py):

    one row           by columns 1.1 to 2.5 times as fast where rows are short     `use_column_major_weights`
    8 to 32 rows      W xᵀ 1.1 to 1.9 times as fast as x Wᵀ                        `FewRowProducts`
    2 to 7, or more   as `torch.nn.functional.linear` has it

Both sum in another order than x Wᵀ: logits differ in their last digits, so evaluations do without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from mtnlg_model.decoder import Decoder

FEW: Final = range(8, 33)
"""Rows that are multiplied faster from the other side, on one thread."""


def use_column_major_weights(decoder: Decoder) -> None:
    """Store the wide weights column by column in memory, in place, for generations of one row; values stay."""
    for name, weight in decoder.named_parameters():
        if name.endswith(("token.weight", "qkv.weight", "gate.weight", "up.weight", "head.weight")):
            weight.data = weight.data.t().contiguous().t()


class FewRowProducts(TorchFunctionMode):
    """Within it, products x Wᵀ of `FEW` rows are computed as W xᵀ."""

    def __torch_function__(  # noqa: D105  (of the base)
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  (any function of torch)
        del types
        if func is F.linear and len(args) == 2 and not kwargs:
            x, weight = args
            if x.numel() // x.shape[-1] in FEW:
                return _from_other_side(x, weight)
        return func(*args, **(kwargs or {}))


def _from_other_side(x: Tensor, weight: Tensor) -> Tensor:
    y_ON = weight @ x.reshape(-1, x.shape[-1]).t()
    return y_ON.t().reshape(*x.shape[:-1], -1)
