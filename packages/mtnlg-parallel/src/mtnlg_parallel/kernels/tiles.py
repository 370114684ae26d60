"""Partitions matrices into programs, and launches kernels.

    row kernels     one program per row, in blocks of columns; a second pass finds the row in cache
    tile kernels    one program per tile of a few rows
    slab kernels    one program per slab of many rows and few columns, to sum over rows

Matrices may have any number of rows and columns; the last blocks are masked. Sums over rows (gradients of biases and
norms) store each slab's partial sum in fp32, and the last program of a block of columns adds these in fixed order: one
launch, with deterministic results. Offsets are 64-bit.

`launch` starts every kernel. On tensors with storage the kernel runs; on meta tensors it is only compiled, for the GPU
that Triton's active driver names. So calling the operations on meta tensors of a run's shapes compiles exactly what the
run will launch. On torch.compile's fake tensors `launch` does nothing, so a function that allocates and launches serves
as both implementation and fake of an `Operator`.
"""

# ruff: noqa: ANN001, ANN201, PLR0917  (Triton's own language)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable

TILE: Final = {"ROWS": 4, "COLUMNS": 512, "num_warps": 4}
SLAB: Final = {"ROWS": 128, "STRIDE": 8, "COLUMNS": 128, "num_warps": 4}
ROW_BLOCK: Final = 4096
"""Most columns in a row kernel's block: 16 per thread, that is two 16-byte loads of bf16 in flight. So 256 rows, a
rank's share of 2,048 under sequence parallelism, keep 16 KiB per multiprocessor of an H100 in flight, about what its
memory can serve."""


