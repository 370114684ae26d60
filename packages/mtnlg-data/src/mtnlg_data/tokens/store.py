r"""TokenStore: token ids of many documents in Megatron's pair of files, ``<prefix>.bin`` and ``<prefix>.idx``.

``.bin`` holds the ids of all documents one after another. ``.idx`` (MMIDIDX version 1, little-endian):

    9 bytes "MMIDIDX\0\0" | uint64 version = 1 | uint8 dtype code | uint64 n sequences | uint64 m document bounds
    int32[n] tokens of each sequence | int64[n] byte offset of each in .bin | int64[m] first sequence of each document

We write one sequence a document, so m = n + 1; what megatron-core writes, several sequences a document included, is
read as well. Beside the two we write ``<prefix>.crc``, the sums (see ``checked``) of ``.bin`` and then of ``.idx``:
against it every read is checked. A store that has none, such as megatron-core's, is read unchecked. A store exists when
its ``.idx`` does: the others are put in place first.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.files import aside, replacing

from .checked_file import SUM, PositionedFile, Summing, sums_of

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


def crc_path(prefix: Path) -> Path:
    """The file of sums."""
    return prefix.with_name(f"{prefix.name}.crc")


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    """The narrowest of Megatron's two token types that holds ids below ``vocabulary``: uint16, else int32."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)


class StoreWriter:
    """Takes documents in their final order; made by ``writing_store``."""

    def __init__(self, file: Summing, spill: BinaryIO, vocabulary: int) -> None:
        self._file = file
        self._spill = spill
        self._vocabulary = vocabulary
        self._dtype = dtype_for(vocabulary)
        self.documents = 0

    def add(self, ids: NDArray[np.integer[Any]]) -> None:
        """Append one document; see ``extend``."""
        self.extend(ids, np.array([len(ids)]))

    def extend(self, ids: NDArray[np.integer[Any]], sizes: NDArray[np.integer[Any]]) -> None:
        """Append documents of these sizes, whose ids follow one another in ``ids``.

        Raises ``ValueError`` for an id outside the vocabulary: a wrapped uint16 would be silent.
        """
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self._vocabulary):
            raise ValueError(f"token ids {ids.min()}..{ids.max()} outside the vocabulary of {self._vocabulary}")
        if len(sizes) and int(sizes.max()) > np.iinfo(np.int32).max:
            raise ValueError(f"a document of {sizes.max()} tokens: the index counts them in int32")
        self._file.write(ids.astype(self._dtype, copy=False).tobytes())
        self._spill.write(sizes.astype("<i4", copy=False).tobytes())
        self.documents += len(sizes)


@contextmanager
def writing_store(prefix: Path, vocabulary: int) -> Iterator[StoreWriter]:
    """Write a store in one pass, in memory that does not grow with it; nothing is in place until all of it is.

    Sizes and sums go to unnamed temporary files beside the store, and from there to where they belong.
    """
    folder = prefix.parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as spill, tempfile.TemporaryFile(dir=folder) as sums:
        with aside(bin_path(prefix)) as partial:
            with partial.open("wb") as file:
                tokens = Summing(file, sums)
                writer = StoreWriter(tokens, spill, vocabulary)
                yield writer
                tokens.finish()
            for path in (idx_path(prefix), crc_path(prefix)):
                path.unlink(missing_ok=True)  # an index never stands beside the tokens of another run
        with replacing(idx_path(prefix)) as file:
            index = Summing(file, sums)
            _write_index(index, spill, writer.documents, dtype_for(vocabulary))
            index.finish()
            sums.seek(0)
            with replacing(crc_path(prefix)) as together:
                shutil.copyfileobj(sums, together)


