"""What ``torch.save`` writes: a zip archive of one pickle and of the storages that its tensors are views of.

The pickle is read as data (`pickled`), so nothing runs, and a tensor's bytes are read when they are asked for. Every
storage is held against the bytes that are really there, and a tensor against its storage, so that nothing is allocated
that the file does not hold.
"""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import dataclass
from io import SEEK_END, SEEK_SET
from math import prod
from typing import TYPE_CHECKING, Any, Final, Self

import torch

from mtnlg_model.console import Failure

from . import pickle_reader
from .pickle_reader import Global, Record

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

STORAGES: Final = {
    Global("torch", "DoubleStorage"): torch.float64,
    Global("torch", "FloatStorage"): torch.float32,
    Global("torch", "HalfStorage"): torch.float16,
    Global("torch", "BFloat16Storage"): torch.bfloat16,
}
MOST_PICKLE_BYTES: Final = 100_000_000
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
"""Signature, and the lengths of the name and of the extra field between it and an entry's data."""
_DAMAGE: Final = (OSError, EOFError, ValueError, LookupError, NotImplementedError, struct.error, zipfile.BadZipFile)


@dataclass(frozen=True)
class View:
    """A tensor as the file tells of it: the name of its storage, and which of its elements it shows."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    storage: str


class TorchFile:
    """A file of ``torch.save``, or ``length`` bytes at ``start`` of a file that holds several.

    ``content`` is what was saved, with a `View` for a tensor and for every tensor in a dictionary. ``Failure`` where
    the file is none, or damaged.
    """

    def __init__(self, path: Path, start: int = 0, length: int | None = None) -> None:
        self.path, self._start, self._length = path, start, length
        try:
            with _Window(path, start, length) as window:
                archive = zipfile.ZipFile(window)
                self._entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
                if "byteorder" in self._entries and self._bytes(window, "byteorder") != b"little":
                    raise ValueError("of a big-endian machine")
                raw = self._bytes(window, "data.pkl")
        except _DAMAGE as error:
            raise Failure(f"{path}: no file of torch.save, or damaged: {error or type(error).__name__}") from None
        self.content = _seen(pickle_reader.read(raw, path))

    def tensor(self, view: View) -> Tensor:
        """Read a tensor, contiguous, on the CPU."""
        elements, item = prod(view.shape), view.dtype.itemsize
        reach = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
        span = 1 + reach if elements else 0
        try:
            with _Window(self.path, self._start, self._length) as window:
                offset, size = self._place(window, f"data/{view.storage}")
                if elements > span or (view.first + span) * item > size:
                    raise ValueError(f"{size} bytes do not hold a tensor of {list(view.shape)}")
                flat = torch.empty(span, dtype=view.dtype)
                window.fill(offset + view.first * item, flat.view(torch.uint8).numpy().data)
        except _DAMAGE as error:
            raise Failure(f"{self.path}: storage {view.storage}: {error or type(error).__name__}") from None
        return flat.as_strided(view.shape, view.strides).contiguous()

    def _bytes(self, window: _Window, name: str) -> bytes:
        offset, size = self._place(window, name)
        if size > MOST_PICKLE_BYTES:
            raise ValueError(f"{name} of {size} bytes")
        window.seek(offset)
        return window.read(size)

    def _place(self, window: _Window, name: str) -> tuple[int, int]:
        """Offset and length of an entry's data within the archive."""
        info = self._entries[name]
        window.seek(info.header_offset)
        signature, *lengths = _LOCAL_HEADER.unpack(window.read(_LOCAL_HEADER.size))
        offset = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        # A deflated entry could be a thousand times its size; torch never writes one.
        if info.compress_type != zipfile.ZIP_STORED or signature != b"PK\3\4":
            raise ValueError(f"{name} is compressed, or not where the archive says")
        if offset + info.file_size > window.length:
            raise ValueError(f"{name} ends beyond the archive")
        return offset, info.file_size


def _seen(value: Any) -> Any:  # noqa: ANN401  (whatever was saved)
    if isinstance(value, Record) and value.is_a("collections", "OrderedDict"):
        value = value.items
    return {key: _view(inner) for key, inner in value.items()} if isinstance(value, dict) else _view(value)


def _view(value: Any) -> Any:  # noqa: ANN401  (as above)
    """The `View` that a tensor's record means; anything else, a tensor of another kind too, as it is."""
    match value:
        case Record(what=Global("torch._utils", "_rebuild_parameter"), arguments=(inner, *_)):
            return _view(inner)
        case Record(
            what=Global("torch._utils", "_rebuild_tensor_v2"),
            arguments=(
                Record(what="persistent", arguments=("storage", Global() as kind, str(storage), *_)),
                int(first),
                tuple(shape),
                tuple(strides),
                *_,
            ),
        ) if kind in STORAGES and len(shape) == len(strides):
            sizes = (first, *shape, *strides)
            if all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
                return View(STORAGES[kind], shape, strides, first, storage)
    return value


class _Window:
    """Bytes [start, start + length) of a file as a file of their own."""

    def __init__(self, path: Path, start: int, length: int | None) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        size = os.fstat(self._descriptor).st_size
        self._start, self.length, self._position = start, size - start if length is None else length, 0
        if not 0 <= start <= start + self.length <= size:
            os.close(self._descriptor)
            raise ValueError(f"bytes {start}:{start + self.length} of a file of {size}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        place = offset + {SEEK_SET: 0, SEEK_END: self.length}.get(whence, self._position)
        if not 0 <= place <= self.length:
            raise ValueError(f"byte {place} of {self.length}")
        self._position = place
        return place

    def read(self, size: int = -1) -> bytes:
        left = self.length - self._position
        found = os.pread(self._descriptor, min(size, left) if size >= 0 else left, self._start + self._position)
        self._position += len(found)
        return found

    def fill(self, offset: int, target: memoryview) -> None:
        """Read ``target`` full from ``offset``; raises ``EOFError`` where the file ends before."""
        self.seek(offset)
        while target:
            count = os.preadv(self._descriptor, [target], self._start + self._position)
            if not count:
                raise EOFError
            self._position, target = self._position + count, target[count:]
