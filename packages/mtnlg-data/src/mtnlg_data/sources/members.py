"""The gzip members that crawl files are made of, one a record."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

MEMBER = re.compile(rb"\x1f\x8b\x08")
GZIP = zlib.MAX_WBITS | 16
CHUNK = 1 << 16


def member_at(content: mmap, begin: int, most: int) -> tuple[bytes, int]:
    """What the member that begins here expands to, and where it ends; of one that is longer, ``most`` + 1 bytes.

    Raises ``EOFError`` where the file breaks off in it and ``zlib.error`` where it is broken.
    """
    inflating = zlib.decompressobj(GZIP)
    pieces, size, place = [], 0, begin
    while not inflating.eof and size <= most:
        chunk = inflating.unconsumed_tail
        if not chunk:
            chunk = content[place : place + CHUNK]
            place += len(chunk)
            if not chunk:
                raise EOFError("the file breaks off within a gzip member")
        pieces.append(inflating.decompress(chunk, most + 1 - size))
        size += len(pieces[-1])
    return b"".join(pieces), place - len(inflating.unused_data)
