"""The search for the next record behind a broken one, in work that grows with the size of the file.

A file may be made so that every byte looks like the start of a record that is long and broken, and each would be read
to its end. So an account is kept of what was read in vain. As long as that is less than a multiple of the file's size,
the search goes on at the byte behind a broken start; afterwards, behind all that its reading has examined, so that no
byte is examined again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import re

#: Bytes that may be read in vain: so many for each byte of the file, and so many of any file.
VAIN_READS, VAIN_BYTES = 8, 1 << 25
FIRST_CHUNK, LAST_CHUNK = 1 << 12, 1 << 20


class Recovery:
    """The account of a file's broken records."""

    def __init__(self, size: int) -> None:
        self._left = VAIN_READS * size + VAIN_BYTES

    def resume(self, start: int, end: int, cost: int = 0) -> int:
        """Where to search after a broken record at ``start`` whose reading has examined the file up to ``end``.

        ``cost`` is what else it took in bytes, such as those that were decompressed.
        """
        self._left -= end - start + cost
        return start + 1 if self._left >= 0 else max(start + 1, end)


def find(pattern: re.Pattern[bytes], file: BinaryIO, start: int, longest: int) -> int | None:
    """Offset of the first match at or after ``start``, of a pattern that matches at most ``longest`` bytes."""
    file.seek(start)
    window, size = b"", FIRST_CHUNK  # a near match, as on crafted input, must not cost a large chunk
    while chunk := file.read(size):
        window += chunk
        match = pattern.search(window)
        if match:
            return start + match.start()
        kept = min(len(window), longest - 1)
        start += len(window) - kept
        window, size = window[len(window) - kept :], min(2 * size, LAST_CHUNK)
    return None
