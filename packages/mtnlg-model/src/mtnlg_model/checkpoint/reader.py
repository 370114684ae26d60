"""Checkpoints of any layout: safetensors files and a manifest.json, in terms of the one-process decoder's tensors.

Each process of a training run writes the pieces it holds to its own files, without gathering; a reader asks for the
boxes its own layout needs. So any layout can open any checkpoint, including the optimizer state.

    step-100.tmp/rank-0.weights-0.safetensors …    CheckpointWriter, one per process, concurrently
    step-100.tmp/manifest.json                     publish, in one process, after all writers have closed
    step-100/                                      one rename: complete, or not there

Nothing is pickled, so an untrusted checkpoint is safe to open; a wrong one raises `CheckpointError`.
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
    file_checksum,
    read_manifest,
    resolve_checkpoint,
)
from .tensor_file import DTYPES, TensorFile
from .writer import CheckpointWriter, publish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .boxes import Box, Index
    from .manifest import DtypeName, Piece, Slot, TensorEntry


class Checkpoint:
    """A checkpoint folder to read. Construct it with `open`."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self._manifest = directory, manifest
        self._files: dict[str, TensorFile] = {}

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Read and check the manifest of ``directory``: a step-N folder, or a folder of them, then the newest.

        Raises ``CheckpointError`` naming what is wrong.
        """
        directory = resolve_checkpoint(directory)
        return cls(directory, read_manifest(directory))

    @property
    def config(self) -> ModelConfig:
        """The decoder's configuration."""
        return self._manifest.config

    @property
    def progress(self) -> Progress:
        """Training progress at the time of writing."""
        return self._manifest.progress

    @property
    def digest(self) -> str:
        """Checksum of weights and configuration: changes with any byte of a weight, not with optimizer state."""
        return self._manifest.digest

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates, for Adam's bias correction."""
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
        """Slots stored for a parameter: weight and, of the optimizer, master, exp_avg, exp_avg_sq."""
        return tuple(slot for slot in SLOTS if slot in self._entry(name).slots)

    def dtype(self, name: str, slot: SlotName = "weight") -> torch.dtype:
        """Dtype of a slot."""
        return DTYPES[self._slot(name, slot).dtype]

    def tensor(
        self, name: str, index: Index | None = None, slot: SlotName = "weight", out: Tensor | None = None
    ) -> Tensor:
        """The box ``index`` (slices of step 1; None for all) of a global tensor, on the CPU.

        Reads only the bytes inside the box, into ``out`` if given: a contiguous CPU tensor of the box's shape and the
        slot's dtype.
        """
        stored = self._slot(name, slot)
        try:
            box = boxes.box_of(index, self.shape(name))
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from None
        if out is None:
            out = torch.empty(boxes.lengths(box), dtype=DTYPES[stored.dtype], device="cpu")
        elif not _fits(out, boxes.lengths(box), DTYPES[stored.dtype]):
            target = f"{out.dtype} {list(out.shape)} on {out.device}"
            expected = f"{DTYPES[stored.dtype]} {list(boxes.lengths(box))}"
            raise CheckpointError(f"{name}: {slot}: cannot be read into {target}; give a contiguous CPU {expected}")
        for piece in stored.pieces:
            if boxes.intersection(piece.box, box):
                self._copy(piece, stored.dtype, box, out)
        return out

    def optimizer(self, name: str, slot: SlotName, index: Index | None = None) -> Tensor:
        """`tensor` of an optimizer slot: fp32 master, exp_avg or exp_avg_sq."""
        return self.tensor(name, index, slot)

    def decoder(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
        """The decoder with these weights, in evaluation mode; ``dtype`` None keeps the stored one."""
        with torch.device("meta"):
            decoder = Decoder(self.config).to(dtype or self.dtype(self.names[0]))
        decoder.to_empty(device=device)
        load(decoder, self)
        return decoder.eval()

    def verify(self, advance: Callable[[int], None] | None = None) -> None:
        """Compare every file's checksum and every entry with the manifest. Raises ``CheckpointError`` on a difference.

        ``advance`` is called with the size in bytes of each file when it is done.
        """
        for name, file in self._manifest.files.items():
            path = self.directory / name
            check_file(path, file)
            matches = file_checksum(path) == file.checksum
            if advance:
                advance(file.bytes)
            if not matches:
                raise CheckpointError(f"{path}: checksum differs from {MANIFEST}; the file was changed or damaged")
        for entry in self._manifest.tensors.values():
            for slot in entry.slots.values():
                for piece in slot.pieces:
                    self._file(piece).expect(piece.key, slot.dtype, piece.stored_shape)

    def _entry(self, name: str) -> TensorEntry:
        entry = self._manifest.tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{self.directory}: {name}: no such tensor")
        return entry

    def _slot(self, name: str, slot: SlotName) -> Slot:
        stored = self._entry(name).slots.get(slot)
        if stored is None:
            raise CheckpointError(f"{self.directory}: {name}: no {slot}, only {', '.join(self.slots(name))}")
        return stored

    def _file(self, piece: Piece) -> TensorFile:
        if piece.file not in self._files:
            self._files[piece.file] = TensorFile(self.directory / piece.file)
        return self._files[piece.file]

    def _copy(self, piece: Piece, dtype: DtypeName, box: Box, out: Tensor) -> None:
        """Read the elements that ``piece`` and ``box`` share into ``out``, which holds ``box``."""
        file = self._file(piece)
        file.expect(piece.key, dtype, piece.stored_shape)
        for part, offset in boxes.split_flat_range(piece.box, *piece.elements):
            shared = boxes.intersection(part, box)
            if shared is None:
                continue
            target = out[boxes.within(shared, box)]
            buffer = (
                target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
            )
            runs = ((offset + start, length) for start, length in boxes.contiguous_runs(shared, part))
            file.read(piece.key, runs, buffer)
            if buffer is not target:
                target.copy_(buffer)


def save(  # noqa: PLR0917  (public interface)
    decoder: Decoder,
    directory: Path,
    step: int,
    progress: Progress,
    tokenizer: Path,
    optimizer: torch.optim.Optimizer | None = None,
) -> Path:
    """Write a complete model from one process, with Adam's moments if ``optimizer`` has them; return its folder."""
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
    """Fill a complete decoder, and Adam's moments in ``optimizer``. Raises ``CheckpointError`` if the models differ."""
    may_differ = {"dropout", "attention_dropout", "init_std"}
    own, stored = (config.model_dump(exclude=may_differ) for config in (decoder.config, checkpoint.config))
    for field, value in stored.items():
        if own[field] != value:
            raise CheckpointError(f"{checkpoint.directory}: {field} = {value} where the decoder has {own[field]}")
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
