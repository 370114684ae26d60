r"""TokenStore: token ids of many documents in Megatron's pair of files, ``<prefix>.bin`` and ``<prefix>.idx``.

``.bin`` holds the ids of all documents one after another. ``.idx`` (MMIDIDX version 1, little-endian):

    9 bytes "MMIDIDX\0\0" | uint64 version = 1 | uint8 dtype code | uint64 n sequences | uint64 m document bounds
    int32[n] tokens of each sequence | int64[n] byte offset of each in .bin | int64[m] first sequence of each document

We write one sequence a document, so m = n + 1; what megatron-core writes, several sequences a document included, is
read as well. A pair exists when its ``.idx`` does: the ``.bin`` is put in place first.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .console import Failure
from .files import aside, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
SIZES_AT_ONCE = 1 << 20


def bin_path(prefix: Path) -> Path:
    """The file of token ids; a prefix may itself hold dots."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """The file of sizes and offsets."""
    return prefix.with_name(f"{prefix.name}.idx")


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    """The narrowest of Megatron's two token types that holds ids below ``vocabulary``: uint16, else int32."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)


class StoreWriter:
    """Takes documents in their final order; made by ``writing_store``."""

    def __init__(self, file: BinaryIO, spill: BinaryIO, vocabulary: int) -> None:
        self._file = file
        self._spill = spill
        self._vocabulary = vocabulary
        self._dtype = dtype_for(vocabulary)
        self.documents = 0
        self.tokens = 0

    def add(self, ids: NDArray[np.integer[Any]]) -> None:
        """Append one document. Raises ``ValueError`` for an id outside the vocabulary: a wrapped uint16 is silent."""
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self._vocabulary):
            raise ValueError(f"token ids {ids.min()}..{ids.max()} outside the vocabulary of {self._vocabulary}")
        if len(ids) > np.iinfo(np.int32).max:
            raise ValueError(f"a document of {len(ids)} tokens: the index counts them in int32")
        self._file.write(ids.astype(self._dtype, copy=False).tobytes())
        self._spill.write(struct.pack("<i", len(ids)))
        self.documents += 1
        self.tokens += len(ids)


