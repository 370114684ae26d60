"""The checkpoint: safetensors files and one manifest.json, in the global tensors of the one-process decoder.

Whoever trains writes the pieces that it holds, each process its own files and no gather; whoever reads asks for the
boxes that its own layout wants. So every layout opens every checkpoint, with the optimizer's state beside the weights.

    step-100.tmp/rank-0.weights-0.safetensors …   CheckpointWriter, one a process, all at once
    step-100.tmp/manifest.json                     publish, in one process, after all have closed
    step-100/                                      by one rename: there whole, or not at all

Nothing is pickled or unpickled, so a stranger's checkpoint is safe to open; a wrong one raises `CheckpointError`.

The folders step-N of a run: which are whole, which is the newest, which may go. No torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtnlg_model.decoder import Decoder

from . import boxes
from .manifest import (
    MANIFEST,
    MOMENTS,
    SLOTS,
    TOKENIZER,
    CheckpointError,
    Manifest,
    Progress,
    SlotName,
    check_file,
    checksum,
    read_manifest,
    resolve,
)
from .tensor_file import DTYPES, TensorFile
from .writer import CheckpointWriter, publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .boxes import Box, Index
    from .manifest import Entry, Piece, Slot


class Checkpoint:
    """A checkpoint folder opened for reading; `open` it."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self._manifest = directory, manifest
        self._files: dict[str, TensorFile] = {}

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Read and check the manifest of ``directory``, a step-N or a folder of them, of which it takes the newest.

        ``CheckpointError`` names what is wrong.
        """
        directory = resolve(directory)
        return cls(directory, read_manifest(directory))

    @property
    def config(self) -> ModelConfig:
        """The decoder's configuration."""
        return self._manifest.config

    @property
    def progress(self) -> Progress:
        """How far training had come."""
        return self._manifest.progress

    @property
    def digest(self) -> str:
        """Stands for the weights and their configuration: any changed byte of a weight changes it."""
        return self._manifest.digest

    @property
    def optimizer_steps(self) -> int:
        """Updates that the optimizer has made, for Adam's bias correction."""
        return self._manifest.optimizer_steps

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer.json inside the folder."""
        return self.directory / TOKENIZER

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in model order."""
        return tuple(self.config.parameter_shapes())

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a parameter."""
        return self._entry(name).shape

    def slots(self, name: str) -> tuple[SlotName, ...]:
        """What is held of a parameter: its weight, and of the optimizer master, exp_avg, exp_avg_sq."""
        return tuple(slot for slot in SLOTS if slot in self._entry(name).slots)

    def dtype(self, name: str, slot: SlotName = "weight") -> torch.dtype:
        """Element type of a slot."""
        return DTYPES[self._slot(name, slot).dtype]

    def tensor(
        self, name: str, index: Index | None = None, slot: SlotName = "weight", out: Tensor | None = None
    ) -> Tensor:
        """The box ``index`` (half-open, step 1) of a global tensor, on the CPU; all of it when None.

        Reads exactly the bytes of the pieces that overlap it, into ``out`` where that is given: a contiguous CPU tensor
        of the box's shape and the slot's dtype.
        """
        held = self._slot(name, slot)
        try:
            box = boxes.box_of(index, self.shape(name))
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from None
        if out is None:
            out = torch.empty(boxes.lengths(box), dtype=DTYPES[held.dtype], device="cpu")
        elif not _fits(out, boxes.lengths(box), DTYPES[held.dtype]):
            given = f"{out.dtype} {list(out.shape)} on {out.device}"
            raise CheckpointError(
                f"{name}: {slot}: cannot be read into {given}; give a contiguous CPU tensor of its own kind"
            )
        for piece in held.pieces:
            if boxes.intersection(piece.box, box):
                self._copy(piece, held, box, out)
        return out

    def optimizer(self, name: str, slot: SlotName, index: Index | None = None) -> Tensor:
        """`tensor` of an optimizer slot: fp32 master, exp_avg, exp_avg_sq."""
        return self.tensor(name, index, slot)

    def decoder(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
        """The decoder with these weights, in evaluation mode; in the dtype that they are stored in unless told."""
        with torch.device("meta"):
            decoder = Decoder(self.config).to(dtype or self.dtype(self.names[0]))
        decoder.to_empty(device=device)
        load(decoder, self)
        return decoder.eval()

    def verify(self, advance: Callable[[int], None] | None = None) -> None:
        """Hold every file's checksum and every entry against the manifest; ``CheckpointError`` where they differ.

        ``advance`` hears of the bytes done, file by file.
        """
        for name, file in self._manifest.files.items():
            path = self.directory / name
            check_file(path, file)
            same = checksum(path) == file.checksum
            if advance:
                advance(file.bytes)
            if not same:
                raise CheckpointError(
                    f"{path}: its checksum is not the one in {MANIFEST}; the file was changed or damaged"
                )
        for entry in self._manifest.tensors.values():
            for held in entry.slots.values():
                for piece in held.pieces:
                    self._file(piece).expect(piece.key, held.dtype, piece.stored)

    def _entry(self, name: str) -> Entry:
        entry = self._manifest.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{self.directory}: {name}: no such tensor")
        return entry

    def _slot(self, name: str, slot: SlotName) -> Slot:
        held = self._entry(name).slots.get(slot)
        if held is None:
            raise CheckpointError(f"{self.directory}: {name}: no {slot}; there are {', '.join(self.slots(name))}")
        return held

    def _file(self, piece: Piece) -> TensorFile:
        if piece.file not in self._files:
            self._files[piece.file] = TensorFile(self.directory / piece.file)
        return self._files[piece.file]

    def _copy(self, piece: Piece, held: Slot, box: Box, out: Tensor) -> None:
        """Copy into ``out``, which holds ``box``, what ``piece`` has of it."""
        file = self._file(piece)
        file.expect(piece.key, held.dtype, piece.stored)
        first, last = piece.flat or (0, boxes.volume(piece.box))
        for part, offset in boxes.fragment(piece.box, first, last):
            shared = boxes.intersection(part, box)
            if shared is None:
                continue
            target = out[boxes.within(shared, box)]
            buffer = (
                target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
            )
            file.read(piece.key, ((offset + start, length) for start, length in boxes.runs(shared, part)), buffer)
            if buffer is not target:
                target.copy_(buffer)


def save(  # noqa: PLR0917  (the contract)
    decoder: Decoder,
    directory: Path,
    step: int,
    progress: Progress,
    tokenizer: Path,
    optimizer: torch.optim.Optimizer | None = None,
) -> Path:
    """Write a whole model, and Adam's moments where ``optimizer`` has them, from one process; the published folder."""
    writer = CheckpointWriter(directory, step, "all", copy=False)
    steps = 0
    for name, parameter in decoder.named_parameters():
        writer.add(name, parameter.shape, "weight", None, parameter)
        state = optimizer.state.get(parameter, {}) if optimizer else {}
        for slot in MOMENTS:
            if slot in state:
                writer.add(name, parameter.shape, slot, None, state[slot])
                steps = int(state["step"])
    writer.close()
    return publish(directory, step, ["all"], decoder.config, progress, tokenizer, steps)


def load(decoder: Decoder, checkpoint: Checkpoint, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Fill a whole decoder, and Adam's moments in ``optimizer``; ``CheckpointError`` where it is another model."""
    free = {"dropout", "attention_dropout", "init_std"}
    mine, theirs = (config.model_dump(exclude=free) for config in (decoder.config, checkpoint.config))
    for field, value in theirs.items():
        if mine[field] != value:
            raise CheckpointError(f"{checkpoint.directory}: {field} = {value} where the decoder has {mine[field]}")
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if _fits(parameter, checkpoint.shape(name), checkpoint.dtype(name)):
                checkpoint.tensor(name, out=parameter)
            else:
                parameter.copy_(checkpoint.tensor(name))
            if optimizer is not None:
                state = {slot: checkpoint.tensor(name, slot=slot).to(parameter.device) for slot in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(checkpoint.optimizer_steps)), **state}


def _fits(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    return tuple(out.shape) == shape and out.dtype == dtype and out.device.type == "cpu" and out.is_contiguous()
