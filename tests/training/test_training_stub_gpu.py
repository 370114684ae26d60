"""Steps at the shapes of real runs, on a GPU that is not there (`stub_gpu`): devices, and memory against the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from training import stub_gpu
from training.stub_gpu import Answer, Case

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["train.schedule=zero-bubble", "model.attention_dropout=0", "model.layers=4"]
"""Of the pipeline engine, which runs it at pp = 1 too; attention draws its dropout's seed as a number on the host."""

FP8, SUMS = "train.precision=fp8", "train.gradients=bf16"
EIGHT_BITS = [*SMALL, FP8, "train.recompute=full"]
INTERLEAVED = ["train.schedule=interleaved", "train.chunks=2", "train.recompute=selective"]
RANKS = ["layout.tp=2", "layout.pp=2", "layout.dp=4", "train.sequence_parallel=true"]
STAGES = ["model.attention_dropout=0", "model.layers=12", "layout.pp=4"]
"""Of the 530B: a rank's layers, slices and kinds of stage, in a shorter pipeline."""
UNEVEN = [*STAGES, "train.schedule=interleaved", "train.chunks=2"]

PLANNED = {
    "1.3B": Case("dense-1.3b", SMALL[:2], 0, 2),
    "1B of another family": Case("llama-1b", SMALL[:2], 0, 2),
    **{f"stage {stage} of the 530B": Case("mt-nlg-530b-2022", STAGES, 64 * stage, 8) for stage in (0, 2, 3)},
    **{
        f"stage {stage} of the 530B, chunks of one layer and two": Case("mt-nlg-530b-2022", UNEVEN, 64 * stage, 8)
        for stage in (0, 3)
    },
    "fp32": Case("dense-1.3b", [*SMALL, "train.precision=fp32"], 0, 2),
    "sums in bf16": Case("dense-1.3b", [*SMALL, SUMS], 0, 2),
    "8 bits, sums in bf16": Case("dense-1.3b", [*SMALL, FP8, SUMS], 0, 2),
    "four slices in pieces": Case("dense-1.3b", [*SMALL[1:], "layout.tp=4", "train.micro_batch=4"], 0, 2),
    "recomputed": Case("dense-1.3b", [*SMALL, "train.recompute=full"], 0, 2),
    "recomputed, of 8 samples": Case("dense-1.3b", [*SMALL, "train.recompute=full", "train.micro_batch=8"], 0, 2),
    "8 bits": Case("dense-1.3b", [*SMALL, FP8], 0, 2),
    "8 bits, attention recomputed": Case("dense-1.3b", [*SMALL, FP8, "train.recompute=selective"], 0, 2),
    "8 bits over 2 micro-batches": Case("dense-1.3b", EIGHT_BITS, 0, 2),
    "8 bits of another family": Case("llama-1b", [*SMALL, FP8], 0, 2),
    **{
        f"stage {stage} of the 530B in 8 bits": Case("mt-nlg-530b-2022", [*STAGES, FP8], 64 * stage, 8)
        for stage in (0, 2, 3)
    },
}
FREE = {
    "8 bits over 4 micro-batches": Case("dense-1.3b", EIGHT_BITS, 0, 4),
    "8 bits over ranks": Case("dense-1.3b", [*EIGHT_BITS, *RANKS, "train.chunks=2"], 2, 4),
    "interleaved": Case("dense-1.3b", [*SMALL[1:], *RANKS, *INTERLEAVED], 1, 4),
}
CONSTANTS = {"_on_device", "_chunked_loss"}
"""Where numbers come from the host that no step waits for: angles, once a run; the logit of padding, as an argument."""


@pytest.fixture(scope="module")
def answers(stub_library: Path) -> dict[str, Answer]:
    """Of every case."""
    answers = stub_gpu.ask_cases("stub_gpu", stub_library, PLANNED | FREE)
    return {name: Answer(*answer) for name, answer in answers.items()}


@pytest.mark.parametrize("name", [*PLANNED, *FREE])
def test_step_keeps_tensors_off_host_and_gpu(name: str, answers: dict[str, Answer]) -> None:
    """Fake tensors refuse operations that mix devices, and numbers that the host would wait for."""
    places = {place.rpartition(".")[2] for place in answers[name].on_host}
    assert places <= CONSTANTS | {"batches"}
    assert answers[name].after - answers[name].built < 1 << 20


@pytest.mark.parametrize("name", PLANNED)
def test_the_plans_memory_of_a_rank_is_that_of_its_step(name: str, answers: dict[str, Answer]) -> None:
    assert answers[name].peak == pytest.approx(answers[name].planned, rel=0.03)


def test_more_micro_batches_take_no_more_memory(answers: dict[str, Answer]) -> None:
    """But a loss each. Weights are rounded to 8 bits once a step, and their gradients summed in place."""
    two, four = (answers[f"8 bits over {number} micro-batches"] for number in (2, 4))
    assert 0 <= four.peak - two.peak < 1 << 10
