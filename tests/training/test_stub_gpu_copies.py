"""Copies beside training on a GPU that is not there (`stub_copies`): activations on the host, and a checkpoint's."""

from __future__ import annotations

from pathlib import Path

import pytest

from training import stub_gpu

RECIPE = Path(__file__).parents[2] / "recipes" / "dense-1.3b" / "train.toml"
SETTINGS = ("model.attention_dropout=0", "model.layers=16", "layout.pp=8", "train.offload_activations=true")
SCHEDULES = {
    "zero-bubble": ("train.schedule=zero-bubble",),
    "interleaved": ("train.schedule=interleaved", "train.chunks=2", "train.recompute=selective"),
}
WAITS = {"tolist pipeline_engine.train_batch"}
"""For a step's loss and norm."""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_wait_for_what_they_read_and_hold_up_no_host(schedule: str, stub_library: Path) -> None:
    answer = stub_gpu.ask("stub_copies", stub_library, "", RECIPE, *SETTINGS, *SCHEDULES[schedule])
    assert not answer["races"]
    assert set(answer["waits"]) == WAITS


@pytest.mark.parametrize("missing", ["wait_event", "wait_stream", "synchronize"])
def test_missing_stream_wait_is_detected(missing: str, stub_library: Path) -> None:
    case = (RECIPE, *SETTINGS, *SCHEDULES["zero-bubble"])
    assert stub_gpu.ask("stub_copies", stub_library, missing, *case)["races"]
