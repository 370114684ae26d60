"""Files read by position and checked against stored checksums, so that damage is named where it is read.

A file's checksums are the CRC-32 of each ``BLOCK_BYTES`` of it, the last block shorter, each a little-endian uint32.
"""

from __future__ import annotations

import os
import struct
import weakref
from functools import partial
from typing import TYPE_CHECKING, BinaryIO
from zlib import crc32

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.transfer.url_files import RangeReader
from mtnlg_data.transfer.urls import url_of

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 4096  # two blocks hold a sample of 2048 uint16; the checksums take a thousandth of the file's size
CRC = struct.Struct("<I")


def block_count(size: int) -> int:
    """The number of blocks, and so of checksums, of a file of ``size`` bytes."""
    return -(-size // BLOCK_BYTES)


class ChecksumWriter:
    """Writes to ``file``, and the checksums of what is written to ``checksums``."""

    def __init__(self, file: BinaryIO, checksums: BinaryIO) -> None:
        self._file = file
        self._checksums = checksums
        self._tail = b""

    def write(self, content: bytes) -> None:
        """Append ``content``."""
        self._file.write(content)
        content = self._tail + content
        blocks = len(content) // BLOCK_BYTES
        self._checksums.write(block_checksums(content, blocks))
        self._tail = content[blocks * BLOCK_BYTES :]

    def finish(self) -> None:
        """Write the checksum of the last block; nothing may be appended after."""
        self._checksums.write(block_checksums(self._tail, block_count(len(self._tail))))


def block_checksums(content: bytes, blocks: int) -> bytes:
    """The checksums of the first so many blocks of these bytes, the last of which may be short."""
    view = memoryview(content)
    checksums = (crc32(view[begin : begin + BLOCK_BYTES]) for begin in range(0, blocks * BLOCK_BYTES, BLOCK_BYTES))
    return np.fromiter(checksums, "<u4", blocks).tobytes()


class CheckedFile:
    """A file, here or at a URL, open for reading by position, by any number of threads; closed when garbage-collected.

    Not a memory map: where the file is cut short, a map ends the process with a bus error, and a read by position does
    not. Raises ``Failure`` where there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksums: tuple[CheckedFile, int] | None = None
        if (url := url_of(path)) is not None:
            reader = RangeReader(url)
            self.size, self._pread = reader.size, reader.read
            return
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}; a token store is a pair of .bin and .idx") from None
        weakref.finalize(self, os.close, handle)
        self.size, self._pread = os.fstat(handle).st_size, partial(_pread, path, handle)

    def check_against(self, checksums: CheckedFile, first: int) -> None:
        """From now on check every read; number ``first`` of ``checksums`` is that of this file's first block."""
        self._checksums = checksums, first

    def read(self, first: int, last: int) -> bytes:
        """Bytes ``first`` to ``last``, both within ``size``. Raises ``Failure`` where they are missing or changed."""
        if self._checksums is None or first == last:
            return self._pread(first, last)
        checksums, offset = self._checksums
        begin, end = first // BLOCK_BYTES, block_count(last)
        content = self._pread(begin * BLOCK_BYTES, min(end * BLOCK_BYTES, self.size))
        expected = checksums.read(CRC.size * (offset + begin), CRC.size * (offset + end))
        if (actual := block_checksums(content, end - begin)) != expected:
            differ = np.frombuffer(actual, "<u4") != np.frombuffer(expected, "<u4")
            damaged = (begin + int(differ.argmax())) * BLOCK_BYTES
            raise Failure(
                f"{self.path}: the {BLOCK_BYTES} bytes from {damaged} are not what was written, says "
                f"{checksums.path.name}; restore the file from a copy, or write the store again"
            )
        return content[first - begin * BLOCK_BYTES : last - begin * BLOCK_BYTES]


def _pread(path: Path, handle: int, first: int, last: int) -> bytes:
    content = b""
    while len(content) < last - first:  # one read moves at most 2 GiB
        more = os.pread(handle, last - first - len(content), first + len(content))
        if not more:
            raise Failure(f"{path}: ends before byte {last}; it was cut short after it was opened")
        content += more
    return content
