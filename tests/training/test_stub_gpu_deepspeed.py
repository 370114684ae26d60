"""DeepSpeed's engine at the shapes of real runs on a GPU that is not there (`stub_deepspeed`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from training import stub_gpu
from training.stub_gpu import Case

pytest.importorskip("triton")
from training.stub_deepspeed import Answer

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["train.engine=deepspeed", "model.attention_dropout=0", "model.layers=4"]
RANKS = ["layout.tp=2", "layout.pp=2", "layout.dp=4"]
SEQUENCE = [*SMALL, *RANKS, "train.sequence_parallel=true"]
CASES = {
    "1.3B": Case("dense-1.3b", SMALL, 0, 2),
    "1.3B recomputed": Case("dense-1.3b", [*SMALL, "train.recompute=full"], 0, 2),
    "1.3B in fp32": Case("dense-1.3b", [*SMALL, "train.precision=fp32"], 0, 2),
    "first stage": Case("dense-1.3b", SEQUENCE, 0, 4),
    "last stage": Case("dense-1.3b", SEQUENCE, 9, 4),
    "last stage recomputed": Case("dense-1.3b", [*SEQUENCE, "train.recompute=full"], 9, 4),
    "last stage, messages in parts": Case("dense-1.3b", [*SMALL, *RANKS, "train.sequence_parallel=false"], 9, 4),
    "stage 1 of the 530B": Case("mt-nlg-530b", ["model.attention_dropout=0", "model.layers=12", "layout.pp=4"], 64, 8),
}
ONCE_A_STEP = {
    "_local_scalar_dense utils.is_invalid_grad_norm",
    "_local_scalar_dense utils.clip_tensors_by_global_norm",
    "_to_copy engine._aggregate_total_loss",
    "tolist deepspeed._loss_and_grad_norm",
}
"""Whether the norm is finite, its clipping, and the loss; the last two by DeepSpeed for itself."""

CONSTANTS = {"_to_copy utils.mask_nan_or_inf_with_val_inplace"}
"""Numbers that are arguments of a kernel on a real GPU."""


@pytest.fixture(scope="module")
def answers(stub_library: Path) -> dict[str, Answer]:
    """Of every case."""
    answers = stub_gpu.ask_cases("stub_deepspeed", stub_library, CASES)
    return {name: Answer(*answer) for name, answer in answers.items()}


@pytest.mark.parametrize("name", CASES)
def test_micro_batch_blocks_no_host_and_checkpoint_waits(name: str, answers: dict[str, Answer]) -> None:
    """But where DeepSpeed says with each part of a message how it is cut."""
    answer = answers[name]
    assert not answer.races
    waits = answer.waits
    if "part" in name or "530B" in name:
        assert waits.pop("_to_copy utils.to_meta") <= 2 * CASES[name].micro_batches
    assert set(waits) <= ONCE_A_STEP | CONSTANTS
    assert sum(waits.values()) <= 7, waits


@pytest.mark.parametrize("name", CASES)
def test_a_step_leaves_nothing_on_the_gpu(name: str, answers: dict[str, Answer]) -> None:
    assert answers[name].left < 1 << 10
    assert answers[name].events == 0


@pytest.mark.parametrize("name", CASES)
def test_the_plans_memory_of_a_rank_is_that_of_its_step(name: str, answers: dict[str, Answer]) -> None:
    """With the head's gradient of a micro-batch beside the sum of those before, and DeepSpeed's copies of messages."""
    assert answers[name].peak == pytest.approx(answers[name].planned, rel=0.03)
