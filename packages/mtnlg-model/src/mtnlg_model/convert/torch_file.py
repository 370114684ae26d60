"""Read files of ``torch.save``: a zip archive of one pickle and the storages that its tensors are views of.

The pickle is read as data (`pickle_reader`), so nothing is executed; tensors are read on request. Storages are checked
against the bytes in the file and tensors against their storage, so no more is allocated than the file holds.
"""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import IO, TYPE_CHECKING, Any, Final

import torch

from mtnlg_model.console import Failure
from mtnlg_model.files import open_regular

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
MAX_PICKLE_BYTES: Final = 100_000_000
MAX_AXES: Final = 8
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
"""Signature, length of the name, length of the extra field; then name, extra field and the entry's data."""
_ERRORS: Final = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    NotImplementedError,
    struct.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class View:
    """A tensor described by the file: its storage and the elements of it that it selects."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    storage: str


class TorchFile:
    """A file of ``torch.save``, or ``length`` bytes at ``start`` of a file that contains several.

    ``content`` is the saved value, with a `View` in place of a tensor or of each tensor in a dictionary. Raises
    ``Failure`` if the file is damaged or of another format.
    """

    def __init__(self, path: Path, start: int = 0, length: int | None = None) -> None:
        self.path = path
        self._part: bytes | None = None
        try:
            with open_regular(path) as whole:
                self._size = os.fstat(whole.fileno()).st_size
                if length is not None:
                    if not 0 <= start <= start + length <= self._size:
                        raise ValueError(f"bytes {start}:{start + length} are outside a file of {self._size}")
                    whole.seek(start)
                    self._part, self._size = whole.read(length), length
            with self._open() as file:
                archive = zipfile.ZipFile(file)
                self._entries = {info.filename.partition("/")[2]: info for info in archive.infolist()}
                if "byteorder" in self._entries and self._bytes(file, "byteorder") != b"little":
                    raise ValueError("written on a big-endian machine")
                raw = self._bytes(file, "data.pkl")
        except _ERRORS as error:
            raise Failure(f"{path}: not a torch.save file, or damaged: {error or type(error).__name__}") from None
        self.content = _replace_tensors(pickle_reader.read(raw, path))

    def tensor(self, view: View) -> Tensor:
        """Read a tensor, contiguous, on the CPU."""
        elements, item = prod(view.shape), view.dtype.itemsize
        last = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
        span = 1 + last if elements else 0
        try:
            with self._open() as file:
                offset, size = self._locate(file, f"data/{view.storage}")
                if elements > span or (view.first + span) * item > size:
                    raise ValueError(f"{size} bytes are too few for a tensor of {list(view.shape)}")
                flat = torch.empty(span, dtype=view.dtype)
                file.seek(offset + view.first * item)
                if file.readinto(flat.view(torch.uint8).numpy().data) != span * item:
                    raise EOFError
        except _ERRORS as error:
            raise Failure(f"{self.path}: storage {view.storage}: {error or type(error).__name__}") from None
        return flat.as_strided(view.shape, view.strides).contiguous()

    def _open(self) -> Any:  # noqa: ANN401  (typing has no file with readinto)
        return open_regular(self.path) if self._part is None else BytesIO(self._part)

    def _bytes(self, file: IO[bytes], name: str) -> bytes:
        offset, size = self._locate(file, name)
        if size > MAX_PICKLE_BYTES:
            raise ValueError(f"{name} of {size} bytes")
        file.seek(offset)
        return file.read(size)

    def _locate(self, file: IO[bytes], name: str) -> tuple[int, int]:
        """Offset and length of an entry's data within the archive."""
        info = self._entries[name]
        file.seek(info.header_offset)
        signature, *lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        offset = info.header_offset + _LOCAL_HEADER.size + sum(lengths)
        # A deflated entry could expand a thousandfold; torch never writes one.
        if info.compress_type != zipfile.ZIP_STORED or signature != b"PK\3\4":
            raise ValueError(f"{name} is compressed or misplaced in the archive")
        if offset + info.file_size > self._size:
            raise ValueError(f"{name} ends outside the archive")
        return offset, info.file_size


def _replace_tensors(value: Any) -> Any:  # noqa: ANN401  (any saved value)
    if isinstance(value, Record) and value.is_a("collections", "OrderedDict"):
        value = value.items
    return {key: _view(inner) for key, inner in value.items()} if isinstance(value, dict) else _view(value)


def _view(value: Any) -> Any:  # noqa: ANN401  (as above)
    """The `View` described by a tensor's record; any other value, such as an integer tensor, unchanged."""
    while True:
        match value:
            case Record(what=Global("torch._utils", "_rebuild_parameter"), arguments=(inner, *_)):
                value = inner
            case Record(
                what=Global("torch._utils", "_rebuild_tensor_v2"),
                arguments=(
                    Record(what="persistent", arguments=("storage", Global() as kind, str(storage), *_)),
                    int(first),
                    tuple(shape),
                    tuple(strides),
                    *_,
                ),
            ) if kind in STORAGES and len(shape) == len(strides) and all(map(is_shape, (shape, strides, (first,)))):
                return View(STORAGES[kind], shape, strides, first, storage)
            case _:
                return value


def is_shape(sizes: tuple[object, ...]) -> bool:
    """Whether these are sizes, or strides, of a tensor's axes."""
    return len(sizes) <= MAX_AXES and all(type(size) is int and 0 <= size < 1 << 62 for size in sizes)
