"""Write a checkpoint: each process writes its own pieces; one process writes the manifest and renames the folder.

Also removes old checkpoints.
"""

from __future__ import annotations

import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import xxhash

from mtnlg_model.console import say
from mtnlg_model.files import atomic_open, read_small, sync_directory, write_text
from mtnlg_model.local_paths import local_path

from . import boxes, tensor_file
from .chat_files import read_chat_files
from .lease import lock_path, unleased
from .manifest import (
    MANIFEST,
    TOKENIZER,
    CheckpointError,
    FileEntry,
    Manifest,
    MissingFileError,
    PartialManifest,
    Piece,
    Slot,
    TensorEntry,
    check_manifest,
    collection_paused,
    list_checkpoints,
    list_steps,
    parse_json,
    read_bounded,
    to_json,
)
from .tensor_file import DTYPE_NAMES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from mtnlg_model.config import ModelConfig

    from .boxes import Box, Index
    from .manifest import DtypeName, Progress, SlotName

T = TypeVar("T")
R = TypeVar("R")

FILE_BYTES = 1 << 29
THREADS = 2
"""Files written concurrently: one thread does not saturate a fast disk."""
DISK_THREADS = 8
"""Parts of the manifest that `publish` reads and removes concurrently."""
_WRITER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


class CheckpointWriter:
    """Writes one process's pieces of step ``step`` in the background; each process has its own ``writer`` name.

    `add` copies a tensor to host memory and returns, so the tensor may change at once; threads write. After the last
    `add`, `finish` starts the remaining writes and returns. Training continues, and calls `close` once the writer is
    `done` or the files are needed. `close` raises any error that occurred meanwhile, such as a full disk.

    With ``copy`` False a CPU tensor is written in place and must not change until `close`. ``backlog`` is the number of
    bytes that may be queued before `add` blocks; None never blocks.
    """

    def __init__(
        self, directory: Path | str, step: int, writer: str, *, copy: bool = True, backlog: int | None = None
    ) -> None:
        directory = local_path(directory)
        if not _WRITER.fullmatch(writer):
            raise CheckpointError(f"writer {writer!r}: use letters, digits, - and _")
        if (directory / f"step-{step}").exists():
            raise CheckpointError(f"{directory / f'step-{step}'}: exists already; remove it to write this step again")
        self._folder, self._writer = directory / f"step-{step}.tmp", writer
        self._copy, self._backlog = copy, backlog
        self._folder.mkdir(parents=True, exist_ok=True)
        # A part left by a killed attempt must not count for this one.
        _part_path(self._folder, writer).unlink(missing_ok=True)
        self._pieces = _Pieces()
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
            raise CheckpointError(f"{place}: {tensor.numel()} elements for {piece.key}, which has {elements}")
        self._pieces.add(name, tuple(shape), slot, DTYPE_NAMES[tensor.dtype], [piece])
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
        """Wait until every file is on disk and synced; write this writer's part of the manifest, for `publish`.

        Raises the first error of a write, such as ``OSError`` for a full disk.
        """
        self.finish()
        files = {name: file.result() for name, file in self._files.items()}
        self._threads.shutdown()
        part = PartialManifest(files=files, tensors=self._pieces.entries())
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
    directory: Path | str,
    step: int,
    writers: Sequence[str],
    config: ModelConfig,
    progress: Progress,
    tokenizer: Path | str,
    optimizer_steps: int | None = None,
    chat_files: Mapping[str, bytes] | None = None,
) -> Path:
    """Merge the parts of ``writers`` into the manifest and rename the folder to step-N. One process calls this.

    All writers must have closed; the file lengths they report are trusted, not checked. ``optimizer_steps`` is the
    number of optimizer updates, by default ``progress.step``; ``chat_files`` are by default those beside ``tokenizer``.
    Raises ``CheckpointError`` and publishes nothing unless the pieces tile every tensor of ``config`` exactly once.
    """
    directory, tokenizer = local_path(directory), Path(tokenizer)
    folder, final = directory / f"step-{step}.tmp", directory / f"step-{step}"
    chat_files = read_chat_files(tokenizer.parent) if chat_files is None else chat_files
    small = {TOKENIZER: read_small(tokenizer, follow=True), **chat_files}
    with collection_paused():
        parts = _in_threads(partial(_read_part, folder), writers)
        manifest = _merge_parts(parts, config, progress, small, optimizer_steps, folder)
        text, listed = to_json(manifest), {MANIFEST, *manifest.files}
        del manifest  # while garbage collection is paused
    for name, content in small.items():
        with atomic_open(folder / name) as copy:
            copy.write(content)
    write_text(folder / MANIFEST, text)
    _in_threads(Path.unlink, [path for path in folder.iterdir() if path.name not in listed])
    sync_directory(folder)
    folder.rename(final)
    sync_directory(directory)
    return final


