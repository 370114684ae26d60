"""Writing a checkpoint: every process its own pieces, one process the manifest, one rename that makes it exist."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from mtnlg_model.files import replacing, sync_directory, write_text

from . import boxes, tensor_file
from .manifest import (
    MANIFEST,
    TOKENIZER,
    CheckpointError,
    Entry,
    File,
    Manifest,
    Part,
    Piece,
    Slot,
    check,
    check_file,
    checksum,
    read,
    sealed,
)
from .tensor_file import NAMES, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .boxes import Box, Index
    from .manifest import Progress, SlotName

FILE_BYTES = 1 << 29
THREADS = 2
"""Files written at once: one thread alone does not fill a good disk."""
_WRITER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


class CheckpointWriter:
    """Writes one process's pieces of step ``step``; many processes at once, each with its own ``writer`` name.

    `add` copies the tensor to host memory and returns, so it may change at once; threads write. After the last one
    `finish` returns at once too: training goes on, and calls `close` when the writer is `done`, or needs it to be.
    Whatever went wrong meanwhile, a full disk say, `close` raises.

    With ``copy`` False a CPU tensor is written as it lies and must stay as it is until `close`. ``backlog`` is how many
    bytes may wait for the disk before `add` waits too; None never waits.
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
        # A part left by a killed attempt must not be taken for this one's.
        _part(self._folder, writer).unlink(missing_ok=True)
        self._tensors: dict[str, Entry] = {}
        self._filling: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
        self._written: dict[str, Future[File]] = {}
        self._numbers = {"weights": 0, "optimizer": 0}
        self._waiting: dict[Future[File], int] = {}
        self._threads = ThreadPoolExecutor(THREADS, "checkpoint")

    def add(  # noqa: PLR0917  (the contract)
        self,
        name: str,
        shape: Sequence[int],
        slot: SlotName,
        index: Index | None,
        tensor: Tensor,
        flat: tuple[int, int] | None = None,
    ) -> None:
        """Take a piece: the box ``index`` of the global tensor ``name`` of ``shape``.

        With ``flat`` (a, b) ``tensor`` holds only elements [a, b) of the box's row-major flattening, as ZeRO cuts it.
        """
        place = f"{self._folder}: {name}: {slot}"
        try:
            box = boxes.box_of(index, shape)
        except ValueError as error:
            raise CheckpointError(f"{place}: {error}") from None
        if tensor.dtype not in NAMES:
            raise CheckpointError(f"{place}: {tensor.dtype} cannot be stored; use {', '.join(map(str, NAMES))}")
        kind = "weights" if slot == "weight" else "optimizer"
        group = self._filling[kind]
        file = f"{self._writer}.{kind}-{self._numbers[kind]}.safetensors"
        piece = Piece(file=file, key=_key(name, slot, box, flat, shape), box=box, flat=flat)
        if tensor.numel() != _count(piece):
            raise CheckpointError(
                f"{place}: {tensor.numel()} elements given for {piece.key}, which has {_count(piece)}"
            )
        self._record(name, shape, slot, Slot(dtype=NAMES[tensor.dtype], pieces=(piece,)))
        group[piece.key] = tensor.detach().reshape(piece.stored).to("cpu", copy=self._copy).contiguous()
        if _size(group) >= FILE_BYTES:
            self._hand_over(kind)

    def finish(self) -> None:
        """Give the threads the rest to write; nothing is added after this."""
        for kind, group in self._filling.items():
            if group:
                self._hand_over(kind)

    @property
    def done(self) -> bool:
        """Whether `close` would not wait: after `finish`, everything is on disk, or could not be brought there."""
        return not any(self._filling.values()) and all(written.done() for written in self._written.values())

    def close(self) -> None:
        """Wait until every file is on disk and synced, then write this writer's part of the manifest."""
        self.finish()
        files = {name: written.result() for name, written in self._written.items()}
        self._threads.shutdown()
        part = Part(files=files, tensors=self._tensors)
        write_text(_part(self._folder, self._writer), part.model_dump_json())

    def _record(self, name: str, shape: Sequence[int], slot: SlotName, held: Slot) -> None:
        entry = Entry(shape=tuple(shape), slots={slot: held})
        known = self._tensors.get(name)
        self._tensors[name] = entry if known is None else _merged(name, known, entry)

    def _hand_over(self, kind: str) -> None:
        group, self._filling[kind] = self._filling[kind], {}
        file = f"{self._writer}.{kind}-{self._numbers[kind]}.safetensors"
        self._numbers[kind] += 1
        kinds = {key: Kind(tensor.dtype, tuple(tensor.shape)) for key, tensor in group.items()}
        future = self._threads.submit(tensor_file.write, self._folder / file, kinds, group.__getitem__)
        self._written[file], self._waiting[future] = future, _size(group)
        while self._backlog is not None and sum(self._waiting.values()) > self._backlog:
            done, _ = wait([next(iter(self._waiting))])
            for finished in done:
                del self._waiting[finished]