@contextmanager
def writing_store(prefix: Path, vocabulary: int) -> Iterator[StoreWriter]:
    """Write a store in one pass, in memory that does not grow with it; nothing is in place until all of it is.

    Sizes go to an unnamed temporary file beside the store, and from there into the index when the last one is known.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=prefix.parent) as spill:
        with aside(bin_path(prefix)) as partial:
            with partial.open("wb") as file:
                writer = StoreWriter(file, spill, vocabulary)
                yield writer
            idx_path(prefix).unlink(missing_ok=True)  # an index never stands beside the tokens of another run
        with replacing(idx_path(prefix)) as index:
            _write_index(index, spill, writer.documents, dtype_for(vocabulary))


def _write_index(index: BinaryIO, spill: BinaryIO, documents: int, dtype: np.dtype[Any]) -> None:
    code = next(code for code, kind in CODES.items() if dtype == kind)
    index.write(HEADER.pack(MAGIC, 1, code, documents, documents + 1))
    index.writelines(sizes.tobytes() for sizes in _spilled(spill))
    offset = 0
    for sizes in _spilled(spill):
        ends = offset + np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
        index.write((ends - sizes.astype(np.int64) * dtype.itemsize).tobytes())
        offset = int(ends[-1])
    for first in range(0, documents + 1, SIZES_AT_ONCE):
        bounds = np.arange(first, min(first + SIZES_AT_ONCE, documents + 1), dtype=np.int64)
        index.write(bounds.tobytes())


def _spilled(spill: BinaryIO) -> Iterator[NDArray[np.int32]]:
    spill.seek(0)
    while block := spill.read(4 * SIZES_AT_ONCE):
        yield np.frombuffer(block, dtype=np.int32)


class TokenStore:
    """Reads a pair, ours or Megatron's. Any number of processes may; opening one costs nothing that grows with it.

    The index is memory-mapped; tokens are read by position. A file cut short under a running reader therefore ends in
    a ``Failure`` that names it, not in the bus error that a mapping would raise. Pickles as its prefix alone.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._sizes, self._offsets, self._bounds, self.dtype = _read_index(idx_path(prefix))
        self.documents = len(self._bounds) - 1
        path = bin_path(prefix)
        expected = int(self._offsets[-1]) + int(self._sizes[-1]) * self.dtype.itemsize if len(self._sizes) else 0
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}; its index {idx_path(prefix).name} is there") from None
        self._close = weakref.finalize(self, os.close, self._handle)
        found = os.fstat(self._handle).st_size
        if found != expected:
            self.close()
            raise Failure(f"{path}: holds {found} bytes where its index says {expected}; write the store again")
        self.tokens = expected // self.dtype.itemsize

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        """A process that is handed a store opens the files itself."""
        return TokenStore, (self.prefix,)

    def __len__(self) -> int:
        """Number of documents."""
        return self.documents

    def __getitem__(self, document: int) -> NDArray[np.integer[Any]]:
        """The ids of one document. Raises ``IndexError`` outside [0, documents)."""
        if not 0 <= document < self.documents:
            raise IndexError(f"document {document} of {self.documents} in {self.prefix}")
        return self.read(self.offset(document), self.offset(document + 1))

    def offset(self, document: int) -> int:
        """Tokens before this document; ``offset(documents)`` is all of them."""
        sequence = int(self._bounds[document])
        if not 0 <= sequence <= len(self._offsets):
            raise Failure(f"{idx_path(self.prefix)}: document {document} begins at no sequence; write the store again")
        return int(self._offsets[sequence]) // self.dtype.itemsize if sequence < len(self._offsets) else self.tokens

    def read(self, start: int, stop: int) -> NDArray[np.integer[Any]]:
        """Tokens ``start`` to ``stop`` of the whole run, across documents; read-only.

        Raises ``Failure`` where there are no such tokens, or the file has been cut short since it was opened.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise Failure(
                f"{bin_path(self.prefix)}: no tokens {start} to {stop} of {self.tokens}; is the index damaged?"
            )
        first, last = start * self.dtype.itemsize, stop * self.dtype.itemsize
        block = b""
        while len(block) < last - first:  # one read moves at most 2 GiB
            more = os.pread(self._handle, last - first - len(block), first + len(block))
            if not more:
                raise Failure(
                    f"{bin_path(self.prefix)}: ends before token {stop}; it was cut short after it was opened"
                )
            block += more
        return np.frombuffer(block, dtype=self.dtype)

    def checksum(self) -> str:
        """SHA-256 of ``.bin`` followed by ``.idx``, in hex: ``cat x.bin x.idx | sha256sum``. Reads all of both."""
        digest = hashlib.sha256()
        for path in (bin_path(self.prefix), idx_path(self.prefix)):
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def close(self) -> None:
        """Let go of the ``.bin``; happens by itself when the store is collected."""
        self._close()


def _read_index(path: Path) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], np.dtype[Any]]:
    """Sizes, byte offsets, document bounds (all memory-mapped) and token type; every count is checked before use."""
    try:
        size = path.stat().st_size
        if size < HEADER.size:
            raise Failure(f"{path}: {size} bytes are too few for an index; write the store again")
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; a store is a pair {path.stem}.bin and {path.name}") from None
    magic, version, code, sequences, bounds = HEADER.unpack(mapped[: HEADER.size].tobytes())
    if magic != MAGIC or version != 1 or code not in CODES:
        raise Failure(f"{path}: not an MMIDIDX version 1 index of integer tokens (dtype code {code})")
    expected = HEADER.size + 12 * sequences + 8 * bounds
    if size not in {expected, expected + sequences} or bounds < 1:  # multimodal stores add a byte a sequence
        raise Failure(f"{path}: holds {size} bytes where {sequences} sequences need {expected}; write the store again")
    sizes = np.frombuffer(mapped, dtype="<i4", count=sequences, offset=HEADER.size)
    offsets = np.frombuffer(mapped, dtype="<i8", count=sequences, offset=HEADER.size + 4 * sequences)
    documents = np.frombuffer(mapped, dtype="<i8", count=bounds, offset=HEADER.size + 12 * sequences)
    if int(documents[-1]) != sequences or (sequences and int(offsets[0]) != 0):
        raise Failure(f"{path}: its document bounds do not cover its {sequences} sequences; write the store again")
    return sizes, offsets, documents, np.dtype(CODES[code])
