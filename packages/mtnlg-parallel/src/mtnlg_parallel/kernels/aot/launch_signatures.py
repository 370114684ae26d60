"""The launches for which kernels are built: forward and backward on meta tensors, which only compile.

A recipe's launches come from running the decoder's own modules; those of all variants from a fixed table of shapes.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from mtnlg_parallel.kernels.dispatch import best_ops
from mtnlg_parallel.layout import Stage
from mtnlg_parallel.model.eight_bit import BACKWARD, FORWARD, EightBit
from mtnlg_parallel.model.slicing import fake_process_group
from mtnlg_parallel.model.stage_modules import StageModules

from .build import converts_to_eight_bits
from .compilation import active_target, run_backward

if TYPE_CHECKING:
    from mtnlg_parallel.recipe import Recipe

META: Final = torch.device("meta")
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MATRICES: Final = ((256, 20480), (1 << 16, 20480), (256, 1000))
"""Rows and columns: MT-NLG's hidden size (its MLP's slices launch the same kernels), and one that 16 does not divide.
There are few rows and many, as a norm's backward has smaller groups for few rows."""

ROUNDED: Final = ((64, 20480), (63, 1000))
"""Rows and columns of an 8-bit matrix: sizes of a product's factors, and sizes that 16 does not divide."""

ROTARY_HEADS: Final = ((4, 128, 128), (1, 64, 16), (3, 20, 10))
"""Heads of q per head of k, head size, and rotated part of it: Llama's, Pythia's, and sizes that 16 does not divide."""

VOCABULARIES: Final = (6400, 12565)
"""MT-NLG's slice of the vocabulary, and a size that 16 does not divide."""

DROPOUT_RATES: Final = (0.0, 0.1)


def launch_all_variants(dtype: str) -> None:
    """Launch every operation in ``dtype`` (bf16, fp16, fp32) so that every branch of every kernel is compiled."""
    ops = best_ops(META)

    def leaf(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=DTYPES[dtype], device=META, requires_grad=True)

    for rows, width in MATRICES:
        x_SBH, bias_H = leaf(rows, 1, width), leaf(width)
        run_backward(ops.layer_norm(x_SBH, bias_H, bias_H, 1e-5))
        run_backward(ops.rms_norm(x_SBH, bias_H, 1e-5))
        run_backward(ops.bias_gelu(x_SBH, bias_H))
        run_backward(ops.swiglu(bias_H, bias_H))
        for rate in DROPOUT_RATES:
            run_backward(ops.bias_dropout_add(x_SBH, bias_H, x_SBH, rate))
            run_backward(ops.dropout_add(x_SBH, x_SBH, rate))
            run_backward(*ops.dropout_add_rms_norm(x_SBH, x_SBH, rate, bias_H, 1e-5))
            run_backward(*ops.bias_dropout_add_norm(x_SBH, bias_H, x_SBH, rate, bias_H, bias_H, 1e-5))
    is_rounded = dtype == "bf16" and converts_to_eight_bits(active_target())
    for shape, rounded in product(ROUNDED if is_rounded else (), (FORWARD, BACKWARD)):
        for transposed in (False, True):
            factor, _ = ops.eight_bit.rounded(leaf(*shape).detach(), rounded, transposed)
        ops.eight_bit.transpose(factor.values)
    for sharing, size, turned in ROTARY_HEADS:
        qkv_SBGND, angles_SB11R = leaf(64, 2, 1, sharing + 2, size), leaf(64, 1, 1, 1, turned).detach()
        run_backward(ops.rotate(qkv_SBGND[..., :sharing, :], angles_SB11R, angles_SB11R))
    for width in VOCABULARIES:
        logits_NV, targets_N = leaf(256, width).detach(), torch.empty(256, dtype=torch.int64, device=META)
        ops.statistics(logits_NV, targets_N, 0)
        ops.gradient(logits_NV, targets_N, 0, torch.empty(256, device=META), 1.0)


def launch_recipe(recipe: Recipe) -> None:
    """Launch the kernels that a recipe's ranks use in training and validation: a layer, final norm, the head's loss."""
    config, train, dtype = recipe.model, recipe.train, DTYPES[recipe.train.storage]
    ops = best_ops(META)
    eight_bit = EightBit(ops.eight_bit) if train.precision == "fp8" else None
    part = Stage(0, range(1), ("layers.0", "final_norm", "head"), 0, 0.0)
    with fake_process_group(0, recipe.layout.tp, config, train.sequence_parallel, eight_bit) as slicing:
        stage = StageModules(part, config, slicing, train.recompute, META, ops).to(dtype)
        sequence = config.sequence // recipe.layout.cp
        local_sequence = sequence // (slicing.degree if slicing.sequence_parallel else 1)
        x_SBH = torch.empty(local_sequence, train.micro_batch, config.hidden, dtype=dtype, device=META)
        targets_BS = torch.empty(train.micro_batch, sequence, dtype=torch.int64, device=META)
        for training in (True, False):
            stage.train(training)
            with torch.set_grad_enabled(training):
                loss = stage.loss(stage(x_SBH.requires_grad_(training)), targets_BS)
            if training:
                run_backward(loss)
