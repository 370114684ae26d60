"""Scoring and generation on a GPU that is not there (`stub_evaluation`): devices, races, and waits of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from training import stub_evaluation, stub_gpu

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", params=["dense-1.3b", "llama-3.2-1b"])
def answer(stub_library: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of a preset."""
    answer: dict[str, Any] = stub_gpu.ask("stub_evaluation", stub_library, request.param)
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
