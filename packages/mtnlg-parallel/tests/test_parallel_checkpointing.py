"""Checkpoints in the background, as one process sees them."""

from contextlib import nullcontext
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtnlg_parallel.engine import zero
from mtnlg_parallel.engine.contract import Fragment
from mtnlg_parallel.training.checkpointing import StateCopier


def test_restore_makes_each_initial_weight_once() -> None:
    engine: Any = SimpleNamespace(optimizer_steps=3)
    local: list[Any] = [
        SimpleNamespace(
            name=f"w{n}", box=(slice(0, 4),), parameter=torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
        )
        for n in range(3)
    ]
    halves = [
        Fragment(each, start, start + 2, torch.zeros(2), torch.zeros(2), {}) for each in local for start in (0, 2)
    ]
    engine.local_parameters, engine.fragments = lambda: local, lambda: halves[::-1]
    made: list[str] = []

    def value(name: str, box: tuple[slice, ...]) -> torch.Tensor:
        made.append(name)
        return torch.arange(8.0)[box] + len(made) / 3

    zero.restore(engine, zero.InitialWeights(value))
    assert made == ["w0", "w1", "w2"]
    for number, each in enumerate(local, 1):
        drawn = torch.arange(4.0) + number / 3
        assert torch.equal(each.parameter.detach(), drawn.bfloat16())
        assert torch.equal(torch.cat([part.master for part in halves if part.local is each]), drawn)
    assert engine.optimizer_steps == 0


def test_copy_thread_uses_the_ranks_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device, chosen = torch.device("cuda", 3), dict[str, torch.device]()
    stream = SimpleNamespace(synchronize=lambda: None, wait_event=lambda _: None, record_event=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: chosen.setdefault(current_thread().name[:4], gpu))
    monkeypatch.setattr(zero, "fragment_pieces", lambda _: [])
    engine: Any = SimpleNamespace(optimizer_steps=0)
    progress: Any = None  # nothing reads it
    copier = StateCopier(engine, device)
    assert copier.start(progress).pieces.result() == []
    assert chosen == {"copy": device}
