"""Checkpoints of any layout: safetensors files and a manifest.json, in terms of the one-process decoder's tensors.

Each process of a training run writes the pieces it holds to its own files, without gathering; a reader asks for the
boxes its own layout needs. So any layout can open any checkpoint, including the optimizer state.

    step-100.tmp/rank-0.weights-0.safetensors …    CheckpointWriter, one per process, concurrently
    step-100.tmp/manifest.json                     publish, in one process, after all writers have closed
    step-100/                                      one rename: complete or absent

Nothing is pickled, so an untrusted checkpoint is safe to open; a wrong one raises `CheckpointError`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from mtnlg_model.checksums import cached_checksums
from mtnlg_model.compare import TRAINING_ONLY, differences
from mtnlg_model.decoder import Decoder

from . import boxes
from .manifest import (
    CHAT_FILES,
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
    parse_manifest,
    read_manifest,
    resolve_checkpoint,
)
from .tensor_file import DTYPES, TensorFile
from .writer import CheckpointWriter, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .boxes import Box, Index
    from .manifest import Piece, Slot, TensorEntry


_RANK = re.compile(r"rank-(\d{1,9})\.")
"""Rank number in the name of a file that a training rank wrote."""


class _Read(NamedTuple):
    """Part of a read: ``shared`` is the intersection of a wanted and a stored box.

    ``wanted_at`` and ``stored_at`` are the offsets, in elements, of these boxes in the flat output and the flat entry.
    """

    piece: Piece
    shared: Box
    stored: Box
    stored_at: int
    wanted: Box
    wanted_at: int


class Checkpoint:
    """A checkpoint folder to read. Construct it with `open` or `from_manifest`.

    ``config`` is the decoder's configuration, ``progress`` that of training when it was written, and
    ``optimizer_steps`` the number of optimizer updates, for Adam's bias correction.
    """

    def __init__(self, directory: Path, manifest: Manifest, wait: float = 0.0) -> None:
        self.directory, self._manifest, self._wait = directory, manifest, wait
        self.config, self.progress, self.optimizer_steps = manifest.config, manifest.progress, manifest.optimizer_steps
        self._files: dict[str, TensorFile] = {}

    @classmethod
    def open(cls, directory: Path | str) -> Checkpoint:
        """Read and check the manifest of ``directory``, a step-N folder, or of the newest step-N folder in it.

        Raises ``CheckpointError`` naming what is wrong.
        """
        directory = resolve_checkpoint(Path(directory))
        return cls(directory, read_manifest(directory))

    @classmethod
    def from_manifest(cls, directory: Path, raw: bytes, wait: float = 0.0) -> Checkpoint:
        """The checkpoint in ``directory`` from its manifest's bytes, which one process may read for all.

        No file is opened until it is needed; a file missing then is waited for, up to ``wait`` seconds. Raises
        ``CheckpointError`` naming what is wrong.
        """
        return cls(directory, parse_manifest(directory, raw), wait)

    @property
    def digest(self) -> str:
        """Checksum of weights and configuration: changes with any byte of a weight, not with optimizer state."""
        return self._manifest.digest

    @property
    def tokenizer_path(self) -> Path:
        """The folder's tokenizer.json. Raises ``CheckpointError`` if it or a chat file lacks the listed length."""
        for name in self._manifest.files.keys() & {TOKENIZER, *CHAT_FILES}:
            check_file(self.directory / name, self._manifest.files[name])
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
        self,
        name: str,
        index: Index | None = None,
        slot: SlotName = "weight",
        out: Tensor | None = None,
        flat: tuple[int, int] | None = None,
    ) -> Tensor:
        """The box ``index`` (slices of step 1; None for all) of a global tensor, on the CPU.

        With ``flat`` = (a, b), elements [a, b) of the box in row-major order, as in a ZeRO fragment. Reads only the
        bytes asked for, into ``out`` if given: a contiguous CPU tensor of their shape and the slot's dtype.
        """
        stored, box = self._slot(name, slot), self._box(name, index)
        reads = list(self._reads(name, stored, box, flat))
        # The files' headers first: a forged shape must not make us allocate what no file holds.
        for read in reads:
            self._file(read.piece.file).expect(read.piece.key, stored.dtype, read.piece.stored_shape)
        shape, dtype = boxes.lengths(box) if flat is None else (flat[1] - flat[0],), DTYPES[stored.dtype]
        if out is None:
            out = torch.empty(shape, dtype=dtype, device="cpu")
        elif not _fits(out, shape, dtype):
            target, expected = f"{out.dtype} {list(out.shape)} on {out.device}", f"{dtype} {list(shape)}"
            raise CheckpointError(f"{name}: {slot}: cannot be read into {target}; give a contiguous CPU {expected}")
        elements = out.view(-1)
        for read in reads:
            wanted = elements[read.wanted_at : read.wanted_at + boxes.volume(read.wanted)]
            self._copy(read, wanted.view(boxes.lengths(read.wanted)))
        return out

    def optimizer(self, name: str, slot: SlotName, index: Index | None = None) -> Tensor:
        """`tensor` of an optimizer slot: fp32 master, exp_avg or exp_avg_sq."""
        return self.tensor(name, index, slot)

    def decoder(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
        """The decoder with these weights, verified, in evaluation mode; ``dtype`` None keeps the stored one."""
        self.verify_weights()
        decoder = empty_decoder(self.config, dtype or self.dtype(self.names[0]), device)
        load(decoder, self)
        return decoder.eval()

    def verify(self, advance: Callable[[int], None] | None = None) -> None:
        """Compare every file's checksum and every entry with the manifest. Raises ``CheckpointError`` on a difference.

        ``advance`` is called with the size in bytes of each file when it is done.
        """
        for name, file in self._manifest.files.items():
            self._verify_file(name)
            if advance:
                advance(file.bytes)
        for entry in self._manifest.tensors.values():
            for slot in entry.slots.values():
                for piece in slot.pieces:
                    self._file(piece.file).expect(piece.key, slot.dtype, piece.stored_shape)

    def verify_weights(self) -> None:
        """Verify the checksums of the files of weights, of the tokenizer and of chats, as cached.

        Raises ``CheckpointError`` if one differs.
        """
        pieces = (piece.file for entry in self._manifest.tensors.values() for piece in entry.slots["weight"].pieces)
        names = dict.fromkeys([*pieces, *(self._manifest.files.keys() & {TOKENIZER, *CHAT_FILES})])
        for name in names:
            check_file(self.directory / name, self._manifest.files[name])
        files = cached_checksums([(self.directory / name,) for name in names], lambda paths: file_checksum(*paths))
        for (path,), checksum in files.items():
            self._expect(path, checksum)

    def verify_share(self, rank: int, world: int, slots: Collection[SlotName] = SLOTS) -> None:
        """Verify this rank's share of the files that hold ``slots``; the ``world`` ranks together verify all of them.

        If as many ranks wrote the checkpoint, a rank's share is the files it wrote: it has just read them, so they are
        in memory. Raises ``CheckpointError`` if a checksum differs.
        """
        stored = (slot for entry in self._manifest.tensors.values() for slot in entry.slots.items())
        names = sorted({piece.file for name, slot in stored if name in slots for piece in slot.pieces})
        for number, name in enumerate(names):
            writer = _RANK.match(name)
            if (int(writer[1]) if writer else number) % world == rank:
                self._verify_file(name)

    def _verify_file(self, name: str) -> None:
        path = self.directory / name
        check_file(path, self._manifest.files[name])
        self._expect(path, file_checksum(path))

    def _expect(self, path: Path, checksum: str) -> None:
        if checksum != self._manifest.files[path.name].checksum:
            raise CheckpointError(f"{path}: checksum differs from {MANIFEST}; the file was changed or damaged")

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

    def _box(self, name: str, index: Index | None) -> Box:
        try:
            return boxes.box_of(index, self.shape(name))
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from None

    def _file(self, name: str) -> TensorFile:
        if name not in self._files:
            self._files[name] = TensorFile(self.directory / name, self._manifest.files[name], self._wait)
        return self._files[name]

    @staticmethod
    def _reads(name: str, slot: Slot, box: Box, flat: tuple[int, int] | None) -> Iterator[_Read]:
        """Yield the reads that make up ``box``, or elements ``flat`` of it."""
        first, last = flat or (0, boxes.volume(box))
        if not 0 <= first <= last <= boxes.volume(box):
            raise CheckpointError(f"{name}: {first}:{last} is not a range of the elements of box {boxes.show(box)}")
        if first == last:
            return
        for wanted, wanted_at in boxes.split_flat_range(box, first, last):
            for piece in slot.pieces:
                if boxes.intersection(piece.box, wanted):
                    for stored, stored_at in boxes.split_flat_range(piece.box, *piece.elements):
                        shared = boxes.intersection(stored, wanted)
                        if shared:
                            yield _Read(piece, shared, stored, stored_at, wanted, wanted_at)

    def _copy(self, read: _Read, out: Tensor) -> None:
        """Read into ``out``, which holds the wanted box."""
        target = out[boxes.within(read.shared, read.wanted)]
        buffer = target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
        runs = boxes.contiguous_runs(read.shared, read.stored)
        shifted = ((read.stored_at + start, length) for start, length in runs)
        self._file(read.piece.file).read(read.piece.key, shifted, buffer)
        if buffer is not target:
            target.copy_(buffer)


def empty_decoder(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> Decoder:
    """A decoder whose weights are allocated but not initialized."""
    with torch.device("meta"):
        decoder = Decoder(config).to(dtype)
    return decoder.to_empty(device=device)


def save(  # noqa: PLR0917  (public interface)
    decoder: Decoder,
    directory: Path | str,
    step: int,
    progress: Progress,
    tokenizer: Path | str,
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
    for field, ours, stored in differences(decoder.config, checkpoint.config, TRAINING_ONLY):
        raise CheckpointError(f"{checkpoint.directory}: {field} = {stored} where the decoder has {ours}")
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
