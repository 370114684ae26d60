"""Write a checkpoint: every process its own pieces, one process the manifest and the rename that publishes it."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import prod
from typing import TYPE_CHECKING

from mtnlg_model.files import atomic_open, sync_directory, write_text

from . import boxes, tensor_file
from .manifest import (
    MANIFEST,
    TOKENIZER,
    CheckpointError,
    FileEntry,
    Manifest,
    PartialManifest,
    Piece,
    Slot,
    TensorEntry,
    check_file,
    check_manifest,
    file_checksum,
    read_json,
    to_json,
)
from .tensor_file import DTYPE_NAMES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .boxes import Box, Index
    from .manifest import Progress, SlotName

FILE_BYTES = 1 << 29
THREADS = 2
"""Files written concurrently: one thread does not saturate a fast disk."""
_WRITER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


class CheckpointWriter:
    """Writes one process's pieces of step ``step`` in the background; each process has its own ``writer`` name.

    `add` copies a tensor to host memory and returns, so the tensor may change at once; threads write. After the last
    `add`, `finish` starts the remaining writes and returns. Training continues, and calls `close` when the writer is
    `done` or has to be. `close` raises any error that occurred meanwhile, such as a full disk.

    With ``copy`` False a CPU tensor is written in place and must not change until `close`. ``backlog`` is the number of
    bytes that may be queued before `add` blocks; None never blocks.
    """

    def __init__(
        self, directory: Path, step: int, writer: str, *, copy: bool = True, backlog: int | None = None
    ) -> None:
        if not _WRITER.fullmatch(writer):
            raise CheckpointError(f"writer {writer!r}: use letters, digits, - and _")
        if (directory / f"step-{step}").exists():
            raise CheckpointError(f"{directory / f'step-{step}'}: exists already; remove it to write this step again")
        self._folder, self._writer = directory / f"step-{step}.tmp", writer
        self._copy, self._backlog = copy, backlog
        self._folder.mkdir(parents=True, exist_ok=True)
        # A part left by a killed attempt must not count for this one.
        _part_path(self._folder, writer).unlink(missing_ok=True)
        self._tensors: dict[str, TensorEntry] = {}
        self._groups: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
        self._numbers = {"weights": 0, "optimizer": 0}
        self._files: dict[str, Future[FileEntry]] = {}
        self._queued_bytes: dict[Future[FileEntry], int] = {}
        self._threads = ThreadPoolExecutor(THREADS, "checkpoint")

    def add(  # noqa: PLR0917  (public interface)
        self,
        name: str,
        shape: Sequence[int],
        slot: SlotName,
        index: Index | None,
        tensor: Tensor,
        flat: tuple[int, int] | None = None,
    ) -> None:
        """Add a piece: the box ``index`` of the global tensor ``name`` of ``shape``.

        With ``flat`` = (a, b) ``tensor`` has only elements [a, b) of the box in row-major order, as in a ZeRO fragment.
        """
        place = f"{self._folder}: {name}: {slot}"
        try:
            box = boxes.box_of(index, shape)
        except ValueError as error:
            raise CheckpointError(f"{place}: {error}") from None
        if tensor.dtype not in DTYPE_NAMES:
            raise CheckpointError(f"{place}: {tensor.dtype} cannot be stored; use {', '.join(map(str, DTYPE_NAMES))}")
        kind = "weights" if slot == "weight" else "optimizer"
        piece = Piece(file=self._file_name(kind), key=_entry_key(name, slot, box, flat, shape), box=box, flat=flat)
        if tensor.numel() != (elements := prod(piece.stored_shape)):
            raise CheckpointError(f"{place}: {tensor.numel()} elements given for {piece.key}, which has {elements}")
        slots = {slot: Slot(dtype=DTYPE_NAMES[tensor.dtype], pieces=(piece,))}
        _merge_entry(self._tensors, name, TensorEntry(shape=tuple(shape), slots=slots))
        group = self._groups[kind]
        group[piece.key] = tensor.detach().reshape(piece.stored_shape).to("cpu", copy=self._copy).contiguous()
        if _size(group) >= FILE_BYTES:
            self._submit(kind)

    def finish(self) -> None:
        """Start writing what is left, without waiting. Call after the last `add`."""
        for kind, group in self._groups.items():
            if group:
                self._submit(kind)

    @property
    def done(self) -> bool:
        """Whether `close` would return without waiting: every file after `finish` is on disk or has failed."""
        return not any(self._groups.values()) and all(file.done() for file in self._files.values())

    def close(self) -> None:
        """Wait until every file is on disk and synced, then write this writer's part of the manifest.

        Raises the first error of a write, such as ``OSError`` for a full disk.
        """
        self.finish()
        files = {name: file.result() for name, file in self._files.items()}
        self._threads.shutdown()
        part = PartialManifest(files=files, tensors=self._tensors)
        write_text(_part_path(self._folder, self._writer), part.model_dump_json())

    def _file_name(self, kind: str) -> str:
        return f"{self._writer}.{kind}-{self._numbers[kind]}.safetensors"

    def _submit(self, kind: str) -> None:
        group, self._groups[kind] = self._groups[kind], {}
        name = self._file_name(kind)
        self._numbers[kind] += 1
        specs = {key: TensorSpec(tensor.dtype, tuple(tensor.shape)) for key, tensor in group.items()}
        future = self._threads.submit(tensor_file.write_tensor_file, self._folder / name, specs, group.__getitem__)
        self._files[name], self._queued_bytes[future] = future, _size(group)
        while self._backlog is not None and sum(self._queued_bytes.values()) > self._backlog:
            oldest = next(iter(self._queued_bytes))
            wait([oldest])
            del self._queued_bytes[oldest]


def publish(  # noqa: PLR0917  (public interface)
    directory: Path,
    step: int,
    writers: Sequence[str],
    config: ModelConfig,
    progress: Progress,
    tokenizer: Path,
    optimizer_steps: int | None = None,
) -> Path:
    """Merge the parts of ``writers`` into the manifest and rename the folder to step-N. One process calls this.

    All writers must have closed. ``optimizer_steps`` is the optimizer's count of updates, ``progress.step`` if None.
    Raises ``CheckpointError`` and publishes nothing unless the pieces tile every tensor of ``config`` exactly once.
    """
    folder, final = directory / f"step-{step}.tmp", directory / f"step-{step}"
    files: dict[str, FileEntry] = {}
    tensors: dict[str, TensorEntry] = {}
    for writer in writers:
        path = _part_path(folder, writer)
        if not path.exists():
            raise CheckpointError(f"{path}: missing: writer {writer} has not closed")
        part = read_json(path, PartialManifest)
        files |= part.files
        for name, entry in part.tensors.items():
            _merge_entry(tensors, name, entry)
    with atomic_open(folder / TOKENIZER) as copy:
        copy.write(tokenizer.read_bytes())
    copied = folder / TOKENIZER
    files[TOKENIZER] = FileEntry(bytes=copied.stat().st_size, checksum=file_checksum(copied))
    manifest = Manifest(
        config=config,
        progress=progress,
        optimizer_steps=progress.step if optimizer_steps is None else optimizer_steps,
        files=files,
        tensors=tensors,
    )
    check_manifest(manifest, folder / MANIFEST)
    for name, file in files.items():
        check_file(folder / name, file)
    write_text(folder / MANIFEST, to_json(manifest))
    for path in folder.iterdir():
        if path.name not in {MANIFEST, *files}:
            path.unlink()
    sync_directory(folder)
    folder.rename(final)
    sync_directory(directory)
    return final


def _part_path(folder: Path, writer: str) -> Path:
    return folder / f"{writer}.part.json"


def _merge_entry(tensors: dict[str, TensorEntry], name: str, new: TensorEntry) -> None:
    """Add the pieces of ``new`` to ``tensors[name]``. Raises ``CheckpointError`` if shapes or dtypes differ."""
    old = tensors.setdefault(name, TensorEntry(shape=new.shape, slots={}))
    if old.shape != new.shape:
        raise CheckpointError(f"{name}: written with shape {list(old.shape)} and with {list(new.shape)}")
    slots = dict(old.slots)
    for slot, added in new.slots.items():
        if slot in slots and slots[slot].dtype != added.dtype:
            raise CheckpointError(f"{name}: {slot}: written as {slots[slot].dtype} and as {added.dtype}")
        earlier = slots[slot].pieces if slot in slots else ()
        slots[slot] = Slot(dtype=added.dtype, pieces=(*earlier, *added.pieces))
    tensors[name] = TensorEntry(shape=old.shape, slots=slots)


def _entry_key(name: str, slot: SlotName, box: Box, flat: tuple[int, int] | None, shape: Sequence[int]) -> str:
    key = name if slot == "weight" else f"{name}/{slot}"
    if boxes.lengths(box) != tuple(shape):
        key += boxes.show(box)
    return key if flat is None else f"{key}#{flat[0]}:{flat[1]}"


def _size(group: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in group.values())
