"""Files read by position, every read checked: what was cut short or changed after it was written is named.

A file's sums are the CRC-32 of every ``BLOCK`` bytes of it, the last block shorter, each a little-endian uint32.
"""

from __future__ import annotations

import os
import struct
import weakref
from typing import TYPE_CHECKING, BinaryIO
from zlib import crc32

import numpy as np

from mtnlg_data.console import Failure

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 4096  # two of them hold a sample of 2048 uint16; their sums cost a thousandth of the space
SUM = struct.Struct("<I")


def sums_of(size: int) -> int:
    """How many sums a file of ``size`` bytes has."""
    return -(-size // BLOCK)


class Summing:
    """Writes to ``file``, and the sums of what is written to ``sums``."""

    def __init__(self, file: BinaryIO, sums: BinaryIO) -> None:
        self._file = file
        self._sums = sums
        self._rest = b""

    def write(self, content: bytes) -> None:
        """Append ``content``."""
        self._file.write(content)
        content = self._rest + content
        whole = len(content) // BLOCK
        self._sums.write(_sums(content, whole))
        self._rest = content[whole * BLOCK :]

    def finish(self) -> None:
        """Sum up the last block; nothing may be written after."""
        self._sums.write(_sums(self._rest, sums_of(len(self._rest))))


def _sums(content: bytes, blocks: int) -> bytes:
    view = memoryview(content)
    sums = (crc32(view[begin : begin + BLOCK]) for begin in range(0, blocks * BLOCK, BLOCK))
    return np.fromiter(sums, "<u4", blocks).tobytes()


class PositionedFile:
    """A file open for reading by position, by any number of threads. It closes itself when it is collected.

    Not a memory map: where the file is cut short a map ends the process with a bus error, and a read by position does
    not. Raises ``Failure`` where there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}; a token store is a pair of .bin and .idx") from None
        weakref.finalize(self, os.close, self._handle)
        self.size = os.fstat(self._handle).st_size
        self._sums: tuple[PositionedFile, int] | None = None

    def check_against(self, sums: PositionedFile, first: int) -> None:
        """From now on check every read against ``sums``, where this file's begin with the ``first``-th."""
        self._sums = sums, first

    def read(self, first: int, last: int) -> bytes:
        """Bytes ``first`` to ``last``, which must lie within ``size``. Raises ``Failure`` where they are not whole."""
        if self._sums is None or first == last:
            return self._bytes(first, last)
        sums, skipped = self._sums
        begin, end = first // BLOCK, sums_of(last)
        content = self._bytes(begin * BLOCK, min(end * BLOCK, self.size))
        expected = sums.read(SUM.size * (skipped + begin), SUM.size * (skipped + end))
        if (found := _sums(content, end - begin)) != expected:
            wrong = begin + next(
                n for n in range(end - begin) if found[4 * n : 4 * n + 4] != expected[4 * n : 4 * n + 4]
            )
            raise Failure(
                f"{self.path}: the {BLOCK} bytes from {wrong * BLOCK} are not what was written, says {sums.path.name}; "
                "restore the file from a copy, or write the store again"
            )
        return content[first - begin * BLOCK : last - begin * BLOCK]

    def _bytes(self, first: int, last: int) -> bytes:
        content = b""
        while len(content) < last - first:  # one read moves at most 2 GiB
            more = os.pread(self._handle, last - first - len(content), first + len(content))
            if not more:
                raise Failure(f"{self.path}: ends before byte {last}; it was cut short after it was opened")
            content += more
        return content
