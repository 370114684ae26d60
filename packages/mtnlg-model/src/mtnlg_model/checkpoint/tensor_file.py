"""One safetensors file: hashed while it is written; a read fetches exactly the bytes that are needed.

Format: 8 bytes of header length, little-endian; a JSON header {key: {dtype, shape, data_offsets}}; the data. Reads use
``pread``, not a memory map: a file truncated under a reader is an error instead of a bus fault, a narrow slice reads
only its own bytes without read-ahead, and no descriptor stays open.
"""

from __future__ import annotations

import json
import os
import struct
from math import prod
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import torch
import xxhash
from pydantic import Field, TypeAdapter, ValidationError

from mtnlg_model.files import naming, open_to_update
from mtnlg_model.settings import Settings

from .manifest import (
    CHUNK_BYTES,
    ITEM_BYTES,
    CheckpointError,
    DtypeName,
    FileEntry,
    NonNegative,
    check_length,
    open_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from io import RawIOBase
    from pathlib import Path

    from torch import Tensor

DTYPE_NAMES: Final[dict[torch.dtype, DtypeName]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
DTYPES: Final[dict[str, torch.dtype]] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
MAX_HEADER_BYTES = 100_000_000
MAX_AXES = 8


class TensorSpec(NamedTuple):
    """Dtype and shape of an entry to write."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the entry in bytes."""
        return prod(self.shape) * self.dtype.itemsize


class HeaderEntry(Settings):
    """One entry of the header; ``data_offsets`` are relative to the end of the header."""

    dtype: str
    shape: Annotated[tuple[NonNegative, ...], Field(max_length=MAX_AXES)]
    data_offsets: tuple[NonNegative, NonNegative]


_HEADER = TypeAdapter(dict[str, HeaderEntry | dict[str, str]])


def write_tensor_file(path: Path, specs: Mapping[str, TensorSpec], tensor: Callable[[str], Tensor]) -> FileEntry:
    """Write and fsync one safetensors file; return its length and checksum.

    ``tensor`` is called for one entry after another and returns a contiguous CPU tensor, so a file may exceed memory.
    """
    # Widest dtypes first, as the format asks, so that every entry is aligned.
    ordered = sorted(specs.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for key, spec in ordered:
        end = offset + spec.bytes
        header[key] = {"dtype": DTYPE_NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    checksum = xxhash.xxh3_128()
    with naming(path), open_to_update(path, os.O_TRUNC) as file:
        _write_hashed(file.raw, checksum, memoryview(struct.pack("<Q", len(text)) + text))
        for key, _ in ordered:
            _write_hashed(file.raw, checksum, _bytes(tensor(key)))
        os.fsync(file.fileno())
    return FileEntry(bytes=8 + len(text) + offset, checksum=checksum.hexdigest())


def _write_hashed(file: RawIOBase, checksum: xxhash.xxh3_128, block: memoryview) -> None:
    """Hash and write in chunks small enough to stay in the processor's cache."""
    for start in range(0, len(block), CHUNK_BYTES):
        chunk = block[start : start + CHUNK_BYTES]
        checksum.update(chunk)
        while chunk:
            chunk = chunk[file.write(chunk) :]


class TensorFile:
    """A safetensors file to read. The constructor reads and checks the header; `read` reads data."""

    def __init__(self, path: Path, listed: FileEntry | None = None, wait: float = 0.0) -> None:
        """The file must be as long as ``listed``, its manifest entry; ``wait``, in seconds, is as in `open_file`."""
        self.path, self._wait = path, wait
        with open_file(path, wait) as (file, size):
            if listed:
                check_length(path, size, listed)
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(f"{path}: header length {length} in a file of {size} bytes: not safetensors")
            raw = file.read(length)
        self._start = 8 + length
        self.entries = self._parse_header(raw, size - self._start)

    def _parse_header(self, raw: bytes, data_bytes: int) -> dict[str, HeaderEntry]:
        try:
            json.loads(raw, object_pairs_hook=_require_unique_keys)
            header = _HEADER.validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise CheckpointError(f"{self.path}: header: {first['loc'][:1]}: {first['msg']}") from None
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: header: {error}") from None
        entries = {key: entry for key, entry in header.items() if isinstance(entry, HeaderEntry)}
        reached = 0
        for key, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
            first_byte, last_byte = entry.data_offsets
            if not first_byte <= last_byte <= data_bytes:
                raise CheckpointError(
                    f"{self.path}: {key!r}: offsets {first_byte}:{last_byte} outside {data_bytes} bytes"
                )
            if first_byte != reached:
                raise CheckpointError(f"{self.path}: {key!r}: begins at byte {first_byte}, where {reached} comes next")
            reached = last_byte
            item = ITEM_BYTES.get(entry.dtype)
            if item is not None and last_byte - first_byte != prod(entry.shape) * item:
                spec = f"{entry.dtype} {list(entry.shape)}"
                raise CheckpointError(f"{self.path}: {key!r}: {spec} does not take {last_byte - first_byte} bytes")
        if reached != data_bytes:
            raise CheckpointError(f"{self.path}: {data_bytes - reached} bytes at the end are not of any entry")
        return entries

    def expect(self, key: str, dtype: DtypeName, shape: tuple[int, ...]) -> None:
        """Raise ``CheckpointError`` unless the file has entry ``key`` of this dtype and shape."""
        entry = self.entries.get(key)
        if entry is None:
            raise CheckpointError(f"{self.path}: {key!r}: no such entry")
        if (entry.dtype, entry.shape) != (dtype, shape):
            stored, expected = f"{entry.dtype} {list(entry.shape)}", f"{dtype} {list(shape)}"
            raise CheckpointError(f"{self.path}: {key!r}: is {stored} where the manifest says {expected}")

    def read(self, key: str, runs: Iterable[tuple[int, int]], out: Tensor) -> None:
        """Fill the contiguous tensor ``out`` with these (offset, length) runs of elements of entry ``key``."""
        target, item, done = _bytes(out), out.element_size(), 0
        base = self._start + self.entries[key].data_offsets[0]
        with open_file(self.path, self._wait) as (file, _):
            for offset, length in runs:
                position, end = base + offset * item, done + length * item
                while done < end:
                    count = os.preadv(file.fileno(), (target[done:end],), position)
                    if count == 0:
                        raise CheckpointError(f"{self.path}: {key!r}: the file ends within this entry")
                    position, done = position + count, done + count


def _require_unique_keys(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("duplicate key")


def _bytes(tensor: Tensor) -> memoryview:
    # as_strided because a contiguous tensor of one element may have any stride.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data
