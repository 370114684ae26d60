"""Checkpoints in the background, as one process sees them."""

from contextlib import nullcontext
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtnlg_parallel.engine import zero
from mtnlg_parallel.training.checkpointing import StateCopier


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
