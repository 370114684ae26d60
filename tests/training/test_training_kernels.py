"""Training with fused kernels under Triton's CPU interpreter, and the head's loss over slices of the vocabulary.

The interpreter takes a second per layer of this size, hence one layer, few tokens, three steps of two micro-batches.
Kernels sum in another order than PyTorch, in fp32 too: 2**-24 per operation, measured 1.2e-7 over these steps.
"""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)

from mtnlg_parallel.recipe import Recipe
from training.reference_loop import FP32, Json, RunRanks, assert_same_steps, recipe_of


def tiny(model: Json | None = None, **train: object) -> Recipe:
    """Three steps on two tensor-parallel ranks."""
    size, few = {"layers": 1, "sequence": 4}, {"samples": 6, "batch": 2, "micro_batch": 1, "ramp": None}
    return recipe_of((2, 1, 1), size | (model or {}), None, **few | train)


def curve(answer: Json) -> list[Json]:
    """Step, loss, gradient norm and validation loss of every step."""
    keys = ("step", "loss", "grad_norm", "validation_loss")
    return [{key: step[key] for key in keys if key in step} for step in answer["steps"]]


LLAMA: Json = {
    "positions": "rotary",
    "rotary_fraction": 0.5,
    "norm": "rms",
    "mlp": "swiglu",
    "heads": 4,
    "kv_heads": 2,
    "bias": False,
    "qkv_bias": False,
    "tied": False,
}


@pytest.mark.parametrize("model", [{}, LLAMA], ids=["GPT", "Llama"])
def test_kernels_preserve_the_loss_curve(
    run_ranks_interpreted: RunRanks, data: Path, tmp_path: Path, model: Json
) -> None:
    recipes = [tiny(model, validation_every=3, validation_samples=2, kernels=kernels) for kernels in (True, False)]
    outs = [tmp_path / "on", tmp_path / "off"]
    on, off = (curve(answer) for answer in run_ranks_interpreted("train", recipes, data=data, outs=outs)[0])
    assert [step["step"] for step in on if "validation_loss" in step] == [3]
    assert on != off, "they sum in another order, so equal bits mean that the kernels did not run"
    assert_same_steps(on, off)


def test_dropout_in_kernels_is_reproducible(run_ranks_interpreted: RunRanks, data: Path, tmp_path: Path) -> None:
    dropped = {"dropout": 0.2, "attention_dropout": 0.2}
    kinds = {"one": "none", "again": "none", "recomputed": "full"}
    recipes = [tiny(dropped, sequence_parallel=False, validation_every=0, recompute=kind) for kind in kinds.values()]
    ranks = run_ranks_interpreted("train", recipes, data=data, outs=[tmp_path / name for name in kinds])
    one, again, recomputed = (curve(answer) for answer in ranks[0])
    assert one == again
    assert_same_steps(recomputed, one)
    for left, right in zip(*ranks, strict=True):
        copies = [key for key in left["sums"] if "norm" in key or key.endswith(("out.bias", "down.bias"))]
        assert copies
        assert all(left["sums"][key] == right["sums"][key] for key in copies), "the ranks of a group drifted apart"


@pytest.mark.parametrize("cut", [True, False], ids=["sequence parallel", "copies"])
def test_head_loss_over_slices_matches_one_process(run_ranks: RunRanks, cut: bool) -> None:
    numbers = torch.Generator().manual_seed(3)
    targets_BS = torch.randint(24, (2, 150), generator=numbers)
    weight_VH = torch.randn(24, 8, generator=numbers).requires_grad_()
    x_KSBH = torch.randn(5, 150, 2, 8, generator=numbers)
    x_KSBH[1:, 100, 1, 3] = torch.tensor([1e4, math.inf, -math.inf, math.nan])
    case = {"xs": x_KSBH.tolist(), "weight": weight_VH.tolist(), "targets": targets_BS.tolist()}
    answers = run_ranks("head_losses", [recipe_of((2, 1, 1), sequence_parallel=cut)], **case)
    for number, x_SBH in enumerate(x_KSBH):
        loss = F.cross_entropy((x_SBH.requires_grad_() @ weight_VH.t()).flatten(0, 1), targets_BS.t().flatten())
        dx_SBH, dw_VH = torch.autograd.grad(loss, (x_SBH, weight_VH))
        for rank, answer in enumerate(answers):
            expected = (loss.detach(), dx_SBH.chunk(2)[rank] if cut else dx_SBH, dw_VH.chunk(2)[rank])
            computed = tuple(torch.tensor(values) for values in answer[number])
            torch.testing.assert_close(computed, expected, rtol=FP32, atol=FP32, equal_nan=True)
