"""Conformance tests of contract 2, the checkpoint: written in one layout, read in another.

``pytest tests/test_contract_checkpoint.py --checkpoint my_package.module`` tests another implementation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import pytest
import torch

from mtnlg_model.config import ModelConfig

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    Tensors = dict[tuple[str, str], torch.Tensor]

CONFIG = ModelConfig(layers=2, hidden=16, heads=4, sequence=8, vocabulary=24)
SLOTS = ("weight", "exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    return import_module(request.config.getoption("--checkpoint"))


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(1)
    shapes = CONFIG.parameter_shapes()
    return {(name, slot): torch.randn(shapes[name], generator=generator) for slot in SLOTS for name in shapes}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text('{"version": "1.0"}', encoding="utf-8")
    return path


def box(shape: tuple[int, ...], axis: int, part: int, parts: int) -> tuple[slice, ...]:
    slices = [slice(0, size) for size in shape]
    step = shape[axis] // parts
    slices[axis] = slice(part * step, (part + 1) * step)
    return tuple(slices)


class Write(Protocol):
    def __call__(self, folder: Path, tensors: Tensors, step: int = 7) -> Path: ...


@pytest.fixture
def write(implementation: ModuleType, tokenizer: Path) -> Write:
    def write_two_ranks(folder: Path, tensors: Tensors, step: int = 7) -> Path:
        return write_as_two_ranks(implementation, folder, tensors, tokenizer, step)

    return write_two_ranks


def write_as_two_ranks(implementation: ModuleType, folder: Path, tensors: Tensors, tokenizer: Path, step: int) -> Path:
    """Write as two tensor-parallel ranks, each with two ZeRO fragments of its optimizer state."""
    for rank in range(2):
        writer = implementation.CheckpointWriter(folder, step, f"{rank:05d}")
        for (name, slot), tensor in tensors.items():
            shape = tuple(tensor.shape)
            index = box(shape, len(shape) - 1, rank, 2)
            piece = tensor[index].contiguous()
            if slot == "weight":
                writer.add(name, shape, slot, index, piece)
                continue
            middle = piece.numel() // 3
            for start, stop in ((0, middle), (middle, piece.numel())):
                writer.add(name, shape, slot, index, piece.flatten()[start:stop], flat=(start, stop))
        writer.close()
    progress = implementation.Progress(
        step=step,
        samples=step * 4,
        tokens=step * 32,
        loss=2.5,
        stream="abc",
        layout=implementation.Layout(tp=2, pp=1, dp=2),
    )
    written: Path = implementation.publish(folder, step, ["00000", "00001"], CONFIG, progress, tokenizer)
    return written


def test_any_box_of_any_tensor_reads_back_whatever_the_pieces(
    implementation: ModuleType, tensors: Tensors, write: Write, tmp_path: Path
) -> None:
    checkpoint = implementation.Checkpoint.open(write(tmp_path, tensors))
    assert set(checkpoint.names) == set(CONFIG.parameter_shapes())
    for (name, slot), tensor in tensors.items():
        read = checkpoint.tensor if slot == "weight" else lambda n, i=None, s=slot: checkpoint.optimizer(n, s, i)
        assert torch.equal(read(name), tensor)
        for axis in range(tensor.dim()):
            index = box(tuple(tensor.shape), axis, 1, 4)
            assert torch.equal(read(name, index), tensor[index])


def test_config_progress_and_tokenizer_read_back(
    implementation: ModuleType, tensors: Tensors, write: Write, tokenizer: Path, tmp_path: Path
) -> None:
    checkpoint = implementation.Checkpoint.open(write(tmp_path, tensors))
    progress = checkpoint.progress
    assert checkpoint.config == CONFIG
    assert (progress.step, progress.samples, progress.tokens, progress.loss) == (7, 28, 224, 2.5)
    assert (progress.stream, progress.layout.tp, progress.layout.dp) == ("abc", 2, 2)
    assert checkpoint.tokenizer_path.read_bytes() == tokenizer.read_bytes()


def test_latest_ignores_folders_that_were_not_published(
    implementation: ModuleType, tensors: Tensors, write: Write, tmp_path: Path
) -> None:
    assert implementation.latest(tmp_path) is None
    first = write(tmp_path, tensors, step=7)
    implementation.CheckpointWriter(tmp_path, 8, "00000").close()
    assert implementation.latest(tmp_path) == first
    second = write(tmp_path, tensors, step=10)
    assert implementation.latest(tmp_path) == second
    (second / "manifest.json").unlink()
    assert implementation.latest(tmp_path) == first


def test_a_tensor_may_change_after_it_was_added(
    implementation: ModuleType, tensors: Tensors, tokenizer: Path, tmp_path: Path
) -> None:
    writer = implementation.CheckpointWriter(tmp_path, 7, "00000")
    for (name, slot), tensor in tensors.items():
        changing = tensor.clone()
        writer.add(name, tuple(tensor.shape), slot, None, changing)
        changing.fill_(float("nan"))
    assert not writer.done
    writer.finish()
    writer.close()
    assert writer.done
    progress = implementation.Progress(
        step=7, samples=1, tokens=1, loss=1.0, stream="", layout=implementation.Layout(tp=1, pp=1, dp=1)
    )
    written = implementation.publish(tmp_path, 7, ["00000"], CONFIG, progress, tokenizer)
    checkpoint = implementation.Checkpoint.open(written)
    for (name, slot), tensor in tensors.items():
        assert torch.equal(checkpoint.tensor(name, slot=slot), tensor)


def test_a_flipped_byte_is_found_and_named(
    implementation: ModuleType, tensors: Tensors, write: Write, tmp_path: Path
) -> None:
    folder = write(tmp_path, tensors)
    implementation.Checkpoint.open(folder).verify()
    victim = min(folder.glob("*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(bytes(content))
    with pytest.raises(Exception, match=victim.name):
        implementation.Checkpoint.open(folder).verify()


def test_digest_depends_only_on_weights(
    implementation: ModuleType, tensors: Tensors, write: Write, tmp_path: Path
) -> None:
    one = implementation.Checkpoint.open(write(tmp_path / "1", tensors))
    moved = {key: tensor if key[1] == "weight" else tensor + 1 for key, tensor in tensors.items()}
    same = implementation.Checkpoint.open(write(tmp_path / "2", moved))
    changed = {key: tensor.clone() for key, tensor in tensors.items()}
    changed["final_norm.bias", "weight"][0] += 1
    other = implementation.Checkpoint.open(write(tmp_path / "3", changed))
    assert one.digest == same.digest != other.digest


def test_nothing_in_it_can_run_code(tensors: Tensors, write: Write, tmp_path: Path) -> None:
    folder = write(tmp_path, tensors)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".safetensors", ".json"}
