"""Read the bytes of a file, decompressed by the format of its first bytes, within a limit on expansion."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import zstandard

from mtnlg_data.files import open_regular
from mtnlg_data.transfer.url_files import read_beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

BUFFER_BYTES = 1 << 17
#: Limit of decompression: this many bytes plus a multiple of the file's size. Text usually expands about fourfold.
ALWAYS_ALLOWED_BYTES = 1 << 30
MAX_EXPANSION_RATIO = 256
GZIP = 31  # window bits of zlib, for gzip's header and trailer
DECOMPRESSION_ERRORS = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
#: The largest window that zstd allows; ``zstd --long=31`` writes it, and decompression takes as much memory.
WINDOW_BYTES = 1 << 31
#: Compressed bytes decoded at a time (four bytes of zstd may decode to 128 KiB, so this bounds memory); for lz4,
#: decoded bytes.
CHUNK_BYTES = 1 << 12


def decode(file: BinaryIO, new_frame: Callable[[], Any], padding: bytes = b"") -> Iterator[bytes]:
    """Decode any number of frames, with padding after each; raises one of ``DECOMPRESSION_ERRORS`` for a damaged one.

    The libraries' own readers end as if the file were complete when a frame of zstd is cut, or when bytes that begin no
    frame follow a frame of xz or bzip2: the rest would be lost silently.
    """
    frame = None
    with file:
        while chunk := file.read(CHUNK_BYTES):
            while chunk := chunk if frame else chunk.lstrip(padding):
                frame = frame or new_frame()
                yield frame.decompress(chunk)
                frame, chunk = (None, frame.unused_data) if frame.eof else (frame, b"")
    if frame:
        raise EOFError("the file ends within a compressed frame")


def decode_lz4(file: BinaryIO) -> Iterator[bytes]:
    """Decode lz4 frames with Arrow."""
    with pa.CompressedInputStream(file, "lz4") as frames:
        while chunk := frames.read(CHUNK_BYTES):
            yield chunk


class Decoded(io.RawIOBase):
    """A readable file made of chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Always true; ``io.BufferedReader`` asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Copy the next bytes into the buffer; 0 at the end."""
        while not self._rest and (chunk := next(self._chunks, None)) is not None:
            self._rest = memoryview(chunk)
        with memoryview(buffer) as view:
            count = min(len(view), len(self._rest))
            view[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


#: First bytes of a file → its decoder, or its format and what to do with it; no text begins with any of these.
FORMATS: dict[bytes, Callable[[BinaryIO], Iterator[bytes]] | str] = {
    b"\x1f\x8b": lambda file: decode(file, partial(zlib.decompressobj, GZIP), b"\0"),
    b"\x28\xb5\x2f\xfd": (
        decode_zstd := lambda file: decode(file, zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj)
    ),
    b"\x50\x2a\x4d\x18": decode_zstd,  # of pzstd, which begins with a frame to be skipped
    b"\xfd7zXZ": lambda file: decode(file, lzma.LZMADecompressor, b"\0"),
    b"BZh": lambda file: decode(file, bz2.BZ2Decompressor),
    b"\x04\x22\x4d\x18": decode_lz4,
    b"\xff\x06\x00\x00sNaPpY": "snappy: compress it with gzip or zstd",
    b"PK\x03\x04": "zip: unpack it",
    b"PAR1": "Parquet: name it .parquet, and its kind parquet",
    b"\xff\xfe": "UTF-16: make it UTF-8",
    b"\xfe\xff": "UTF-16: make it UTF-8",
}


def detect_format(path: Path) -> Callable[[BinaryIO], Iterator[bytes]] | str | None:
    """The decoder of a compressed file, or a description of a file that is no text; None for a plain text file."""
    begin = read_beginning(path, max(map(len, FORMATS)))
    return next((form for magic, form in FORMATS.items() if begin.startswith(magic)), None)


class Damaged(Exception):  # noqa: N818  (a state of a file)
    """Why a file cannot be read on: the reason and the defect of a ``Dropped``."""


class Stream:
    """A file that is read forward. Raises ``Damaged`` if it is broken, a decompression bomb, or of another format."""

    def __init__(self, path: Path) -> None:
        form = detect_format(path)
        if isinstance(form, str):
            raise Damaged("unreadable", f"is {form}")
        file = open_regular(path, follow=True)
        self.file = io.BufferedReader(Decoded(form(file)), BUFFER_BYTES) if form else file
        self._left = ALWAYS_ALLOWED_BYTES + MAX_EXPANSION_RATIO * path.stat().st_size

    def read(self, read: Callable[[int], bytes], size: int) -> bytes:
        """Return what ``file.read`` or ``file.readline`` reads, within the limit on expansion."""
        try:
            content = read(size)
        except DECOMPRESSION_ERRORS as error:
            if getattr(error, "errno", None):
                raise
            raise Damaged("unreadable", f"{error}; the rest of the file is lost") from None
        self._left -= len(content)
        if self._left < 0:
            raise Damaged("bomb", f"expands to more than {MAX_EXPANSION_RATIO} times the file; the rest is lost")
        return content
