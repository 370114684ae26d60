"""Writing: many processes at once, in the background, bounded in memory; reading: no byte too many."""

from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors import safe_open
from samples import PROGRESS

from mtnlg_model.checkpoint import tensor_file, writer
from mtnlg_model.checkpoint.manifest import CheckpointError
from mtnlg_model.checkpoint.reader import Checkpoint, load, save
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import preset

CONFIG = ModelConfig(layers=2, hidden=32, heads=4, sequence=16, vocabulary=64)
DOWN = "layers.1.mlp.down.weight"


def write_all(folder: Path, name: str = "a", *, skip: str = "") -> CheckpointWriter:
    new = CheckpointWriter(folder, 1, name)
    for key, tensor in Decoder(CONFIG).state_dict().items():
        if key != skip:
            new.add(key, tensor.shape, "weight", None, tensor)
    return new


def test_training_goes_on_while_a_slow_disk_is_written_to(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, write_hashed = Event(), tensor_file._write_hashed

    def slow(*arguments: Any) -> None:  # noqa: ANN401  (any arguments)
        disk.wait()
        write_hashed(*arguments)

    monkeypatch.setattr(tensor_file, "_write_hashed", slow)
    decoder = Decoder(CONFIG)
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    new = CheckpointWriter(tmp_path, 1, "a")
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            new.add(name, parameter.shape, "weight", None, parameter)
            parameter.fill_(float("nan"))
    assert not new.done
    new.finish()
    decoder(torch.ones(1, 1, dtype=torch.long))
    assert not new.done
    disk.set()
    new.close()
    assert new.done
    checkpoint = Checkpoint.open(publish(tmp_path, 1, ["a"], CONFIG, PROGRESS, tokenizer_path))
    for name, tensor in before.items():
        assert torch.equal(checkpoint.tensor(name), tensor)


def test_files_are_cut_at_their_size_and_the_backlog_waits(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FILE_BYTES", 10_000)
    monkeypatch.setattr(tensor_file, "CHUNK_BYTES", 1000)
    new = CheckpointWriter(tmp_path, 1, "a", backlog=0)
    decoder = Decoder(CONFIG)
    for name, parameter in decoder.named_parameters():
        new.add(name, parameter.shape, "weight", None, parameter)
    new.close()
    path = publish(tmp_path, 1, ["a"], CONFIG, PROGRESS, tokenizer_path)
    assert len(list(path.glob("*.safetensors"))) > 5
    Checkpoint.open(path).verify()
    load(Decoder(CONFIG, seed=2), Checkpoint.open(path))


def test_full_disk_is_raised_on_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:  # noqa: ANN401  (any arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file, "_write_hashed", full)
    failing = write_all(tmp_path)
    failing.finish()
    with pytest.raises(OSError, match=r"No space left on device: '.*step-1\.tmp/a\.weights-0\.safetensors'"):
        failing.close()
    assert failing.done
    assert not list(tmp_path.glob("*/*.part.json"))


def test_weights_are_plain_safetensors_under_their_own_names(tmp_path: Path, tokenizer_path: Path) -> None:
    decoder = Decoder(CONFIG)
    path = save(decoder, tmp_path, 1, PROGRESS, tokenizer_path)
    with safe_open(path / "all.weights-0.safetensors", "pt") as file:
        assert set(file.keys()) == set(CONFIG.parameter_shapes())
        for name, parameter in decoder.named_parameters():
            assert torch.equal(file.get_tensor(name), parameter)


def test_mismatched_checkpoint_is_not_published(tmp_path: Path, tokenizer_path: Path) -> None:
    def publish_as(*writers: str) -> Path:
        return publish(tmp_path, 1, writers, CONFIG, PROGRESS, tokenizer_path)

    def write_half(name: str, rows: slice, dtype: torch.dtype) -> None:
        new = CheckpointWriter(tmp_path, 1, name)
        new.add(DOWN, (32, 128), "weight", (rows,), torch.ones(16, 128, dtype=dtype))
        new.close()

    with pytest.raises(CheckpointError, match=r"a\.part\.json: missing: writer a did not close"):
        publish_as("a")
    write_all(tmp_path, "a", skip=DOWN).close()
    with pytest.raises(CheckpointError, match=r"tensors: 27 where config has 28; see .*mlp.down.weight"):
        publish_as("a")
    write_half("b", slice(16), torch.float32)
    with pytest.raises(CheckpointError, match=f"{DOWN}: weight: 2048 of 4096 elements are missing"):
        publish_as("a", "b")
    write_half("c", slice(16, 32), torch.bfloat16)
    with pytest.raises(CheckpointError, match=f"{DOWN}: weight: written as F32 and as BF16"):
        publish_as("a", "b", "c")
    assert not (tmp_path / "step-1").exists()
    write_half("c", slice(16, 32), torch.float32)
    Checkpoint.open(publish_as("a", "b", "c")).verify()


def test_wrong_pieces_and_names_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"writer '\.\./x': use letters"):
        CheckpointWriter(tmp_path, 1, "../x")
    new = CheckpointWriter(tmp_path, 1, "a")
    with pytest.raises(CheckpointError, match=r"12 elements for .*\[0:16,0:128\], which has 2048"):
        new.add(DOWN, (32, 128), "weight", (slice(0, 16),), torch.ones(3, 4))
    with pytest.raises(CheckpointError, match="axis 0: 0:33:1 is not a range of step 1 within 32"):
        new.add(DOWN, (32, 128), "weight", (slice(0, 33),), torch.ones(33, 128))
    with pytest.raises(CheckpointError, match=r"torch\.int64 cannot be stored; use torch\.float64"):
        new.add(DOWN, (32, 128), "weight", None, torch.ones(32, 128, dtype=torch.int64))


def test_missing_tensor_is_named(tmp_path: Path, tokenizer_path: Path) -> None:
    checkpoint = Checkpoint.open(save(Decoder(CONFIG), tmp_path, 1, PROGRESS, tokenizer_path))
    with pytest.raises(CheckpointError, match=r"step-1: layers\.9\.x: no such tensor"):
        checkpoint.tensor("layers.9.x")
    with pytest.raises(CheckpointError, match=f"{DOWN}: no exp_avg, only weight"):
        checkpoint.optimizer(DOWN, "exp_avg")
    for index in ((slice(0, 33),), (slice(-1, 3),), (slice(0, 8, 2),), (slice(3, 1),), (slice(0, 1),) * 3):
        with pytest.raises(CheckpointError, match=DOWN):
            checkpoint.tensor(DOWN, index)
    with pytest.raises(CheckpointError, match="hidden = 32 where the decoder has 64"):
        load(Decoder(preset("tiny")), checkpoint)


def test_killed_attempts_files_are_ignored(tmp_path: Path, tokenizer_path: Path) -> None:
    write_all(tmp_path).close()
    again = write_all(tmp_path)
    with pytest.raises(CheckpointError, match="writer a did not close"):
        publish(tmp_path, 1, ["a"], CONFIG, PROGRESS, tokenizer_path)
    again.close()
    Checkpoint.open(publish(tmp_path, 1, ["a"], CONFIG, PROGRESS, tokenizer_path)).verify()


def test_tensor_target_must_match(tmp_path: Path, tokenizer_path: Path) -> None:
    decoder = Decoder(CONFIG)
    checkpoint = Checkpoint.open(save(decoder, tmp_path, 1, PROGRESS, tokenizer_path))
    out = torch.empty(32, 64)
    assert checkpoint.tensor(DOWN, (slice(None), slice(64, 128)), out=out) is out
    assert torch.equal(out, decoder.state_dict()[DOWN][:, 64:])
    for wrong in (torch.empty(32, 63), torch.empty(32, 64, dtype=torch.bfloat16), torch.empty(64, 32).T):
        with pytest.raises(CheckpointError, match=f"{DOWN}: weight: cannot be read into"):
            checkpoint.tensor(DOWN, (slice(None), slice(64, 128)), out=wrong)