def cdiv(count: int, size: int) -> int:
    """Number of parts of ``size`` that hold ``count``. Triton's function, for kernels too, takes 10 us."""
    return -(-count // size)


def power_of_2(least: int) -> int:
    """The smallest power of 2 that is not below ``least``, at least 1."""
    return 1 << max(least - 1, 0).bit_length()


class Matrix(NamedTuple):
    """Shape of a tensor as a matrix: rows are all leading axes, columns the last axis."""

    rows: int
    columns: int

    @classmethod
    def of(cls, x: Tensor) -> Matrix:
        """Shape of a contiguous tensor."""
        columns = int(x.shape[-1])  # constants depend on it, so torch.compile shall take it for one
        return cls(x.numel() // columns if columns else 0, columns)

    @property
    def tiles(self) -> tuple[int]:
        """Grid of a tile kernel."""
        return (cdiv(self.rows, TILE["ROWS"]) * cdiv(self.columns, TILE["COLUMNS"]),)

    @property
    def slab_grid(self) -> tuple[int]:
        """Grid of a slab kernel."""
        return (cdiv(self.rows, SLAB["ROWS"]) * cdiv(self.columns, SLAB["COLUMNS"]),)

    @property
    def slab(self) -> dict[str, int]:
        """Constants of a slab kernel; a smaller stride with masks, which take registers."""
        return {**SLAB, "STRIDE": SLAB["STRIDE"] // (2 if self.columns % 16 else 1)}

    @property
    def blocks(self) -> dict[str, int]:
        """Constants of a row kernel: columns per block, and warps."""
        block = int(min(max(power_of_2(self.columns), 32), ROW_BLOCK))
        return {"COLUMNS": block, "num_warps": max(1, block // 512)}

    def slab_sums(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Allocate the slabs' partial sums over rows, [slabs, columns] in fp32, and for each block of columns a counter
        of the programs that have stored theirs.
        """
        slabs, blocks = cdiv(self.rows, SLAB["ROWS"]), cdiv(self.columns, SLAB["COLUMNS"])
        sums = torch.empty(slabs, self.columns, dtype=torch.float32, device=device)
        return sums, torch.zeros(blocks, dtype=torch.int32, device=device)

    def sum_like(self, row: Tensor) -> Tensor:
        """Allocate a sum over rows; zeros if there are no rows."""
        return torch.empty_like(row) if self.rows else torch.zeros_like(row)


CACHED: Final = tl.constexpr("")
"""Loads through both caches; as the default of a function's argument a string of its own fails in Triton 3.6."""


@triton.jit
def read(at, there, cache: tl.constexpr = CACHED):
    """Load values as fp32; 0 where the mask ``there`` is False."""
    return tl.load(at, mask=there, other=0.0, cache_modifier=cache).to(tl.float32)


@triton.jit
def write(at, value, there):
    """Store values, rounded to the tensor's type, where the mask ``there`` is True."""
    tl.store(at, value.to(at.dtype.element_ty), mask=there)


@triton.jit
def tile(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's tile: rows [R, 1], columns [1, C], groups of eight columns [1, C / 8], offsets and mask [R, C]."""
    across = tl.cdiv(columns, COLUMNS)
    left = tl.program_id(0) % across * COLUMNS
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = left + tl.arange(0, COLUMNS)[None, :]
    group = left // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    return row, column, group, row * columns + column, (row < rows) & (column < columns)


@triton.jit
def slab(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's slab: its index, first row, number of rows, columns [1, C], groups of eight columns [1, C / 8]."""
    across = tl.cdiv(columns, COLUMNS)
    left = tl.program_id(0) % across * COLUMNS
    number = (tl.program_id(0) // across).to(tl.int64)
    # A 64-bit loop counter would take a third more registers.
    height = tl.minimum(ROWS, rows - number * ROWS).to(tl.int32)
    column = left + tl.arange(0, COLUMNS)[None, :]
    return number, number * ROWS, height, column, left // 8 + tl.arange(0, COLUMNS // 8)[None, :]


@triton.jit
def step_of(top, rows, columns, column, STRIDE: tl.constexpr):
    """STRIDE rows of a slab from ``top`` on: their numbers [R, 1], offsets and mask [R, C]."""
    row = top + tl.arange(0, STRIDE)[:, None]
    return row, row * columns + column, (row < rows) & (column < columns)


@triton.jit
def exp(x):
    """Exponential of x, by one power-of-2 instruction; tiny results become 0, for which tl.exp takes four more."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def store_sums(sums_at, number, columns, column, sums):
    """Sum [R, C] over rows and store the result as a slab's partial sum."""
    flat = tl.reshape(column, (column.shape[1],))
    write(sums_at + number * columns + flat, tl.sum(sums, 0), flat < columns)


@triton.jit
def is_last(counter_at, programs):
    """Count this program's stores as done; returns whether all ``programs`` programs' are, and visible here."""
    tl.debug_barrier()  # those of all its threads
    return tl.atomic_add(counter_at, 1) == programs - 1


@triton.jit
def add_slabs(sums_at, out_at, slabs, columns, column, STRIDE: tl.constexpr):
    """Add all slabs' partial sums of some columns, in an order that does not depend on when each was stored."""
    total = tl.zeros([STRIDE, column.shape[1]], tl.float32)
    for top in range(0, slabs, STRIDE):
        number = (top + tl.arange(0, STRIDE)[:, None]).to(tl.int64)
        there = (number < slabs) & (column < columns)
        total += read(sums_at + number * columns + column, there, ".cg")
    flat = tl.reshape(column, (column.shape[1],))
    write(out_at + flat, tl.sum(total, 0), flat < columns)


@triton.jit
def sum_slabs(sums_at, counters_at, out_at, number, sums, rows, columns, column, ROWS: tl.constexpr):
    """Store a slab's partial sum over rows of [R, C]; the last program of these columns adds all partial sums."""
    store_sums(sums_at, number, columns, column, sums)
    slabs = tl.cdiv(rows, ROWS)
    if is_last(counters_at + tl.program_id(0) % tl.cdiv(columns, sums.shape[1]), slabs):
        add_slabs(sums_at, out_at, slabs, columns, column, sums.shape[0])


on_compiled: list[Callable[[Any], None]] = []
"""Callbacks, called with every kernel compiled on meta tensors, as Triton returns it."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:  # noqa: ANN401  (Triton has no annotations)
    """Run ``kernel`` over ``grid``; only compile it if its first argument is a meta tensor; skip an empty grid."""
    first: Tensor = arguments[0]
    if isinstance(first, FakeTensor) or 0 in grid:
        return
    constants["enable_fp_fusion"] = True  # fused multiply-add; explicit, since Triton's default will change
    if first.is_meta:
        compiled = kernel.warmup(*arguments, grid=grid, **constants)
        for callback in on_compiled:
            callback(compiled)
        return
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, **constants)


class Operator:
    """A function that allocates and launches, and its derivative, if `derive` gives one.

    torch.compile takes it whole into its graph, as a torch operator. Elsewhere it is called without torch's dispatcher,
    which costs the host as much time again. Second derivatives raise an error.
    """

    def __init__(self, function: Callable[..., Any], overwritten: str | None = None) -> None:
        """``overwritten`` names an argument that the function mutates."""
        self.function, self._direct = function, function
        self._name, mutated = function.__name__.strip("_"), () if overwritten is None else (overwritten,)
        self._in_graphs = torch.library.custom_op(f"mtnlg::{self._name}", function, mutates_args=mutated)
        self._in_graphs.register_fake(function)

    def __call__(self, *inputs: Any) -> Any:  # noqa: ANN401  (any function)
        """Call the function."""
        return (self._in_graphs if torch.compiler.is_compiling() else self._direct)(*inputs)

    def derive(self, backward: Callable[..., Any], save: Callable[[Any, tuple[Any, ...], Any], None]) -> None:
        """Set the derivative: ``save(context, inputs, output)``, then ``backward(context, *gradients)``."""
        self._in_graphs.register_autograd(backward, setup_context=save)

        def forward(ctx: Any, *inputs: Any) -> Any:  # noqa: ANN401  (torch's context)
            output = self.function(*inputs)
            save(ctx, inputs, output)
            return output

        methods = {"forward": staticmethod(forward), "backward": staticmethod(once_differentiable(backward))}
        direct: Any = type(f"mtnlg_{self._name}", (Function,), methods)
        self._direct = direct.apply


def differentiate(operator: Operator, gradients: Operator) -> None:
    """Make ``gradients``, an operator of the inputs and the output's gradient, an operator's derivative."""

    def save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ANN401  (torch's context)
        del output
        ctx.save_for_backward(*inputs)

    operator.derive(lambda ctx, out_grad: gradients(*ctx.saved_tensors, out_grad), save)


def contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors, copied if not contiguous; None stays None."""
    return tuple(tensor if tensor is None else tensor.contiguous() for tensor in tensors)