def _write_index(index: Summing, spill: BinaryIO, documents: int, dtype: np.dtype[Any]) -> None:
    code = next(code for code, kind in CODES.items() if dtype == kind)
    index.write(HEADER.pack(MAGIC, 1, code, documents, documents + 1))
    for sizes in _spilled(spill):
        index.write(sizes.tobytes())
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
    """Reads a store, ours or Megatron's. Any number of processes may; opening one costs nothing that grows with it.

    Everything is read by position and, where there is a ``.crc``, checked: a file cut short or changed under a running
    reader ends in a ``Failure`` that names it. Pickles as its prefix alone.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._idx, self._bin = PositionedFile(idx_path(prefix)), PositionedFile(bin_path(prefix))
        foreign = self._check_reads()
        self._sequences, self.documents, self.dtype = _header(self._idx)
        expected = self._bytes_of_tokens()
        if self._bin.size != expected:
            raise Failure(
                f"{self._bin.path}: holds {self._bin.size} bytes where its index says {expected}; write the store again"
            )
        if foreign:  # the pair agrees with itself
            raise Failure(f"{crc_path(prefix)}: no sums of this store; remove it, or write the store again")
        self.tokens = expected // self.dtype.itemsize

    def _check_reads(self) -> bool:
        """Check reads from now on, if there are sums; returns whether there are some, but of files of other sizes."""
        try:
            sums = PositionedFile(crc_path(self.prefix))
        except Failure:
            return False
        blocks = [sums_of(file.size) for file in (self._bin, self._idx)]
        if sums.size != SUM.size * sum(blocks):
            return True
        self._bin.check_against(sums, 0)
        self._idx.check_against(sums, blocks[0])
        return False

    def _bytes_of_tokens(self) -> int:
        """The size of ``.bin`` by the last of its sequences."""
        last = self._sequences - 1
        if int(self._bounds(self.documents, self.documents + 1)[0]) != last + 1 or (
            last >= 0 and self._offsets(0, 1)[0]
        ):
            raise Failure(
                f"{self._idx.path}: its document bounds do not cover its {last + 1} sequences; write the store again"
            )
        if last < 0:
            return 0
        (tokens,) = self._array("<i4", HEADER.size, last, last + 1)
        return int(self._offsets(last, last + 1)[0]) + int(tokens) * self.dtype.itemsize

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
        start, stop = self.offsets(document, document + 1).tolist()
        return self.read(start, stop)

    def offset(self, document: int) -> int:
        """Tokens before this document; ``offset(documents)`` is all of them."""
        return int(self.offsets(document, document)[0])

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Tokens before each of the documents ``first`` to ``last``, this included: int64 [last - first + 1]."""
        bounds = self._bounds(first, last + 1)
        low, high = int(bounds[0]), int(bounds[-1])
        if not 0 <= low <= high <= self._sequences or (np.diff(bounds) < 0).any():
            raise Failure(
                f"{self._idx.path}: the documents from {first} to {last} begin at no sequences; write the store again"
            )
        begins = self._offsets(low, min(high + 1, self._sequences)) // self.dtype.itemsize
        return np.append(begins, self.tokens)[bounds - low]

    def read(self, start: int, stop: int) -> NDArray[np.integer[Any]]:
        """Tokens ``start`` to ``stop`` of the whole run, across documents; read-only.

        Raises ``Failure`` where there are no such tokens, or the file is no longer what it was when it was written.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise Failure(f"{self._bin.path}: no tokens {start} to {stop} of {self.tokens}; is the index damaged?")
        return np.frombuffer(self._bin.read(start * self.dtype.itemsize, stop * self.dtype.itemsize), self.dtype)

    def checksum(self) -> str:
        """SHA-256 of ``.bin`` followed by ``.idx``, in hex: ``cat x.bin x.idx | sha256sum``. Reads all of both."""
        digest = hashlib.sha256()
        for path in (bin_path(self.prefix), idx_path(self.prefix)):
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def _offsets(self, first: int, last: int) -> NDArray[np.int64]:
        return self._array("<i8", HEADER.size + 4 * self._sequences, first, last)

    def _bounds(self, first: int, last: int) -> NDArray[np.int64]:
        return self._array("<i8", HEADER.size + 12 * self._sequences, first, last)

    def _array(self, dtype: str, begin: int, first: int, last: int) -> NDArray[np.int64]:
        """Entries ``first`` to ``last`` of the array that begins at byte ``begin`` of the index."""
        size = np.dtype(dtype).itemsize
        return np.frombuffer(self._idx.read(begin + first * size, begin + last * size), dtype).astype(np.int64)


def _header(index: PositionedFile) -> tuple[int, int, np.dtype[Any]]:
    """Sequences, documents and token type; every count is checked against the size of the file before it is used."""
    path = index.path
    if index.size < HEADER.size:
        raise Failure(f"{path}: {index.size} bytes are too few for an index; write the store again")
    magic, version, code, sequences, bounds = HEADER.unpack(index.read(0, HEADER.size))
    if magic != MAGIC or version != 1 or code not in CODES:
        raise Failure(f"{path}: not an MMIDIDX version 1 index of integer tokens (dtype code {code})")
    expected = HEADER.size + 12 * sequences + 8 * bounds
    if sequences and index.size == expected + sequences:
        raise Failure(f"{path}: the index of a multimodal store, which has a mode a sequence; only text is read")
    if index.size != expected or bounds < 1:
        raise Failure(
            f"{path}: holds {index.size} bytes where {sequences} sequences need {expected}; write the store again"
        )
    return sequences, bounds - 1, np.dtype(CODES[code])
