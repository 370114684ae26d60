"""The content of a .zst file, frame after frame; a file that ends within a frame is an error.

zstandard's own reader ends there as if the file were complete: where the part before ends with a line, whatever the
last frame held would be lost in silence.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from .parts import Checked, begins_short, mapped

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

#: The largest window that the format allows; ``zstd --long=31`` writes it, and decompression takes as much memory.
WINDOW_BYTES = 1 << 31
#: Compressed bytes decoded at a time. Four may hold 128 KiB, so this bounds what is held decoded.
CHUNK_BYTES = 1 << 12
FRAME = re.compile(rb"\x28\xb5\x2f\xfd")
FRAME_OR_SKIPPED = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
MAX_HEADER_BYTES = 18
MAX_BLOCK_BYTES = 1 << 17
RLE_BLOCK, RESERVED_BLOCK = 1, 3


def check_frame(content: mmap.mmap, start: int) -> Checked:
    """Whether a frame begins here whose blocks lead to another, or to the end of the file; nothing is decoded."""
    head = content[start : start + MAX_HEADER_BYTES]
    try:
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        place = start + zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return Checked(False, start + 1)
    is_last = 0
    while not is_last:
        header = int.from_bytes(content[place : place + 3], "little")
        is_last, kind, length = header & 1, header >> 1 & 3, header >> 3
        place += 3 + (1 if kind == RLE_BLOCK else length)
        if kind == RESERVED_BLOCK or length > MAX_BLOCK_BYTES or place > len(content):
            return Checked(False, min(place, len(content)))
    place += 4 * has_checksum
    return Checked(place == len(content) or FRAME_OR_SKIPPED.match(content, place) is not None, place)


def has_frames(path: Path, count: int) -> bool:
    """Whether a .zst file has several frames: its first one ends within the first of ``count`` parts."""
    with path.open("rb") as file, mapped(file) as content:
        return begins_short(content, count, check_frame)


class ZstdFrames(io.BufferedIOBase):
    """Reads a .zst file of any number of frames. Raises ``ZstdError`` and ``EOFError`` where it is broken or cut."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = self._decoded = b""

    def read1(self, size: int = -1, /) -> bytes:
        """The next bytes, ``size`` at most; none at the end."""
        while not self._decoded and self._decode():
            pass
        size = len(self._decoded) if size < 0 else size
        part, self._decoded = self._decoded[:size], self._decoded[size:]
        return part

    def _decode(self) -> bool:
        """Decode another chunk; false at the end of the file."""
        chunk = self._compressed or self._file.read(CHUNK_BYTES)
        self._compressed = b""
        if not chunk:
            if self._frame is not None:
                raise EOFError("the file ends within a zstd frame")
            return False
        frame = self._frame or self._decompressor.decompressobj()
        self._decoded = frame.decompress(chunk)
        self._frame, self._compressed = (None, frame.unused_data) if frame.eof else (frame, b"")
        return True


class FrameLines(io.BufferedIOBase):
    """Reads the lines of some frames: without the one that they begin in, and with the rest of the one they end in.

    That rest is in the ``following`` frames. Where these are broken the line ends; who reads them reports it.
    """

    def __init__(self, frames: ZstdFrames, following: ZstdFrames, *, cut_first: bool) -> None:
        self._frames = frames
        self._following: ZstdFrames | None = following
        self._cut_first = cut_first

    def read1(self, size: int = -1, /) -> bytes:
        """The next bytes, ``size`` at most; none at the end."""
        while part := self._read_part(size):
            if not self._cut_first:
                return part
            _, line_end, part = part.partition(b"\n")
            self._cut_first = not line_end
            if part:
                return part
        return b""

    def _read_part(self, size: int) -> bytes:
        if part := self._frames.read1(size):
            return part
        if self._following is None:
            return b""
        try:
            part = self._following.read1(size)
        except (EOFError, zstandard.ZstdError):
            part = b""
        rest, line_end, _ = part.partition(b"\n")
        if line_end or not part:
            self._following = None
        return rest + line_end
