"""Round trips: a model written in any pieces is read back in any other pieces."""

import errno
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import PROGRESS
from torch import Tensor

from mtnlg_model.checkpoint import boxes
from mtnlg_model.checkpoint.boxes import Box
from mtnlg_model.checkpoint.lease import lease
from mtnlg_model.checkpoint.manifest import (
    SLOTS,
    CheckpointError,
    MissingFileError,
    SlotName,
    latest,
    list_checkpoints,
    parse_manifest,
)
from mtnlg_model.checkpoint.reader import Checkpoint, load, save
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish, retain
from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import preset

SMALL = ModelConfig(layers=1, hidden=6, heads=2, sequence=5, vocabulary=7, dropout=0.0, attention_dropout=0.0)


def tokenizer(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text("{}")
    return path


def index(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


@st.composite
def tilings(draw: st.DrawFn, box: Box) -> list[Box]:
    """A box cut again and again at random places on random axes."""
    axes = [axis for axis, (start, stop) in enumerate(box) if stop - start > 1]
    if not axes or draw(st.integers(0, 2)) == 0:
        return [box]
    axis = draw(st.sampled_from(axes))
    place = draw(st.integers(box[axis][0] + 1, box[axis][1] - 1))
    halves = ((box[axis][0], place), (place, box[axis][1]))
    return [piece for half in halves for piece in draw(tilings((*box[:axis], half, *box[axis + 1 :])))]


@st.composite
def flats(draw: st.DrawFn, box: Box) -> list[tuple[int, int] | None]:
    """A box whole, or cut into flat ranges as ZeRO does."""
    if draw(st.booleans()):
        return [None]
    cuts = sorted(draw(st.sets(st.integers(1, boxes.volume(box)), max_size=4)) | {boxes.volume(box)})
    return [(first, last) for first, last in zip([0, *cuts], cuts, strict=False)]


@st.composite
def sub_boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    cuts = [sorted((draw(st.integers(0, size)), draw(st.integers(0, size)))) for size in shape]
    return tuple((start, stop) for start, stop in cuts)


def random_tensors(dtype: torch.dtype) -> dict[tuple[str, SlotName], Tensor]:
    slots = [slot for slot in SLOTS if not (slot == "master" and dtype == torch.float32)]
    generator = torch.Generator().manual_seed(0)
    return {
        (name, slot): torch.randn(shape, generator=generator).to(dtype if slot == "weight" else torch.float32)
        for name, shape in SMALL.parameter_shapes().items()
        for slot in slots
    }


@settings(max_examples=25)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_any_box_is_read_from_any_cut(data: st.DataObject, dtype: torch.dtype) -> None:
    tensors = random_tensors(dtype)
    cut = data.draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3, unique=True))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        writers = {letter: CheckpointWriter(folder, 3, letter) for letter in "abc"}
        for key, tensor in tensors.items():
            whole = tuple((0, size) for size in tensor.shape)
            for box in data.draw(tilings(whole)) if key in cut else [whole]:
                for flat in data.draw(flats(box)) if key in cut else [None]:
                    piece = tensor[index(box)] if flat is None else tensor[index(box)].flatten()[slice(*flat)]
                    writer = writers[data.draw(st.sampled_from("abc")) if key in cut else "a"]
                    writer.add(key[0], tensor.shape, key[1], index(box), piece, flat)
        for writer in writers.values():
            writer.close()
        checkpoint = Checkpoint.open(publish(folder, 3, sorted(writers), SMALL, PROGRESS, tokenizer(folder)))
        checkpoint.verify()
        for (name, slot), tensor in tensors.items():
            assert torch.equal(checkpoint.tensor(name, slot=slot), tensor)
        for name, slot in cut:
            box = data.draw(sub_boxes(checkpoint.shape(name)))
            assert torch.equal(checkpoint.tensor(name, index(box), slot), tensors[name, slot][index(box)])


