"""A writer killed at any line: the newest whole checkpoint is found, and the same save goes on."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from mtnlg_model import files, steps, tensorfile, writer
from mtnlg_model.checkpoint import Checkpoint, Layout, Progress, latest, retain, save
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder

CONFIG = ModelConfig(layers=1, hidden=8, heads=2, sequence=4, vocabulary=5)
TRACED = {module.__file__ for module in (files, steps, tensorfile, writer, shutil)}
# They touch no name; killing there again and again would show nothing new.
UNINTERESTING = {"add", "check", "_record", "_key", "_count", "_size", "_merged", "_bytes", "_hand_over", "sha256"}
REPEATED = {"write", "_put", "_rmtree_safe_fd"}


def whole_save(decoder: Decoder, directory: Path, step: int, tokenizer: Path) -> None:
    progress = Progress(step=step, samples=step, tokens=step, loss=1.0, stream="f00d", layout=Layout())
    save(decoder, directory, step, progress, tokenizer)
    retain(directory, keep=1)


def killed_at(line: int, work: Callable[[], None]) -> bool:
    """Run ``work`` in a child that dies at the ``line``-th traced line; whether it died there."""
    child = os.fork()
    if child == 0:
        left, seen = line, set[int]()

        def trace(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401  (the interpreter's own signature)
            nonlocal left
            name = frame.f_code.co_name
            if frame.f_code.co_filename not in TRACED or name in UNINTERESTING or name.startswith("<"):
                return None
            if event == "line" and (name not in REPEATED or frame.f_lineno not in seen):
                seen.add(frame.f_lineno)
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        threading.settrace(trace)
        sys.settrace(trace)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, end = os.waitpid(child, 0)
    assert os.WIFSIGNALED(end) or os.WEXITSTATUS(end) == 0
    return os.WIFSIGNALED(end)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_killed_at_any_line_the_newest_whole_checkpoint_is_found_and_the_same_save_goes_on(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A killed process loses nothing that it has written; only a power cut needs the disk to be waited for.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    old, new = Decoder(CONFIG, seed=1), Decoder(CONFIG, seed=2)
    whole_save(old, tmp_path / "before", 1, tokenizer_path)
    found = set()
    line, alive = 0, True
    while alive:
        directory = tmp_path / f"killed-{line}"
        shutil.copytree(tmp_path / "before", directory)
        alive = killed_at(line, lambda directory=directory: whole_save(new, directory, 2, tokenizer_path))  # type: ignore[misc]
        path = latest(directory)
        assert path is not None
        found.add(path.name)
        checkpoint = Checkpoint.open(path)
        checkpoint.verify()
        expected = old if path.name == "step-1" else new
        for name, parameter in expected.named_parameters():
            assert torch.equal(checkpoint.tensor(name), parameter)
        if path.name == "step-1":
            whole_save(new, directory, 2, tokenizer_path)
        retain(directory, keep=1)
        assert [path.name for path in directory.iterdir()] == ["step-2"]
        Checkpoint.open(directory / "step-2").verify()
        assert {path.suffix for path in (directory / "step-2").iterdir()} == {".json", ".safetensors"}
        shutil.rmtree(directory)
        line += 1
    assert found == {"step-1", "step-2"}
    assert line > 100
