"""The one door through which every kernel starts.

On tensors that have storage a kernel runs. On meta tensors it is only compiled, for the GPU that Triton's active driver
names: whatever calls the operations with the shapes of a run, without data, builds exactly what that run will ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

on_compiled: list[Callable[[Any], None]] = []
"""Told of every kernel that was compiled on meta tensors, as Triton returns it."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:  # noqa: ANN401  (Triton has no annotations)
    """Run ``kernel`` over ``grid``, or compile it where its first argument is a meta tensor; of nothing, do nothing."""
    first: Tensor = arguments[0]
    if 0 in grid:
        return
    constants["enable_fp_fusion"] = True  # a x + b in one step; said here, since Triton's default is to change
    if first.is_meta:
        compiled = kernel.warmup(*arguments, grid=grid, **constants)
        for told in on_compiled:
            told(compiled)
        return
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        kernel[grid](*arguments, **constants)
