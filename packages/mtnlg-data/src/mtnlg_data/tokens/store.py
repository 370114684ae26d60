r"""Token stores: the ids of many documents in Megatron's pair of files, ``<prefix>.bin`` and ``<prefix>.idx``.

``.bin`` holds the ids of all documents, concatenated. ``.idx`` (MMIDIDX version 1, little-endian):

    9 bytes "MMIDIDX\0\0" | uint64 version = 1 | uint8 dtype code | uint64 n sequences | uint64 m document bounds
    int32[n] tokens of each sequence | int64[n] byte offset of each in .bin | int64[m] first sequence of each document

We write one sequence per document, so m = n + 1, and also read several per document, as megatron-core may write.
A store exists when its ``.idx`` does: the tokens are put in place first. ``TokenStore.checksum`` tells whether it is
what was written; a ``.crc`` beside it, of an earlier version, is not read.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import weakref
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.files import atomic_open, atomic_path, naming, new_or_regular, open_regular
from mtnlg_data.transfer.url_files import RangeReader
from mtnlg_data.transfer.urls import Url, local_only, location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int32s, Int64s, Integers
    from mtnlg_data.transfer.urls import Location

L = TypeVar("L", "Path", "Url", "Location")
MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
SIZES_PER_BATCH = 1 << 20
SPAN_BYTES = 1 << 30
READ_BYTES = 1 << 20


def bin_path(prefix: L) -> L:
    """The file of token ids. The prefix may have dots."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: L) -> L:
    """The index: sizes and offsets of the documents."""
    return prefix.with_name(f"{prefix.name}.idx")


