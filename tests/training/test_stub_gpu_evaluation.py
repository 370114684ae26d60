"""Scoring and generation on a GPU that is not there (`stub_evaluation`): devices, races, and waits of the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training import stub_evaluation, stub_gpu

if not stub_gpu.CAN_RUN:
    pytest.skip("compiles a library for Linux with g++", allow_module_level=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GPU."""
    return stub_gpu.build(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module", params=["dense-1.3b", "llama-3.2-1b"])
def answer(library: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of a preset."""
    run = [sys.executable, "-m", "training.stub_evaluation", str(library), request.param]
    ended = subprocess.run(run, cwd=Path(__file__).parents[1], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_packing_overlaps_the_gpu(answer: dict[str, Any]) -> None:
    """No host waits for the GPU to send it a batch, and for the first batch's scores it waits for no later work."""
    scoring = answer["scoring"]
    assert not scoring["races"]
    assert not scoring["waits"]
    assert 0 < scoring["known"] <= scoring["first"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_generation_waits_for_the_gpu_once_a_step(temperature: float, answer: dict[str, Any]) -> None:
    generation = answer[f"generation at {temperature}"]
    assert not generation["races"]
    assert generation["waits"] == {"tolist sampling.draw_tokens": stub_evaluation.NEW_TOKENS}
