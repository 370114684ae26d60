"""One safetensors file: written while it is hashed, read in exactly the bytes that are wanted.

8 bytes of header length, little-endian; a JSON header {key: {dtype, shape, data_offsets}}; the data. Reading is by
``pread``, never by a memory map: a file cut short under a reader is then an error and no bus fault, a narrow slice
costs its own bytes and no read-ahead, and no descriptor stays open.
"""

from __future__ import annotations

import json
import os
import struct
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
import xxhash
from pydantic import TypeAdapter, ValidationError

from mtnlg_model.settings import Settings

from .manifest import CHUNK_BYTES, ITEM_BYTES, CheckpointError, DtypeName, File, Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from io import FileIO
    from pathlib import Path

    from torch import Tensor

DTYPES: Final[dict[DtypeName, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
NAMES: Final[dict[torch.dtype, DtypeName]] = {dtype: name for name, dtype in DTYPES.items()}
MOST_HEADER_BYTES = 100_000_000


class Kind(NamedTuple):
    """What an entry will be, before its data is there."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Stored(Settings):
    """One entry of the header; ``data_offsets`` count from the end of the header."""

    dtype: str
    shape: tuple[Whole, ...]
    data_offsets: tuple[Whole, Whole]


_HEADER = TypeAdapter(dict[str, Stored | dict[str, str]])


def write(path: Path, kinds: Mapping[str, Kind], tensor: Callable[[str], Tensor]) -> File:
    """Write one synced safetensors file of entries so typed and shaped; its length and checksum.

    ``tensor`` gives one entry after the other, contiguous and on the CPU, so that a file may be larger than memory.
    """
    # Widest items first, as the format asks, so that each stays aligned.
    ordered = sorted(kinds.items(), key=lambda kind: -kind[1].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key, kind in ordered:
        end = offset + prod(kind.shape) * kind.dtype.itemsize
        header[key] = {"dtype": NAMES[kind.dtype], "shape": list(kind.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    checksum = xxhash.xxh3_128()
    try:
        with path.open("wb", buffering=0) as file:
            _put(file, checksum, memoryview(struct.pack("<Q", len(text)) + text))
            for key, _ in ordered:
                _put(file, checksum, _bytes(tensor(key)))
            os.fsync(file.fileno())
    except OSError as error:
        # A full disk is told by the call that writes, which knows no name.
        error.filename = error.filename or str(path)
        raise
    return File(bytes=8 + len(text) + offset, checksum=checksum.hexdigest())


def _put(file: FileIO, checksum: xxhash.xxh3_128, block: memoryview) -> None:
    """Write and hash in chunks that stay in the processor's cache in between."""
    for start in range(0, len(block), CHUNK_BYTES):
        chunk = block[start : start + CHUNK_BYTES]
        checksum.update(chunk)
        while chunk:
            chunk = chunk[file.write(chunk) :]


class TensorFile:
    """A safetensors file opened for reading; its header is read and checked at once, its data when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _Descriptor(path) as descriptor:
            size = os.fstat(descriptor).st_size
            prefix = os.pread(descriptor, 8, 0)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 < length <= min(MOST_HEADER_BYTES, size - 8):
                raise CheckpointError(f"{path}: header length {length} in a file of {size} bytes: no safetensors file")
            raw = os.pread(descriptor, length, 8)
        self._start = 8 + length
        self.entries = self._checked(raw, size - self._start)

    def _checked(self, raw: bytes, data_bytes: int) -> dict[str, Stored]:
        try:
            header = _HEADER.validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise CheckpointError(f"{self.path}: header: {first['loc'][:1]}: {first['msg']}") from None
        entries = {key: entry for key, entry in header.items() if isinstance(entry, Stored)}
        for key, entry in entries.items():
            first_byte, last_byte = entry.data_offsets
            if not first_byte <= last_byte <= data_bytes:
                raise CheckpointError(
                    f"{self.path}: {key!r}: offsets {first_byte}:{last_byte} outside {data_bytes} bytes"
                )
            item = ITEM_BYTES.get(entry.dtype)
            if item is not None and last_byte - first_byte != prod(entry.shape) * item:
                given = f"{entry.dtype} {list(entry.shape)}"
                raise CheckpointError(f"{self.path}: {key!r}: {given} does not take {last_byte - first_byte} bytes")
        return entries

    def expect(self, key: str, dtype: DtypeName, shape: tuple[int, ...]) -> None:
        """Raise ``CheckpointError`` unless the file has this entry, so typed and shaped."""
        entry = self.entries.get(key)
        if entry is None:
            raise CheckpointError(f"{self.path}: {key!r}: no such entry")
        if (entry.dtype, entry.shape) != (dtype, shape):
            found, wanted = f"{entry.dtype} {list(entry.shape)}", f"{dtype} {list(shape)}"
            raise CheckpointError(f"{self.path}: {key!r}: is {found} where the manifest says {wanted}")

    def read(self, key: str, stretches: Iterable[tuple[int, int]], out: Tensor) -> None:
        """Fill the contiguous tensor ``out`` with these (offset, length) stretches, in elements, of an entry's data."""
        target, item, done = _bytes(out), out.element_size(), 0
        base = self._start + self.entries[key].data_offsets[0]
        with _Descriptor(self.path) as descriptor:
            for offset, length in stretches:
                position, end = base + offset * item, done + length * item
                while done < end:
                    count = os.preadv(descriptor, (target[done:end],), position)
                    if count == 0:
                        raise CheckpointError(f"{self.path}: {key!r}: the file ends within it")
                    position, done = position + count, done + count


class _Descriptor:
    """A read-only descriptor of a file that is no symbolic link."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from None
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _bytes(tensor: Tensor) -> memoryview:
    # as_strided, for a contiguous tensor of one element may have any stride.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data
