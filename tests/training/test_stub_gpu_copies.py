"""Copies beside training on a GPU that is not there (`stub_copies`): activations on the host, and a checkpoint's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training import stub_gpu

if not stub_gpu.CAN_RUN:
    pytest.skip("compiles a library for Linux with g++", allow_module_level=True)

RECIPE = Path(__file__).parents[2] / "recipes" / "dense-1.3b" / "train.toml"
SETTINGS = ("model.attention_dropout=0", "model.layers=16", "layout.pp=8", "train.offload_activations=true")
SCHEDULES = {
    "zero-bubble": ("train.schedule=zero-bubble",),
    "interleaved": ("train.schedule=interleaved", "train.chunks=2", "train.recompute=selective"),
}
WAITS = {"_to_copy sharded_optimizer.__init__", "tolist pipeline_engine.train_batch"}
"""When the engine is built, and for a step's loss and norm."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GPU."""
    return stub_gpu.build(tmp_path_factory.mktemp("stub"))


def run(library: Path, schedule: str, missing: str = "") -> dict[str, Any]:
    case = [str(library), missing, str(RECIPE), *SETTINGS, *SCHEDULES[schedule]]
    words = [sys.executable, "-m", "training.stub_copies", *case]
    ended = subprocess.run(words, cwd=Path(__file__).parents[1], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copies_wait_for_what_they_read_and_hold_up_no_host(schedule: str, library: Path) -> None:
    answer = run(library, schedule)
    assert not answer["races"]
    assert set(answer["waits"]) == WAITS


@pytest.mark.parametrize("missing", ["wait_event", "wait_stream", "synchronize"])
def test_a_wait_that_is_missing_is_seen(missing: str, library: Path) -> None:
    assert run(library, "zero-bubble", missing)["races"]
