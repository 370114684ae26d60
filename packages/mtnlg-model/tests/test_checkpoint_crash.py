"""A writer killed before any change to the disk: the newest complete checkpoint is found, the save can be repeated."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mtnlg_model.checkpoint import tensor_file
from mtnlg_model.checkpoint.manifest import Layout, Progress, latest
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish, retain
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder

CONFIG = ModelConfig(layers=1, hidden=8, heads=2, sequence=4, vocabulary=5)
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
KILLED = 77


def save_complete(decoder: Decoder, directory: Path, step: int, tokenizer: Path) -> None:
    """As two ranks would: one writes the weights, one the optimizer's state; one publishes and removes what is old."""
    for name, slots in (("rank-0", ("weight",)), ("rank-1", ("exp_avg", "exp_avg_sq"))):
        writer = CheckpointWriter(directory, step, name)
        for slot in slots:
            for key, parameter in decoder.named_parameters():
                writer.add(key, parameter.shape, slot, None, parameter)  # type: ignore[arg-type]
        writer.close()
    progress = Progress(step=step, samples=step, tokens=step, loss=1.0, stream="f00d", layout=Layout(dp=2))
    publish(directory, step, ["rank-0", "rank-1"], CONFIG, progress, tokenizer)
    retain(directory, keep=1)


def changes_the_disk(event: str, arguments: Sequence[Any]) -> bool:
    return event in CHANGES or (event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))


def killed_before(change: int, work: Callable[[], None]) -> bool:
    """Run ``work`` in a child that dies, as by SIGKILL, before its ``change``-th change to the disk; whether it did."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in {0, KILLED}
        return status == KILLED
    left, write_hashed = change, tensor_file._write_hashed

    def step() -> None:
        nonlocal left
        if left == 0:
            os._exit(KILLED)
        left -= 1

    def torn(file: Any, checksum: Any, block: memoryview) -> None:  # noqa: ANN401  (those of the function it replaces)
        # In the middle of the header and of the largest tensors; of the small ones nothing else would be seen.
        middle = len(block) // 2 if len(block) > 1000 else len(block)
        write_hashed(file, checksum, block[:middle])
        if middle < len(block):
            step()
            write_hashed(file, checksum, block[middle:])

    status = 1
    try:
        tensor_file._write_hashed = torn
        sys.addaudithook(lambda event, arguments: step() if changes_the_disk(event, arguments) else None)
        work()
        status = 0
    finally:
        os._exit(status)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_kill_leaves_the_newest_complete_checkpoint(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A killed process loses nothing that it has written; only a power cut needs the disk to be waited for.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    decoders = {"step-1": Decoder(CONFIG, seed=1), "step-2": Decoder(CONFIG, seed=2)}
    save_complete(decoders["step-1"], tmp_path / "before", 1, tokenizer_path)
    newest: list[str] = []
    killed = True
    while killed:
        directory = tmp_path / f"killed-{len(newest)}"
        shutil.copytree(tmp_path / "before", directory)

        def save(directory: Path = directory) -> None:
            save_complete(decoders["step-2"], directory, 2, tokenizer_path)

        killed = killed_before(len(newest), save)
        path = latest(directory)
        assert path is not None
        newest.append(path.name)
        assert_complete(path, decoders[path.name])
        if path.name == "step-1":
            save()
        retain(directory, keep=1)
        assert [path.name for path in directory.iterdir()] == ["step-2"]
        assert_complete(directory / "step-2", decoders["step-2"])
        assert {path.suffix for path in (directory / "step-2").iterdir()} == {".json", ".safetensors"}
        shutil.rmtree(directory)
    # The old checkpoint is the newest until the rename, the new one from then on.
    assert newest == sorted(newest)
    assert newest.count("step-1") > 25
    assert newest.count("step-2") > 5


def assert_complete(path: Path, decoder: Decoder) -> None:
    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    for name, parameter in decoder.named_parameters():
        assert torch.equal(checkpoint.tensor(name), parameter)
        assert torch.equal(checkpoint.optimizer(name, "exp_avg_sq"), parameter)


def test_a_checkpoint_is_on_the_disk_before_it_exists(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut needs: every file synced at its full length, then the folder, then the rename, then its name."""
    synced: list[tuple[int, int]] = []
    order = []

    def identity(status: os.stat_result) -> tuple[int, int]:
        return status.st_ino, status.st_size

    def rename(path: Path, target: Path) -> Path:
        assert {identity(file.stat()) for file in path.iterdir()} <= set(synced)
        assert synced[-1] == identity(path.stat())
        order.append("rename")
        path.replace(target)
        synced.clear()
        return target

    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(identity(os.fstat(handle))))
    monkeypatch.setattr(Path, "rename", rename)
    save_complete(Decoder(CONFIG), tmp_path, 1, tokenizer_path)
    assert order == ["rename"]
    assert synced[-1][0] == tmp_path.stat().st_ino