def test_model_and_optimizer_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    decoder = Decoder(preset("tiny"))
    optimizer = torch.optim.AdamW(decoder.parameters())
    for _ in range(2):
        decoder(torch.randint(0, 512, (2, 8))).square().mean().backward()
        optimizer.step()
    path = save(decoder, tmp_path, 2, PROGRESS, tokenizer(tmp_path), optimizer)
    checkpoint = Checkpoint.open(path)
    assert checkpoint.progress == PROGRESS
    assert checkpoint.tokenizer_path.read_text() == "{}"
    twin = Decoder(preset("tiny"), seed=7)
    its_optimizer = torch.optim.AdamW(twin.parameters())
    load(twin, checkpoint, its_optimizer)
    for mine, its in zip(decoder.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, its)
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[mine][key], its_optimizer.state[its][key])
    assert checkpoint.optimizer_steps == 2


def test_latest_and_retain_see_only_complete_checkpoints(tmp_path: Path) -> None:
    decoder = Decoder(SMALL)
    assert latest(tmp_path) is None
    for step in (1, 2, 10):
        save(decoder, tmp_path, step, PROGRESS, tokenizer(tmp_path))
    (tmp_path / "step-11").mkdir()
    (tmp_path / "step-12.tmp").mkdir()
    (tmp_path / "step-9.tmp").mkdir()
    assert latest(tmp_path) == tmp_path / "step-10"
    retain(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-10", "step-11", "step-12.tmp", "step-2"]


def test_a_checkpoint_with_a_lease_is_not_removed(tmp_path: Path) -> None:
    """Until the last of its holders has ended, here a child that outlives who began to read."""
    steps = [save(Decoder(SMALL), tmp_path, step, PROGRESS, tokenizer(tmp_path)) for step in (1, 2, 3)]
    with lease(steps[0]) as held:
        reader = subprocess.Popen(["sleep", "60"], pass_fds=[held.fileno()])  # noqa: S607
    retain(tmp_path, keep=1)
    assert [path for _, path in list_checkpoints(tmp_path)] == [steps[0], steps[2]]
    reader.kill()
    reader.wait()
    retain(tmp_path, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "tokenizer.json"]
    with pytest.raises(MissingFileError):
        lease(steps[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "tokenizer.json"]


def test_unremovable_old_checkpoint_is_named_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    for step in (1, 2, 3):
        save(Decoder(SMALL), tmp_path, step, PROGRESS, tokenizer(tmp_path))
    with monkeypatch.context() as busy:
        busy.setattr(os, "unlink", refuse)
        retain(tmp_path, keep=2)
        shutil.copytree(tmp_path / "step-3", tmp_path / "step-1")
        retain(tmp_path, keep=2)
    said = re.findall(r": Directory not empty; the old .*/(.*) is not yet removed\n", capsys.readouterr().err)
    assert said == ["step-1.tmp", "step-1", "step-1.tmp"]
    retain(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-2", "step-3"]


def test_existing_step_is_not_overwritten(tmp_path: Path) -> None:
    save(Decoder(SMALL), tmp_path, 1, PROGRESS, tokenizer(tmp_path))
    with pytest.raises(CheckpointError, match="step-1: exists already; remove it"):
        CheckpointWriter(tmp_path, 1, "rank-0")


MANIFESTS: Final[dict[str, str]] = json.loads((Path(__file__).parent / "manifests_0_3.json").read_text())
"""Manifests of version 0.3 by family: of decoders of seed 1234, with `TOKENIZER_0_3`."""
TOKENIZER_0_3 = (
    '{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"<|endoftext|>",'
    '"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,'
    '"pre_tokenizer":null,"post_processor":null,"decoder":null,"model":{"type":"WordLevel",'
    '"vocab":{"<|endoftext|>":0,"a":1},"unk_token":"<|endoftext|>"}}'
)


@pytest.mark.parametrize("family", MANIFESTS)
def test_checkpoints_of_0_3_open_and_are_written_byte_for_byte(family: str, tmp_path: Path) -> None:
    old = parse_manifest(tmp_path, MANIFESTS[family].encode())
    (tmp_path / "tokenizer.json").write_text(TOKENIZER_0_3)
    folder = save(Decoder(old.config), tmp_path, 1, old.progress, tmp_path / "tokenizer.json")
    assert (folder / "manifest.json").read_text() == MANIFESTS[family]
    Checkpoint.open(folder).verify()
