"""What a resume on many ranks needs: one process reads the manifest, and each of them only its own bytes."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import PROGRESS

from mtnlg_model.checkpoint import boxes, reader
from mtnlg_model.checkpoint.manifest import (
    SLOTS,
    CheckpointError,
    MissingFileError,
    file_checksum,
    parse_manifest,
    read_manifest_bytes,
)
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish
from mtnlg_model.config import ModelConfig

CONFIG = ModelConfig(layers=1, hidden=6, heads=2, sequence=5, vocabulary=7)
WRITERS = ["a", "b", "c"]
NAME = "layers.0.mlp.up.weight"


def value(name: str) -> torch.Tensor:
    """The tensor of this parameter, in every slot."""
    shape = CONFIG.parameter_shapes()[name]
    return torch.arange(boxes.volume(tuple((0, size) for size in shape)), dtype=torch.float32).reshape(shape)


def write(folder: Path, names: list[str] = WRITERS) -> None:
    """Write as data-parallel ranks do, a third of every tensor each."""
    writers = [CheckpointWriter(folder, 1, name) for name in names]
    for name, shape in CONFIG.parameter_shapes().items():
        tensor = value(name)
        cuts = [round(tensor.numel() * part / len(writers)) for part in range(len(writers) + 1)]
        for number, writer in enumerate(writers):
            flat = (cuts[number], cuts[number + 1])
            for slot in SLOTS:
                writer.add(name, shape, slot, None, tensor.flatten()[slice(*flat)], flat)
    for writer in writers:
        writer.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write(folder)
    return publish(folder, 1, WRITERS, CONFIG, PROGRESS, tokenizer_path)


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of tensors that each call has read."""
    read, preadv = list[int](), os.preadv

    def counting(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        read.append(preadv(descriptor, buffers, offset))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counting)
    return read


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_elements_are_read_without_extra_bytes(whole: Path, bytes_read: list[int], data: st.DataObject) -> None:
    checkpoint, tensor = Checkpoint.open(whole), value(NAME)
    index = tuple(
        slice(*sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))) for size in tensor.shape
    )
    box = tensor[index]
    flat = tuple(sorted((data.draw(st.integers(0, box.numel())), data.draw(st.integers(0, box.numel())))))
    bytes_read.clear()
    read = checkpoint.tensor(NAME, index, "master", flat=(flat[0], flat[1]))
    assert torch.equal(read, box.flatten()[slice(*flat)])
    assert sum(bytes_read) == 4 * (flat[1] - flat[0])


def test_elements_outside_a_box_are_refused(whole: Path) -> None:
    for flat in ((0, 145), (-1, 3), (5, 4)):
        with pytest.raises(CheckpointError, match=r"up\.weight: .* is not a range of the elements of box \[0:24,0:6\]"):
            Checkpoint.open(whole).tensor(NAME, flat=flat)


def test_manifest_is_checked_without_its_files(whole: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.from_manifest(tmp_path / "elsewhere", read_manifest_bytes(whole))
    assert checkpoint.progress == PROGRESS
    with pytest.raises(MissingFileError, match=r"elsewhere/a\.weights-0\.safetensors: No such file or directory$"):
        checkpoint.tensor(NAME)
    with pytest.raises(CheckpointError, match=r"no such folder"):
        read_manifest_bytes(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"elsewhere/manifest\.json: checksum does not match the content"):
        Checkpoint.from_manifest(tmp_path / "elsewhere", read_manifest_bytes(whole).replace(b"f00d", b"f00e"))


def test_tensor_files_are_opened_lazily(tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when publishing, where the writers know what they wrote, nor when opening."""
    looked_at: list[str] = []
    write(tmp_path)

    def noting(function: Callable[..., object]) -> Callable[..., object]:
        def note(path: object, *arguments: object, **options: object) -> object:
            looked_at.append(str(path))
            return function(path, *arguments, **options)

        return note

    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    checkpoint = Checkpoint.open(publish(tmp_path, 1, WRITERS, CONFIG, PROGRESS, tokenizer_path))
    assert any(path.endswith("manifest.json") for path in looked_at)
    assert not [path for path in looked_at if path.endswith(".safetensors")]
    checkpoint.tensor(NAME)
    read = {Path(path).name for path in looked_at if path.endswith(".safetensors")}
    assert read == {f"{name}.weights-0.safetensors" for name in WRITERS}


def test_late_file_is_awaited_and_named_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 103 and not folder.exists():
            shutil.copytree(whole, folder)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    folder, raw = tmp_path / "step-1", read_manifest_bytes(whole)
    with pytest.raises(MissingFileError, match=r"weights-0\.safetensors: No such file or directory, for 2 s$"):
        Checkpoint.from_manifest(folder, raw, wait=2.0).tensor(NAME)
    assert not folder.exists()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("weights-0.safetensors: not there yet; waiting up to 2 s for it")
    assert torch.equal(Checkpoint.from_manifest(folder, raw, wait=2.0).tensor(NAME), value(NAME))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_verify_every_file_once_together(
    tmp_path: Path, tokenizer_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    ranks = [f"rank-{rank}" for rank in range(3)]
    write(tmp_path, ranks)
    checkpoint = Checkpoint.open(publish(tmp_path, 1, ranks, CONFIG, PROGRESS, tokenizer_path))
    compared = list[str]()

    def note(path: Path) -> str:
        compared.append(path.name)
        return file_checksum(path)

    monkeypatch.setattr(reader, "file_checksum", note)
    for rank in range(world):
        before = len(compared)
        checkpoint.verify_share(rank, world)
        if world == 3:
            assert all(name.startswith(f"rank-{rank}.") for name in compared[before:])
    assert sorted(compared) == sorted(path.name for path in checkpoint.directory.glob("rank-*"))
    compared.clear()
    checkpoint.verify_share(0, 1, {"weight"})
    assert sorted(compared) == [f"{rank}.weights-0.safetensors" for rank in ranks]
    damaged = checkpoint.directory / "rank-1.optimizer-0.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rank-1\.optimizer-0\.safetensors: checksum differs"):
        checkpoint.verify_share(1 % world, world)


def test_manifest_is_canonical_and_any_whitespace_is_read(whole: Path) -> None:
    raw = read_manifest_bytes(whole)
    content = json.loads(raw)
    checksum = content.pop("checksum")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert raw.decode() == f'{{"checksum":"{checksum}",{canonical[1:]}\n'
    indented = json.dumps({**content, "checksum": checksum}, indent=2).encode()
    assert parse_manifest(whole, indented) == parse_manifest(whole, raw)
