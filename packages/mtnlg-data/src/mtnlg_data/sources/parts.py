"""Large files in parts: where the first record, line or frame behind a byte offset begins.

Part k of n of a file has what begins in the k-th n-th of its bytes. Its reader needs no other part: from a little
before its first byte it searches for a start that is one by a full check (a gzip member whose checksum is right and
whose content is a record; a record that ends where its length says, before another; a zstd frame whose blocks lead to
the next), goes from there to the first start in the part, and reads up to that of the next part, which it finds the
same way. So both neighbours agree, each byte is in one part, and what is broken is met by one reader, who goes on
behind it as in a file that is read whole.

The way from a little before leads around what a record holds: an archive that was crawled has records of its own. Only
one that is longer than ``LOOKBACK_BYTES``, and stored in the file as it was, would be taken for a part of the file.
"""

from __future__ import annotations

import mmap
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from .recovery import Recovery

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    Check = Callable[[mmap.mmap, int], "Checked"]

LOOKBACK_BYTES = 1 << 25
LONGEST_START = 1 << 14  # bytes that a pattern of a start matches at most


class Part(NamedTuple):
    """Part ``number`` of so many ``parts`` of a file, from 0."""

    number: int = 0
    parts: int = 1

    def of(self, size: int) -> tuple[int, int]:
        """Its first byte, and the one behind its last, of so many bytes (or of anything else that is counted)."""
        return self.number * size // self.parts, (self.number + 1) * size // self.parts

    @property
    def place(self) -> str:
        """What follows a place in the part, in a message; nothing for a whole file."""
        return f" of part {self.number + 1} of {self.parts}" if self.parts > 1 else ""


WHOLE = Part()


class Checked(NamedTuple):
    """Whether a record, member or frame begins at an offset and is complete, and what finding out has examined."""

    is_complete: bool
    end: int  # of the record, or of what was examined
    cost: int = 0  # what else it took in bytes, such as those that were decompressed


def mapped(file: BinaryIO) -> mmap.mmap:
    """The content of an open file that is not empty."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def find_part(content: mmap.mmap, part: Part, pattern: re.Pattern[bytes], check: Check) -> tuple[int, int]:
    """Where the part's first record begins, and that of the next part; equal where none begins in the part.

    ``pattern`` matches wherever a record might begin.
    """
    size = len(content)
    begin, end = part.of(size)
    find_start = partial(_find_start, content, pattern, check, size // part.parts)
    first = find_start(begin, end)
    return (end, end) if first >= end else (first, find_start(end, size))


def _find_start(  # noqa: PLR0917  (the first four are those of the file)
    content: mmap.mmap, pattern: re.Pattern[bytes], check: Check, part_bytes: int, begin: int, end: int
) -> int:
    """The first start at or behind ``begin``; ``end`` where there is none before."""
    if begin == 0:
        return 0
    position = max(0, begin - LOOKBACK_BYTES)
    recovery = Recovery(part_bytes)
    while (match := pattern.search(content, position, end + LONGEST_START)) is not None:
        start = match.start()
        if start >= end:
            break
        checked = check(content, start)
        if checked.is_complete and start >= begin:
            return start
        position = checked.end if checked.is_complete else recovery.resume(start, checked.end, checked.cost)
    return end


def begins_short(content: mmap.mmap, count: int, check: Check) -> bool:
    """Whether the file begins with something complete that ends within the first of ``count`` parts."""
    first = check(content, 0)
    return first.is_complete and first.end <= len(content) // count
