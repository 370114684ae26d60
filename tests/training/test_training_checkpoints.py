"""Checkpoints of several ranks: what is written while training goes on, and what a rank reads of it."""

from pathlib import Path

import pytest

from training.reference_loop import RunRanks, recipe_of


@pytest.mark.parametrize("layout", [(2, 1, 2), (1, 2, 2)], ids=str)
def test_rank_reads_only_its_weights_and_fragments(
    run_ranks: RunRanks, data: Path, tmp_path: Path, layout: tuple[int, int, int]
) -> None:
    """In its own layout and in another: 2 bytes a weight in bf16, 12 an element of the fragments."""
    run_ranks("train", [recipe_of((2, 1, 2), precision="bf16", samples=8)], data=data, outs=[tmp_path])
    for rank in run_ranks("restored_bytes", [recipe_of(layout, precision="bf16")], out=tmp_path):
        assert rank["bytes"] == 2 * rank["weights"] + 12 * rank["fragments"]
        assert rank["fragments"] < rank["weights"]