def retain(directory: Path, keep: int, every: int = 0) -> None:
    """Remove all but the newest ``keep`` checkpoints, and the leftovers of interrupted writes of older steps.

    Steps that are multiples of ``every`` are kept, unless ``every`` is 0. A checkpoint with a lease is kept until the
    next call. A folder that cannot be removed is reported, and the next call tries again.
    """
    if keep < 1:
        raise CheckpointError(f"retain: keep = {keep}; must be at least 1")
    checkpoints = list_checkpoints(directory)
    for step, path in checkpoints[:-keep]:
        if every and step % every == 0:
            continue
        removed = path.with_name(f"{path.name}.tmp")
        with removing(path), unleased(path) as free:
            if not free:
                continue
            shutil.rmtree(removed, ignore_errors=True)
            # Rename before deleting, so a half-deleted checkpoint never looks complete.
            path.rename(removed)
    newest = checkpoints[-1][0] if checkpoints else -1
    for step, path in list_steps(directory, ".tmp"):
        if step < newest:
            with removing(path):
                lock_path(path.with_suffix("")).unlink(missing_ok=True)  # left by a killed removal
                shutil.rmtree(path)


@contextmanager
def removing(folder: Path) -> Iterator[None]:
    """Report an ``OSError`` of the block, which removes an old ``folder``; it is harmless and may be temporary.

    NFS, for example, keeps a folder while another process reads a file in it.
    """
    try:
        yield
    except OSError as error:
        say(f"{error.filename or folder}: {error.strerror or error}; the old {folder} is not yet removed")


def _read_part(folder: Path, writer: str) -> bytes:
    """The part of the manifest that a closed writer left in ``folder``. Raises ``CheckpointError``."""
    path = _part_path(folder, writer)
    try:
        return read_bounded(path)
    except MissingFileError:
        raise CheckpointError(f"{path}: missing: writer {writer} did not close") from None


def _merge_parts(  # noqa: PLR0917  (as `publish`)
    parts: Iterable[bytes],
    config: ModelConfig,
    progress: Progress,
    small: Mapping[str, bytes],
    optimizer_steps: int | None,
    folder: Path,
) -> Manifest:
    """The checked manifest of all writers' files in ``folder``.

    ``small`` has the other files: tokenizer.json and `CHAT_FILES`. Raises ``CheckpointError`` as `publish` does.
    """
    files = {
        name: FileEntry(bytes=len(content), checksum=xxhash.xxh3_128_hexdigest(content))
        for name, content in small.items()
    }
    pieces = _Pieces()
    for number, raw in enumerate(parts):
        part = parse_json(raw, PartialManifest, f"{folder}: part {number}")
        files |= part.files
        for name, entry in part.tensors.items():
            for slot, stored in entry.slots.items():
                pieces.add(name, entry.shape, slot, stored.dtype, stored.pieces)
    steps = progress.step if optimizer_steps is None else optimizer_steps
    tensors = pieces.entries()
    manifest = Manifest(config=config, progress=progress, optimizer_steps=steps, files=files, tensors=tensors)
    check_manifest(manifest, folder / MANIFEST)
    return manifest


class _Pieces:
    """Pieces of many tensors, added in any order."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._slots: dict[str, dict[SlotName, tuple[DtypeName, list[Piece]]]] = {}

    def add(self, name: str, shape: tuple[int, ...], slot: SlotName, dtype: DtypeName, pieces: Iterable[Piece]) -> None:
        """Add pieces of one slot. Raises ``CheckpointError`` if shape or dtype differs from that of earlier ones."""
        if (earlier := self._shapes.setdefault(name, shape)) != shape:
            raise CheckpointError(f"{name}: written with shape {list(earlier)} and with {list(shape)}")
        stored, known = self._slots.setdefault(name, {}).setdefault(slot, (dtype, []))
        if stored != dtype:
            raise CheckpointError(f"{name}: {slot}: written as {stored} and as {dtype}")
        known.extend(pieces)

    def entries(self) -> dict[str, TensorEntry]:
        """Entries of a manifest."""
        return {
            name: TensorEntry(
                shape=self._shapes[name],
                slots={slot: Slot(dtype=dtype, pieces=tuple(pieces)) for slot, (dtype, pieces) in slots.items()},
            )
            for name, slots in self._slots.items()
        }


def _in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Results of ``work`` in the order of the items, run in a few threads, since a shared disk waits for its server."""
    share = -(-len(items) // DISK_THREADS) or 1
    shares = [items[start : start + share] for start in range(0, len(items), share)]
    with ThreadPoolExecutor(DISK_THREADS, "publish") as pool:
        return list(chain.from_iterable(pool.map(lambda share: [work(item) for item in share], shares)))


def _part_path(folder: Path, writer: str) -> Path:
    return folder / f"{writer}.part.json"


def _entry_key(name: str, slot: SlotName, box: Box, flat: tuple[int, int] | None, shape: Sequence[int]) -> str:
    key = name if slot == "weight" else f"{name}/{slot}"
    if boxes.lengths(box) != tuple(shape):
        key += boxes.show(box)
    return key if flat is None else f"{key}#{flat[0]}:{flat[1]}"


def _size(group: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in group.values())