def dtype_for(vocabulary: int) -> np.dtype[Any]:
    """Megatron's token type for ids below ``vocabulary``: uint16 where they fit, else int32."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.int32)


def pack_header(documents: int, dtype: np.dtype[Any]) -> bytes:
    """The header of an index of ``documents`` documents, one sequence each."""
    code = next(code for code, token_type in DTYPE_CODES.items() if dtype == token_type)
    return HEADER.pack(MAGIC, 1, code, documents, documents + 1)


def span_digest(paths: Sequence[Path], threads: int = 1) -> str:
    """SHA-256 of the SHA-256 digests of each ``SPAN_BYTES`` of these files, in hex."""
    spans = [(path, begin) for path in paths for begin in range(0, path.stat().st_size, SPAN_BYTES)]
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(_digest_span, spans)
        return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest_span(span: tuple[Path, int]) -> bytes:
    path, begin = span
    digest = hashlib.sha256()
    with open_regular(path, follow=True) as file:
        file.seek(begin)
        for place in range(0, SPAN_BYTES, READ_BYTES):
            digest.update(file.read(min(READ_BYTES, SPAN_BYTES - place)))
    return digest.digest()


class StoreWriter:
    """Appends documents in their final order; made by ``writing_store``."""

    def __init__(self, tokens: BinaryIO, sizes: BinaryIO, vocabulary: int, dtype: np.dtype[Any]) -> None:
        self._tokens = tokens
        self._sizes = sizes
        self._vocabulary = vocabulary
        self._dtype = dtype
        self.documents = 0

    def add(self, ids: Integers) -> None:
        """Append one document; raises as ``extend`` does."""
        self.extend(ids, np.array([len(ids)]))

    def extend(self, ids: Integers, sizes: Integers) -> None:
        """Append documents: their ids, concatenated, and their sizes.

        Raises ``ValueError`` for an id outside the vocabulary, which would wrap in uint16 unnoticed.
        """
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self._vocabulary):
            raise ValueError(f"token ids {ids.min()}..{ids.max()} outside the vocabulary of {self._vocabulary}")
        if len(sizes) and int(sizes.max()) > np.iinfo(np.int32).max:
            raise ValueError(f"a document of {sizes.max()} tokens: the index counts them in int32")
        self._tokens.write(ids.astype(self._dtype, copy=False).tobytes())
        self._sizes.write(sizes.astype("<i4", copy=False).tobytes())
        self.documents += len(sizes)


@contextmanager
def writing_store(prefix: Path, vocabulary: int, dtype: np.dtype[Any] | None = None) -> Iterator[StoreWriter]:
    """Write a store in one pass and constant memory; nothing is put in place until all documents are written.

    Sizes are kept in an unnamed temporary file beside the store until then.
    """
    folder, dtype = prefix.parent, dtype or dtype_for(vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    new_or_regular(idx_path(prefix))
    with naming(bin_path(prefix)), tempfile.TemporaryFile(dir=folder) as sizes:
        with atomic_path(bin_path(prefix)) as partial:
            with partial.open("wb") as tokens:
                writer = StoreWriter(tokens, sizes, vocabulary, dtype)
                yield writer
            idx_path(prefix).unlink(missing_ok=True)  # never leave an index beside the tokens of another run
        with atomic_open(idx_path(prefix)) as index:
            _write_index(index, sizes, writer.documents, dtype)


def _write_index(index: BinaryIO, sizes: BinaryIO, documents: int, dtype: np.dtype[Any]) -> None:
    index.write(pack_header(documents, dtype))
    index.writelines(batch.tobytes() for batch in _size_batches(sizes))
    offset = 0
    for batch in _size_batches(sizes):
        ends = offset + np.cumsum(batch, dtype=np.int64) * dtype.itemsize
        index.write((ends - batch.astype(np.int64) * dtype.itemsize).tobytes())
        offset = int(ends[-1])
    for first in range(0, documents + 1, SIZES_PER_BATCH):
        bounds = np.arange(first, min(first + SIZES_PER_BATCH, documents + 1), dtype=np.int64)
        index.write(bounds.tobytes())


def _size_batches(sizes: BinaryIO) -> Iterator[Int32s]:
    sizes.seek(0)
    while content := sizes.read(4 * SIZES_PER_BATCH):
        yield np.frombuffer(content, dtype=np.int32)


class FileReader:
    """A file, here or at a URL, open for reading by position, by any number of threads; closed when garbage-collected.

    Not a memory map: if the file is cut short, a map ends the process with a bus error, and a read by position does
    not. Raises ``Failure`` if there is no such file.
    """

    def __init__(self, path: Location) -> None:
        self.path = path
        if isinstance(path, Url):
            reader = RangeReader(path)
            self.size, self.read = reader.size, reader.read
            return
        try:
            file = open_regular(path, follow=True)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}; a token store is a pair of .bin and .idx") from None
        weakref.finalize(self, file.close)
        self.size, self.read = os.fstat(file.fileno()).st_size, partial(_read, path, file)


def _read(path: Path, file: BinaryIO, first: int, last: int) -> bytes:
    """Bytes ``first`` to ``last`` (exclusive). Raises ``Failure`` if some are missing."""
    content = b""
    while len(content) < last - first:  # one read moves at most 2 GiB
        with naming(path):
            more = os.pread(file.fileno(), last - first - len(content), first + len(content))
        if not more:
            raise Failure(f"{path}: ends before byte {last}; it was cut short after it was opened")
        content += more
    return content


class TokenStore:
    """A token store open for reading, ours or Megatron's, by any number of processes; opening takes constant time.

    Everything is read by position: if a file was cut short, even after the store was opened, the read raises
    ``Failure`` naming it. A store is pickled as its prefix.
    """

    def __init__(self, prefix: Location | str) -> None:
        self.prefix = location(prefix)
        prefix = self.prefix
        self._idx, self._bin = FileReader(idx_path(prefix)), FileReader(bin_path(prefix))
        self._sequences, self.documents, self.dtype = _read_header(self._idx)
        expected = self._expected_bin_size()
        if self._bin.size != expected:
            raise Failure(
                f"{self._bin.path}: holds {self._bin.size} bytes where its index says {expected}; write the store again"
            )
        self.tokens = expected // self.dtype.itemsize

    def _expected_bin_size(self) -> int:
        """Bytes of ``.bin``, from the end of its last sequence. Raises ``Failure`` if the index contradicts itself."""
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

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Location]]:
        """Pickle the prefix: a process that unpickles the store opens the files itself."""
        return TokenStore, (self.prefix,)

    def __len__(self) -> int:
        """Number of documents."""
        return self.documents

    def __getitem__(self, document: int) -> Integers:
        """The ids of one document. Raises ``IndexError`` outside [0, documents)."""
        if not 0 <= document < self.documents:
            raise IndexError(f"document {document} of {self.documents} in {self.prefix}")
        start, stop = self.offsets(document, document + 1).tolist()
        return self.read(start, stop)

    def offset(self, document: int) -> int:
        """The number of tokens before this document; ``offset(documents)`` is the number of all tokens."""
        return int(self.offsets(document, document)[0])

    def offsets(self, first: int, last: int) -> Int64s:
        """The number of tokens before each of documents ``first`` to ``last`` inclusive: int64 [last - first + 1]."""
        bounds = self._bounds(first, last + 1)
        low, high = int(bounds[0]), int(bounds[-1])
        if not 0 <= low <= high <= self._sequences or (np.diff(bounds) < 0).any():
            raise Failure(
                f"{self._idx.path}: documents {first} to {last} do not begin at sequences; write the store again"
            )
        starts = self._offsets(low, min(high + 1, self._sequences)) // self.dtype.itemsize
        return np.append(starts, self.tokens)[bounds - low]

    def starts(self, start: int, stop: int) -> Int64s:
        """Numbers of the tokens in [``start``, ``stop``) at which documents begin."""
        first = bisect_left(range(self.documents), start, key=self.offset)
        last = bisect_left(range(self.documents), stop, lo=first, key=self.offset)
        return self.offsets(first, last)[:-1]

    def read(self, start: int, stop: int) -> Integers:
        """Tokens ``start`` to ``stop`` (exclusive) of all documents, concatenated; a read-only array.

        Raises ``Failure`` if there are no such tokens, or the file is damaged.
        """
        if not 0 <= start <= stop <= self.tokens:
            raise Failure(f"{self._bin.path}: no tokens {start} to {stop} of {self.tokens}; is the index damaged?")
        return np.frombuffer(self._bin.read(start * self.dtype.itemsize, stop * self.dtype.itemsize), self.dtype)

    @property
    def files(self) -> tuple[Path, Path]:
        """``.bin`` and ``.idx``, on this machine."""
        return local_only(bin_path(self.prefix)), local_only(idx_path(self.prefix))

    def checksum(self) -> str:
        """``span_digest`` of both files, which are read."""
        return span_digest(self.files)

    def _offsets(self, first: int, last: int) -> Int64s:
        return self._array("<i8", HEADER.size + 4 * self._sequences, first, last)

    def _bounds(self, first: int, last: int) -> Int64s:
        return self._array("<i8", HEADER.size + 12 * self._sequences, first, last)

    def _array(self, dtype: str, begin: int, first: int, last: int) -> Int64s:
        """Entries ``first`` to ``last`` (exclusive) of the array that begins at byte ``begin`` of the index."""
        size = np.dtype(dtype).itemsize
        return np.frombuffer(self._idx.read(begin + first * size, begin + last * size), dtype).astype(np.int64)


def _read_header(index: FileReader) -> tuple[int, int, np.dtype[Any]]:
    """Sequences, documents and token type. Raises ``Failure`` if the header or the size of the file is wrong."""
    path = index.path
    if index.size < HEADER.size:
        raise Failure(f"{path}: {index.size} bytes are too few for an index; write the store again")
    magic, version, code, sequences, bounds = HEADER.unpack(index.read(0, HEADER.size))
    if magic != MAGIC or version != 1 or code not in DTYPE_CODES:
        raise Failure(f"{path}: not an MMIDIDX version 1 index of integer tokens (dtype code {code})")
    expected = HEADER.size + 12 * sequences + 8 * bounds
    if index.size != expected or bounds < 1:
        raise Failure(
            f"{path}: holds {index.size} bytes where {sequences} sequences need {expected}; write the store again"
        )
    return sequences, bounds - 1, np.dtype(DTYPE_CODES[code])
