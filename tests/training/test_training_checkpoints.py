"""Checkpoints of several ranks: what is written while training goes on, and what a rank reads of it."""

from pathlib import Path

import pytest
import torch

from mtnlg_model.checkpoint.reader import Checkpoint
from training.reference_loop import RunRanks, recipe_of


def test_checkpoint_holds_its_own_step(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """Files of step 2 are written only when step 3 has changed weights and optimizer state."""
    layout = (1, 1, 2)
    stopped = recipe_of(layout, precision="bf16", samples=8)
    ahead = recipe_of(layout, precision="bf16", samples=20, checkpoint_every=2)
    run_ranks("train", [stopped], data=data, outs=[tmp_path / "stopped"])
    run_ranks("train", [ahead], data=data, outs=[tmp_path / "ahead"], slow_disk=3)
    one, other = (Checkpoint.open(tmp_path / name / "checkpoints" / "step-2") for name in ("stopped", "ahead"))
    assert one.digest == other.digest
    for name in one.names:
        for slot in ("master", "exp_avg", "exp_avg_sq"):
            assert torch.equal(one.optimizer(name, slot), other.optimizer(name, slot))


@pytest.mark.parametrize("layout", [(2, 1, 2), (1, 2, 2)], ids=str)
def test_rank_reads_only_its_weights_and_fragments(
    run_ranks: RunRanks, data: Path, tmp_path: Path, layout: tuple[int, int, int]
) -> None:
    """In its own layout and in another: 2 bytes a weight in bf16, 12 an element of the fragments."""
    run_ranks("train", [recipe_of((2, 1, 2), precision="bf16", samples=8)], data=data, outs=[tmp_path])
    for rank in run_ranks("restored_bytes", [recipe_of(layout, precision="bf16")], out=tmp_path):
        assert rank["bytes"] == 2 * rank["weights"] + 12 * rank["fragments"]
        assert rank["fragments"] < rank["weights"]
