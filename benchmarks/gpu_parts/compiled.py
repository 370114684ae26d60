"""Compiles what the other parts launch for a GPU that is not present: ``python -m gpu_parts.compiled sm_90``.

`gpu.py --pack` runs it with the other machine's Python and Triton, and packs Triton's cache.
"""

from __future__ import annotations

import os
import sys
from itertools import product

os.environ["MTNLG_GPU_DEVICE"] = "meta"

import torch

from mtnlg_parallel.kernels import best_ops, norm
from mtnlg_parallel.kernels.aot.build import check_limits
from mtnlg_parallel.kernels.aot.compilation import compile_launches, describe, run_backward
from mtnlg_parallel.kernels.aot.launch_signatures import launch_recipe
from mtnlg_parallel.model import eight_bit

from . import checks, engine, training, waiting
from .clock import DEVICE, DTYPE
from .operations import FEW_ROWS, MANY_ROWS, OPERATIONS, random_input
from .rank import make_step, setting, sides_of
from .rank_layers import make_rank


def main() -> None:
    """Compile, and check that nothing spills."""
    (target,) = sys.argv[1:]
    compiled = compile_launches(target, launch_all)
    check_limits(target, map(describe, compiled))
    print(f"{len(compiled)} kernels compiled for {target}")


def launch_all() -> None:
    """Launch on meta tensors what the parts launch, but `evaluation`."""
    ops, wide = best_ops(DEVICE), (checks.WIDE, checks.RAGGED)
    cases = {*product((*wide, checks.TINY), checks.DTYPES), *product((FEW_ROWS, MANY_ROWS), (DTYPE,))}
    for shape, dtype in cases:
        for operation in OPERATIONS:
            inputs = [random_input(size, dtype, None) for size in operation.inputs(shape)]
            run_backward(*operation.sides(ops, shape)["kernel"](*inputs))
        tokens = shape.sequence * shape.batch
        logits = torch.empty(tokens, shape.vocabulary, dtype=dtype, device=DEVICE)
        targets = torch.empty(tokens, dtype=torch.int64, device=DEVICE)
        ops.gradient(logits, targets, 0, ops.statistics(logits, targets, 0)[0], 0.5)
        x_RK = torch.empty(tokens, shape.hidden, dtype=dtype, device=DEVICE)
        for factor, eighth in product((x_RK, x_RK.t()), (eight_bit.FORWARD, eight_bit.BACKWARD)):
            ops.eight_bit.rounded(factor, eighth, True)
    for rows, columns in (*waiting.SHAPES, *waiting.TINY):
        x, row = (random_input(size, DTYPE, None) for size in ((rows, columns), (columns,)))
        run_backward(norm.layer_norm(x, row, row, 1e-5))
    config, _, ways = setting(tiny=False)
    rank = make_rank(config, 1)
    for way, name in product(ways, ("kernels", "kernels, 8 bits")):
        make_step(rank, way, sides_of(ops)[name])()
    for recipe in (
        *(engine.recipe_of(case, False) for case in engine.CASES),
        *(training.recipe_of(case, False) for case in training.CASES),
    ):
        launch_recipe(recipe)


if __name__ == "__main__":
    main()
