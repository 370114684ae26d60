"""Many short arrays of 64-bit values in one file, read through a memory map: shingle sets, buckets.

8 bytes each: values of array 0, of array 1, ... | end of each array, counted in values | how many arrays
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray


def write_ragged(path: Path, parts: Iterable[tuple[NDArray[np.int64] | NDArray[np.uint64], NDArray[np.int64]]]) -> int:
    """Replace ``path`` by these (values one after another, length of each array); returns how many arrays."""
    lengths = [np.empty(0, np.int64)]
    with replacing(path) as file:
        for values, sizes in parts:
            file.write(values.tobytes())
            lengths.append(sizes)
        ends = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        file.write(ends.tobytes())
        file.write(np.int64(len(ends)).tobytes())
    return len(ends)


class Ragged:
    """The arrays of one file, by number."""

    def __init__(self, path: Path) -> None:
        words = np.memmap(path, np.int64, mode="r")
        count = int(words[-1])
        self.ends = words[len(words) - 1 - count : -1]
        self.values = words[: len(words) - 1 - count]

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.ends)

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        """Array ``number``, as int64; a view of the file."""
        return self.values[self.ends[number - 1] if number else 0 : self.ends[number]]
