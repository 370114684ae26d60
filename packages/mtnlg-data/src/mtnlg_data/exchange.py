"""Exchange by key range: sorted files of many writers → one reader a range, with linearly many opens.

A stage that sorts a corpus has F files, each sorted by a 64-bit key, and R ranges of these keys, and both grow with the
corpus. Opening every file for every range would be F x R opens. Here no unit opens more than ``FAN_OUT`` files: first
groups of files are merged, level by level, each level after the first within a ``FAN_OUT``-th of the keys of the one
before, so that all units are of one size:

    level 0   the files as they were written, of all keys
    level l   a file for each group of ``FAN_OUT`` files of level l - 1, and each block of keys
    range     read from the files of its block at the last level, ``FAN_OUT`` or fewer

Up to ``FAN_OUT`` files need no merging. Beyond it each level opens every file once, and rewrites every byte once: one
level is enough for 16,384 files, two for two million. The files of a level and of a range are named by numbers, so a
unit carries the same few bytes however large the corpus is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FAN_OUT = 128  # a power of two
KEYS = 1 << 64


def stable_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The order that sorts these keys, in which equal ones stay in theirs: ``np.argsort(keys, kind="stable")``, faster.

    NumPy sorts numbers by vector instructions, but an order by comparisons. So what is sorted here are numbers with the
    place of each key in their lower bits, below as much of the key as there is room for. Keys that differ only below
    that are put right by a second sort, which finds nearly all in order.
    """
    if len(keys) < 2:
        return np.arange(len(keys))
    low, high = int(keys.min()), int(keys.max())
    spread = np.uint64(64 - max(1, (high - low).bit_length()))
    bits = np.uint64((len(keys) - 1).bit_length())
    packed = (keys - np.uint64(low)) << spread >> bits << bits | np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order = (packed & (np.uint64(1) << bits) - np.uint64(1)).astype(np.int64)
    ordered = keys[order]
    return order[np.argsort(ordered, kind="stable")] if (ordered[1:] < ordered[:-1]).any() else order


class SortedFile(NamedTuple):
    """A file of the exchange; at level 0 ``group`` is its number, and ``block`` 0."""

    level: int
    group: int
    block: int

    @property
    def stem(self) -> str:
        """Its name, without suffix."""
        return f"{self.level}-{self.group:07d}-{self.block:07d}"


class KeyRange(NamedTuple):
    """The keys from ``first`` to ``last``, inclusive, and the files that hold them."""

    first: int
    last: int
    files: tuple[SortedFile, ...]

    def split(self, parts: int) -> list[tuple[int, int]]:
        """First and last key of each of so many even parts."""
        bounds = [self.first + part * (self.last + 1 - self.first) // parts for part in range(parts + 1)]
        return [(first, end - 1) for first, end in pairwise(bounds)]


class Exchange:
    """Who reads what, for this many files at level 0 and at least this many ranges (their next power of two)."""

    def __init__(self, files: int, ranges: int) -> None:
        self.ranges = 1 << max(0, ranges - 1).bit_length()
        self._levels = [(files, 1)]  # groups and blocks of each
        while self._levels[-1][0] > FAN_OUT:
            groups, blocks = self._levels[-1]
            refined = 1 if len(self._levels) == 1 else min(self.ranges, blocks * FAN_OUT)
            self._levels.append((-(-groups // FAN_OUT), refined))

    def merges(self) -> Iterator[list[tuple[SortedFile, KeyRange]]]:
        """Level by level: each file that is to be merged, and the keys and files that it is merged from."""
        for level, (groups, blocks) in enumerate(self._levels[1:], 1):
            yield [
                (SortedFile(level, group, block), self._read(level - 1, blocks, block, group))
                for group in range(groups)
                for block in range(blocks)
            ]

    def range(self, number: int) -> KeyRange:
        """The keys of a range, from 0 to ``ranges`` - 1, and the files of the last level that hold them."""
        return self._read(len(self._levels) - 1, self.ranges, number, 0)

    def _read(self, level: int, parts: int, part: int, group: int) -> KeyRange:
        """Part ``part`` of ``parts`` of all keys, from the files of a level that make one group."""
        groups, blocks = self._levels[level]
        block = part * blocks // parts
        members = range(group * FAN_OUT, min((group + 1) * FAN_OUT, groups))
        files = tuple(SortedFile(level, member, block) for member in members)
        return KeyRange(part * KEYS // parts, (part + 1) * KEYS // parts - 1, files)
