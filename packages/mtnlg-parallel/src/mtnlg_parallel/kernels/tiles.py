"""Partition of matrices into programs, and the launch of kernels.

    row kernels     one program a row, in blocks of columns; a second pass finds the row in cache
    tile kernels    one program a tile of a few rows
    slab kernels    one program a slab of many rows and few columns, to sum over rows

Matrices may have any number of rows and columns; the last blocks are masked. Sums over rows (gradients of biases and
norms) store each slab's partial sum in fp32 and add these in fixed order, so they are deterministic. Offsets take 64
bits.

`launch` starts every kernel. On tensors with storage the kernel runs; on meta tensors it is only compiled, for the GPU
that Triton's active driver names. So calling the operations with a run's shapes, without data, compiles exactly what
that run will launch.
"""

# ruff: noqa: ANN001, ANN201  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

TILE: Final = {"ROWS": 4, "COLUMNS": 512, "num_warps": 4}
SLAB: Final = {"ROWS": 64, "STRIDE": 4, "COLUMNS": 256, "num_warps": 4}
ROW_BLOCK: Final = 2048
"""Most columns in a row kernel's block: eight a thread, one 16-byte load of bf16."""


class Matrix(NamedTuple):
    """Shape of a tensor as a matrix: all leading axes by the last."""

    rows: int
    columns: int

    @classmethod
    def of(cls, x: Tensor) -> Matrix:
        """Shape of a contiguous tensor."""
        return cls(x.numel() // x.shape[-1] if x.shape[-1] else 0, x.shape[-1])

    @property
    def tiles(self) -> tuple[int]:
        """Grid of a tile kernel."""
        return (ceil(self.rows / TILE["ROWS"]) * ceil(self.columns / TILE["COLUMNS"]),)

    @property
    def slab_grid(self) -> tuple[int]:
        """Grid of a slab kernel."""
        return (ceil(self.rows / SLAB["ROWS"]) * ceil(self.columns / SLAB["COLUMNS"]),)

    @property
    def blocks(self) -> dict[str, int]:
        """Constants of a row kernel: columns in a block, and warps."""
        block = int(min(max(triton.next_power_of_2(self.columns), 32), ROW_BLOCK))
        return {"COLUMNS": block, "num_warps": max(1, block // 256)}

    def partial_sums(self, count: int, device: torch.device) -> Tensor:
        """Allocate the slabs' partial sums of ``count`` sums over rows, [count, slabs, columns] in fp32."""
        return torch.empty(count, ceil(self.rows / SLAB["ROWS"]), self.columns, dtype=torch.float32, device=device)


@triton.jit
def tile(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's tile: rows [R, 1], columns [1, C], groups of eight columns [1, C / 8], offsets, which exist."""
    across = tl.cdiv(columns, COLUMNS)
    left = tl.program_id(0) % across * COLUMNS
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = left + tl.arange(0, COLUMNS)[None, :]
    group = left // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    return row, column, group, row * columns + column, (row < rows) & (column < columns)


@triton.jit
def slab(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's slab: number from the top, first row, how many rows, columns [1, C], groups of eight [1, C / 8]."""
    across = tl.cdiv(columns, COLUMNS)
    left = tl.program_id(0) % across * COLUMNS
    number = (tl.program_id(0) // across).to(tl.int64)
    # A loop counted in 64 bits would take a third more registers.
    height = tl.minimum(ROWS, rows - number * ROWS).to(tl.int32)
    column = left + tl.arange(0, COLUMNS)[None, :]
    return number, number * ROWS, height, column, left // 8 + tl.arange(0, COLUMNS // 8)[None, :]


@triton.jit
def step_of(top, rows, columns, column, STRIDE: tl.constexpr):
    """So many rows of a slab from ``top`` on: their numbers [R, 1], offsets [R, C], which exist."""
    row = top + tl.arange(0, STRIDE)[:, None]
    return row, row * columns + column, (row < rows) & (column < columns)


@triton.jit
def store_sums(sums_at, number, columns, column, sums):
    """A slab's part of sums [R, C] down its columns."""
    flat = tl.reshape(column, (column.shape[1],))
    tl.store(sums_at + number * columns + flat, tl.sum(sums, 0), mask=flat < columns)


on_compiled: list[Callable[[Any], None]] = []
"""Callbacks that receive every kernel compiled on meta tensors, as Triton returns it."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:  # noqa: ANN401  (Triton has no annotations)
    """Run ``kernel`` over ``grid``; only compile it if its first argument is a meta tensor; skip an empty grid."""
    first: Tensor = arguments[0]
    if 0 in grid:
        return
    constants["enable_fp_fusion"] = True  # fused multiply-add; explicit, since Triton's default will change
    if first.is_meta:
        compiled = kernel.warmup(*arguments, grid=grid, **constants)
        for callback in on_compiled:
            callback(compiled)
        return
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **constants)
