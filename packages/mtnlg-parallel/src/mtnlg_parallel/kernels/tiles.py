"""How matrices are cut for kernels: rows of any number, columns of any width, the last blocks ragged.

    row kernels     a program a row, which it goes through in blocks of columns; a second pass finds the row in cache
    tile kernels    a program a tile of few rows
    slab kernels    a program a slab of many rows and few columns, to sum down columns

Sums down columns (the gradients of biases and norms) leave each slab's part, in fp32, and are added in fixed order: the
same bits every time. Offsets are 64 bits wide.

The one door through which every kernel starts.

On tensors that have storage a kernel runs. On meta tensors it is only compiled, for the GPU that Triton's active driver
names: whatever calls the operations with the shapes of a run, without data, builds exactly what that run will ask for.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


# ruff: noqa: ANN001, ANN201  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"


TILE: Final = {"ROWS": 4, "COLUMNS": 512, "num_warps": 4}
SLAB: Final = {"ROWS": 64, "STRIDE": 4, "COLUMNS": 256, "num_warps": 4}
ROW_BLOCK: Final = 2048
"""Columns that a row kernel takes at once: eight a thread, one 16-byte load of bf16."""


class Matrix(NamedTuple):
    """A tensor's last axis against all others."""

    rows: int
    columns: int

    @classmethod
    def of(cls, x: Tensor) -> Matrix:
        """Of a contiguous tensor."""
        return cls(x.numel() // x.shape[-1] if x.shape[-1] else 0, x.shape[-1])

    @property
    def tiles(self) -> tuple[int]:
        """The grid of a tile kernel."""
        return (ceil(self.rows / TILE["ROWS"]) * ceil(self.columns / TILE["COLUMNS"]),)

    @property
    def slab_grid(self) -> tuple[int]:
        """The grid of a slab kernel."""
        return (ceil(self.rows / SLAB["ROWS"]) * ceil(self.columns / SLAB["COLUMNS"]),)

    @property
    def blocks(self) -> dict[str, int]:
        """How a row kernel goes through its row."""
        block = int(min(max(triton.next_power_of_2(self.columns), 32), ROW_BLOCK))
        return {"COLUMNS": block, "num_warps": max(1, block // 256)}

    def partial_sums(self, kinds: int, device: torch.device) -> Tensor:
        """Room for the slabs' parts of so many sums down columns, [kinds, slabs, columns] in fp32."""
        return torch.empty(kinds, ceil(self.rows / SLAB["ROWS"]), self.columns, dtype=torch.float32, device=device)


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
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **constants)