def publish(  # noqa: PLR0917  (the contract)
    directory: Path,
    step: int,
    writers: Sequence[str],
    config: ModelConfig,
    progress: Progress,
    tokenizer: Path,
    optimizer_steps: int | None = None,
) -> Path:
    """Merge the parts of ``writers``, all closed, and rename the folder to step-N. One process calls this.

    ``optimizer_steps`` is the optimizer's own count of updates; ``progress.step`` when None. Raises ``CheckpointError``
    and publishes nothing unless the pieces tile every tensor of ``config`` exactly once.
    """
    folder, final = directory / f"step-{step}.tmp", directory / f"step-{step}"
    files: dict[str, File] = {}
    tensors: dict[str, Entry] = {}
    for writer in writers:
        path = _part(folder, writer)
        if not path.exists():
            raise CheckpointError(f"{path}: missing: writer {writer} has not closed")
        part = read(path, Part)
        files |= part.files
        for name, entry in part.tensors.items():
            tensors[name] = _merged(name, tensors[name], entry) if name in tensors else entry
    with replacing(folder / TOKENIZER) as copy:
        copy.write(tokenizer.read_bytes())
    copied = folder / TOKENIZER
    files[TOKENIZER] = File(bytes=copied.stat().st_size, checksum=checksum(copied))
    manifest = Manifest(
        config=config,
        progress=progress,
        optimizer_steps=progress.step if optimizer_steps is None else optimizer_steps,
        files=files,
        tensors=tensors,
    )
    check(manifest, folder / MANIFEST)
    for name, file in files.items():
        check_file(folder / name, file)
    write_text(folder / MANIFEST, sealed(manifest))
    for path in folder.iterdir():
        if path.name not in {MANIFEST, *files}:
            path.unlink()
    sync_directory(folder)
    folder.rename(final)
    sync_directory(directory)
    return final


def _part(folder: Path, writer: str) -> Path:
    return folder / f"{writer}.part.json"


def _merged(name: str, one: Entry, other: Entry) -> Entry:
    if one.shape != other.shape:
        raise CheckpointError(f"{name}: written with shape {list(one.shape)} and with {list(other.shape)}")
    slots = dict(one.slots)
    for slot, held in other.slots.items():
        if slot in slots and slots[slot].dtype != held.dtype:
            raise CheckpointError(f"{name}: {slot}: written as {slots[slot].dtype} and as {held.dtype}")
        pieces = (*slots[slot].pieces, *held.pieces) if slot in slots else held.pieces
        slots[slot] = Slot(dtype=held.dtype, pieces=pieces)
    return Entry(shape=one.shape, slots=slots)


def _key(name: str, slot: SlotName, box: Box, flat: tuple[int, int] | None, shape: Sequence[int]) -> str:
    key = name if slot == "weight" else f"{name}/{slot}"
    if boxes.lengths(box) != tuple(shape):
        key += boxes.show(box)
    return key if flat is None else f"{key}#{flat[0]}:{flat[1]}"


def _count(piece: Piece) -> int:
    return boxes.volume(piece.box) if piece.flat is None else piece.flat[1] - piece.flat[0]


def _size(group: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in group.values())
