"""The content of a .zst file, frame after frame; a file that ends within a frame is an error.

zstandard's own reader ends there as if the file were complete: where the part before ends with a line, whatever the
last frame held would be lost in silence.
"""

from __future__ import annotations

import io
from typing import BinaryIO

import zstandard

#: The largest window that the format allows; ``zstd --long=31`` writes it, and decompression takes as much memory.
WINDOW_BYTES = 1 << 31
#: Compressed bytes decoded at a time. Four may hold 128 KiB, so this bounds what is held decoded.
CHUNK_BYTES = 1 << 12


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
